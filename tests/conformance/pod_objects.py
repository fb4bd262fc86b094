"""Pods as JSON: applying a patch, and one spelling of what means the same."""

from __future__ import annotations

import copy
from fractions import Fraction
from typing import Any

from hami_model import quantity

DECIMAL_SUFFIXES = ((10**18, "E"), (10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"), (1, ""))
BINARY_SUFFIXES = ((2**60, "Ei"), (2**50, "Pi"), (2**40, "Ti"), (2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki"), (1, ""))


def apply_patch(document: dict[str, Any], patch: list[dict[str, Any]]) -> dict[str, Any]:
    """RFC 6902 for `add`, `replace` and `remove`."""
    changed: dict[str, Any] = copy.deepcopy(document)
    for operation in patch:
        *steps, last = [step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:]]
        target: Any = changed
        for step in steps:
            target = target[int(step)] if isinstance(target, list) else target[step]
        _apply(target, last, operation)
    return changed


def _apply(target: Any, last: str, operation: dict[str, Any]) -> None:
    if operation["op"] == "remove":
        del target[int(last) if isinstance(target, list) else last]
    elif isinstance(target, list) and operation["op"] == "add":
        target.insert(len(target) if last == "-" else int(last), operation["value"])
    else:
        target[int(last) if isinstance(target, list) else last] = operation["value"]


def normalised(pod: dict[str, Any]) -> Any:
    """What is null or empty left out, quantities in Kubernetes' own spelling."""
    whole = {"apiVersion": "v1", "kind": "Pod", **{key: value for key, value in pod.items() if value}}
    return _pruned(_with_canonical_quantities(whole))


def _pruned(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _pruned(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in (None, {}, [], "")}
    if isinstance(value, list):
        return [_pruned(item) for item in value]
    return value


def _with_canonical_quantities(pod: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(pod)
    spec = changed.get("spec")
    if not isinstance(spec, dict):
        return changed
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(kind) or []:
            _canonicalise(container)
    return changed


def _canonicalise(container: Any) -> None:
    resources: Any = container.get("resources") if isinstance(container, dict) else None
    if not isinstance(resources, dict):
        return
    for table in ("limits", "requests"):
        if isinstance(resources.get(table), dict):
            resources[table] = {name: canonical_quantity(str(text)) for name, text in resources[table].items()}


def canonical_quantity(text: str) -> str:
    """The spelling in which Kubernetes writes a quantity: the largest suffix of its kind that leaves a whole number."""
    try:
        value, suffix = quantity.parse_with_suffix(text)
    except quantity.MalformedQuantity:
        return text
    if value == 0:
        return "0"
    if suffix.endswith("i"):
        if abs(value) >= 1024 and value.denominator == 1:
            return _with_suffix(value, BINARY_SUFFIXES)
        return _decimal(value)
    if any(mark in text for mark in "eE") and suffix == "":
        return _with_exponent(value)
    return _decimal(value)


def _decimal(value: Fraction) -> str:
    if value.denominator == 1:
        return _with_suffix(value, DECIMAL_SUFFIXES)
    for scale, suffix in ((10**3, "m"), (10**6, "u"), (10**9, "n")):
        if (value * scale).denominator == 1:
            return f"{value * scale}{suffix}"
    return str(value)


def _with_suffix(value: Fraction, suffixes: tuple[tuple[int, str], ...]) -> str:
    size, suffix = next((size, suffix) for size, suffix in suffixes if value % size == 0)
    return f"{value // size}{suffix}"


def _with_exponent(value: Fraction) -> str:
    exponent = next((exponent for exponent in (18, 15, 12, 9, 6, 3) if value % 10**exponent == 0), 0)
    return f"{value // 10**exponent}e{exponent}" if exponent else str(value)
