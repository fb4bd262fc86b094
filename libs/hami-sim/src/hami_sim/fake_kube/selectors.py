"""Label and field selectors as the API server reads them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Predicate = Callable[[dict[str, Any]], bool]

_SET_TERM = re.compile(r"^\s*(?P<key>[^\s!=]+)\s+(?P<operator>in|notin)\s+\((?P<values>[^)]*)\)\s*$")
_COMPARISON = re.compile(r"^\s*(?P<key>[^\s!=]+)\s*(?P<operator>==|=|!=)\s*(?P<value>[^\s]*)\s*$")


class SelectorError(ValueError):
    """A selector that cannot be read."""


def label_predicate(selector: str) -> Predicate:
    """Whether an object's labels satisfy every term. Raises SelectorError."""
    terms = [_label_term(term) for term in _split(selector)]
    return lambda obj: all(term(obj.get("metadata", {}).get("labels") or {}) for term in terms)


def field_predicate(selector: str) -> Predicate:
    """Whether the named fields of an object have (or have not) the values. Raises SelectorError."""
    terms = [_comparison(term) for term in _split(selector)]
    return lambda obj: all((_field(obj, key) == value) is wanted for key, value, wanted in terms)


def _split(selector: str) -> list[str]:
    return [term for term in re.split(r",(?![^(]*\))", selector) if term.strip()]


def _label_term(term: str) -> Callable[[dict[str, str]], bool]:
    if found := _SET_TERM.match(term):
        key, operator = found["key"], found["operator"]
        values = {value.strip() for value in found["values"].split(",")}
        if operator == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if re.match(r"^\s*!?[^\s!=]+\s*$", term):
        key = term.strip()
        if key.startswith("!"):
            return lambda labels: key[1:] not in labels
        return lambda labels: key in labels
    key, value, wanted = _comparison(term)
    return lambda labels: (labels.get(key) == value) is wanted


def _comparison(term: str) -> tuple[str, str, bool]:
    found = _COMPARISON.match(term)
    if found is None:
        raise SelectorError(f"unable to parse requirement: {term!r}")
    return found["key"], found["value"], found["operator"] != "!="


def _field(obj: dict[str, Any], path: str) -> str:
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return "" if value is None else str(value)
