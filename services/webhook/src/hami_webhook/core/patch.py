"""JSON patches (RFC 6902) that name exactly what changes. Only `add` and `remove` are ever needed here.

Documents are JSON as decoded (dicts, lists, plain values): typed structs would lose the fields they do not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast

import msgspec

JsonObject = dict[str, Any]


class Add(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="add"):
    """Puts `value` at `path`; a key that exists is replaced, `-` as the last step appends to a list."""

    path: str
    value: Any


class Remove(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="remove"):
    path: str


Operation = Add | Remove
Patch = tuple[Operation, ...]


def pointer(*steps: str | int) -> str:
    """The JSON pointer (RFC 6901) of these steps."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


def apply_patch(document: Mapping[str, Any], patch: Iterable[Operation]) -> JsonObject:
    """The document after the patch; the given one stays as it is.

    Raises LookupError where a path does not exist.
    """
    changed: JsonObject = dict(document)
    for operation in patch:
        steps = [step.replace("~1", "/").replace("~0", "~") for step in operation.path.split("/")[1:]]
        value = operation.value if isinstance(operation, Add) else None
        kind: Literal["add", "remove"] = "add" if isinstance(operation, Add) else "remove"
        changed = cast("JsonObject", _changed(changed, steps, kind, value))
    return changed


def _changed(node: object, steps: list[str], kind: Literal["add", "remove"], value: object) -> object:
    step, rest = steps[0], steps[1:]
    if isinstance(node, dict):
        copy = dict(node)
        if rest:
            copy[step] = _changed(node[step], rest, kind, value)
        elif kind == "add":
            copy[step] = value
        else:
            del copy[step]
        return copy
    if isinstance(node, list):
        items = list(node)
        index = len(items) if step == "-" else int(step)
        if rest:
            items[index] = _changed(items[index], rest, kind, value)
        elif kind == "add":
            items.insert(index, value)
        else:
            del items[index]
        return items
    raise LookupError(f"nothing is at {step!r}: its parent is neither an object nor a list")
