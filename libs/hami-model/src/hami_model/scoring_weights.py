"""How much slots, cores and memory weigh in a card's score: annotation `keys.SCORING_WEIGHTS`."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from hami_model import keys
from hami_model.errors import MalformedAnnotation

_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_INT64_MAX: Final = 2**63 - 1
_KEYS: Final = ("slot", "core", "memory")


class ScoringWeights(msgspec.Struct, frozen=True, kw_only=True):
    slot: int = 1
    core: int = 1
    memory: int = 1


def parse(text: str) -> ScoringWeights:
    """Reads `slot=<int>,core=<int>,memory=<int>` in any order. Raises MalformedAnnotation."""
    values: dict[str, int] = {}
    for part in text.split(","):
        key, equals, number = (piece.strip() for piece in part.partition("="))
        if key not in _KEYS or not equals or key in values:
            raise _malformed(f"{part.strip()!r} is not one of slot=, core=, memory=, each once")
        if not _INTEGER.fullmatch(number) or not 0 <= int(number) <= _INT64_MAX:
            raise _malformed(f"{key}={number!r} is not a whole number from 0")
        values[key] = int(number)
    if len(values) != len(_KEYS):
        raise _malformed(f"all of {', '.join(_KEYS)} must be given")
    if not any(values.values()):
        raise _malformed("at least one weight must be above 0")
    return ScoringWeights(**values)


def _malformed(problem: str) -> MalformedAnnotation:
    return MalformedAnnotation(keys.SCORING_WEIGHTS, f"{problem}; write for example slot=1,core=1,memory=1")
