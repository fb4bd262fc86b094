"""JSON as HAMi's programs write and read it: the rules of Go's encoding/json, over hostile input.

Keys match fields whatever their case; of duplicate keys the last wins; integers must be written as integers and fit;
`null` leaves a scalar as it was and empties a collection; unknown keys are skipped. Reading is in two steps: `parse`
gives a tree, `Fields` takes typed values out of it. Every fault is a MalformedJson that names its place.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Final, NoReturn, TypeVar

import msgspec

from hami_model.errors import MalformedJson

Item = TypeVar("Item")
Default = TypeVar("Default")

DEPTH_LIMIT: Final = 64
"""Nothing that we read nests deeper than six levels; keeps hostile nesting off the stack."""
INT32: Final = range(-(2**31), 2**31)
INT64: Final = range(-(2**63), 2**63)
UINT32: Final = range(2**32)
UINT64: Final = range(2**64)

_BRACKETS: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|[][{}]', re.DOTALL)
_INTEGER: Final = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_NUMBER_LENGTH: Final = 400
"""No number that fits 64 bits is written longer."""
_LONE_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


class Number(msgspec.Struct, frozen=True):
    """A number as written: only the reader of a field knows what it must be."""

    text: str


class Object(msgspec.Struct, frozen=True):
    """Keys and values as written, duplicates kept."""

    pairs: tuple[tuple[str, object], ...]


def parse(text: str) -> object:
    """The tree of a text: None, bool, str, Number, list or Object. Raises MalformedJson."""
    _check_depth(text)
    try:
        return json.loads(
            text,
            object_pairs_hook=lambda pairs: Object(tuple((_repaired(key), value) for key, value in pairs)),
            parse_int=Number,
            parse_float=Number,
            parse_constant=_refuse_constant,
        )
    except json.JSONDecodeError as error:
        raise MalformedJson(f"{error.msg} at character {error.pos}") from error
    except RecursionError as error:
        raise MalformedJson("nested too deeply") from error


def _check_depth(text: str) -> None:
    if text.count("[") + text.count("{") <= DEPTH_LIMIT:
        return
    depth = 0
    for match in _BRACKETS.finditer(text):
        token = match.group()
        if token in ("[", "{"):
            depth += 1
            if depth > DEPTH_LIMIT:
                raise MalformedJson(f"nested deeper than {DEPTH_LIMIT} levels at character {match.start()}")
        elif token in ("]", "}"):
            depth -= 1


def _refuse_constant(name: str) -> NoReturn:
    raise MalformedJson(f"{name} is no JSON number")


def _repaired(text: str) -> str:
    """Half a surrogate pair becomes the replacement character, as in Go: such text could not be encoded again."""
    return _LONE_SURROGATE.sub("\ufffd", text)


def elements(value: object, place: str) -> list[tuple[str, object]]:
    """An array's elements, each with its place; null is an empty array."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise _unexpected(value, place, "an array")
    return [(f"{place}[{position}]", element) for position, element in enumerate(value)]


class Fields:
    """Typed access to one object. A field that is absent or null has its zero value."""

    def __init__(self, value: object, place: str) -> None:
        """`value` may be null: every field is then absent."""
        if value is not None and not isinstance(value, Object):
            raise _unexpected(value, place, "an object")
        self._place = place
        self._values: dict[str, list[object]] = {}
        for key, item in value.pairs if value is not None else ():
            self._values.setdefault(_folded(key), []).append(item)

    def string(self, name: str) -> str:
        return self._last(name, _string, "")

    def boolean(self, name: str) -> bool:
        return self._last(name, _boolean, default=False)

    def integer(self, name: str, within: range = INT64) -> int:
        return self._last(name, lambda value, place: _integer(value, place, within), 0)

    def optional_string(self, name: str) -> str | None:
        return self._last(name, _string, None)

    def optional_integer(self, name: str, within: range = INT64) -> int | None:
        return self._last(name, lambda value, place: _integer(value, place, within), None)

    def array(self, name: str, item: Callable[[object, str], Item]) -> list[Item]:
        """The elements of the last array; null is an empty one."""
        found: list[Item] = []
        for value in self._occurrences(name):
            found = [item(element, place) for place, element in elements(value, self._at(name))]
        return found

    def nested(self, name: str) -> Fields:
        """A nested object; of duplicates the last wins."""
        found = [Fields(value, self._at(name)) for value in self._occurrences(name)]
        return found[-1] if found else Fields(None, self._at(name))

    def integer_map(self, name: str) -> dict[str, int] | None:
        """A map of integers; None when absent or null. Duplicates are merged, a null value is 0."""
        found: dict[str, int] | None = None
        for value in self._occurrences(name):
            if value is None:
                found = None
                continue
            if not isinstance(value, Object):
                raise _unexpected(value, self._at(name), "an object")
            found = found or {}
            for key, item in value.pairs:
                found[key] = 0 if item is None else _integer(item, f"{self._at(name)}.{key}", INT64)
        return found

    def plain_map(self, name: str) -> dict[str, str | float | bool | None]:
        """A map's plain values, numbers as floats; lists and objects in it are left out. Empty when absent or null."""
        found: dict[str, str | float | bool | None] = {}
        for value in self._occurrences(name):
            if value is None:
                found = {}
                continue
            if not isinstance(value, Object):
                raise _unexpected(value, self._at(name), "an object")
            for key, item in value.pairs:
                if isinstance(item, Number):
                    found[key] = _float(item, f"{self._at(name)}.{key}")
                elif item is None or isinstance(item, str | bool):
                    found[key] = _repaired(item) if isinstance(item, str) else item
        return found

    def _at(self, name: str) -> str:
        return f"{self._place}.{name}" if self._place else name

    def _occurrences(self, name: str) -> list[object]:
        return self._values.get(name.lower(), [])

    def _last(self, name: str, read: Callable[[object, str], Item], default: Default) -> Item | Default:
        found: Item | Default = default
        for value in self._occurrences(name):
            if value is not None:
                found = read(value, self._at(name))
        return found


def _folded(key: str) -> str:
    """Folds as Go does: ASCII letters, and the two other characters that fold onto one."""
    folded = key.replace("\u017f", "s").replace("\u212a", "k")
    return folded.lower() if folded.isascii() else folded


def _float(value: Number, place: str) -> float:
    number = float(value.text) if len(value.text) <= _NUMBER_LENGTH else math.inf
    if math.isinf(number):
        raise _unexpected(value, place, "a number of 64 bits")
    return number


def _string(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise _unexpected(value, place, "a string")
    return _repaired(value)


def _boolean(value: object, place: str) -> bool:
    if not isinstance(value, bool):
        raise _unexpected(value, place, "true or false")
    return value


def _integer(value: object, place: str, within: range) -> int:
    if not isinstance(value, Number) or not _INTEGER.fullmatch(value.text) or int(value.text) not in within:
        raise _unexpected(value, place, f"an integer from {within.start} to {within.stop - 1}")
    return int(value.text)


def _unexpected(value: object, place: str, wanted: str) -> MalformedJson:
    match value:
        case Number(text):
            found = f"the number {text[:24]}"
        case str():
            found = "a string"
        case bool():
            found = "a boolean"
        case list():
            found = "an array"
        case Object():
            found = "an object"
        case _:
            found = "null"
    return MalformedJson(f"{place or 'the document'}: expected {wanted}, found {found}")


def encode_string(text: str) -> str:
    """A JSON string as Go writes it, safe inside HTML."""
    quoted = json.dumps(_repaired(text), ensure_ascii=False)
    for character, escape in _ESCAPES:
        quoted = quoted.replace(character, escape)
    return quoted


_ESCAPES: Final = (
    ("<", "\\u003c"),
    (">", "\\u003e"),
    ("&", "\\u0026"),
    ("\u2028", "\\u2028"),
    ("\u2029", "\\u2029"),
)
