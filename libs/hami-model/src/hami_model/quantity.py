"""Kubernetes quantities as exact numbers.

Source: the grammar in the API conventions of Kubernetes: a signed number and a binary, decimal or exponent suffix.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from hami_model.errors import MalformedError

_GRAMMAR: Final = re.compile(
    r"^(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?"
    r"(?P<suffix>Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?[0-9]{1,3})?$",
    re.ASCII,
)
_LONGEST: Final = 64
"""No quantity a user means is longer; keeps hostile exponents and digits cheap."""
_FACTORS: Final[dict[str, Fraction]] = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}
UNIT_SUFFIXES: Final = frozenset({"M", "G", "T", "P", "E", "Mi", "Gi", "Ti", "Pi", "Ei"})
"""Suffixes of M and larger: on a number that is already MiB they mean that the user thinks in bytes."""


class MalformedQuantity(MalformedError):  # noqa: N818
    """A text that is no Kubernetes quantity."""


def parse(text: str) -> Fraction:
    """The exact value of a quantity.

    >>> parse("5Ki"), parse("3e3"), parse("500m")
    (Fraction(5120, 1), Fraction(3000, 1), Fraction(1, 2))
    """
    value, _ = parse_with_suffix(text)
    return value


def parse_with_suffix(text: str) -> tuple[Fraction, str]:
    """The exact value of a quantity and the suffix it was written with ("" when none or an exponent)."""
    match = _GRAMMAR.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None or not (match["whole"] or match["part"]):
        raise MalformedQuantity(f"{text[:_LONGEST]!r} is not a quantity; write a whole number such as 4096")
    whole, part, suffix = match["whole"] or "0", match["part"] or "", match["suffix"] or ""
    value = Fraction(int(whole + part), 10 ** len(part))
    if suffix and suffix[0] in "eE" and suffix not in {"E", "Ei"}:
        value *= Fraction(10) ** int(suffix[1:])
        suffix = ""
    else:
        value *= _FACTORS[suffix]
    return (-value if match["sign"] == "-" else value), suffix
