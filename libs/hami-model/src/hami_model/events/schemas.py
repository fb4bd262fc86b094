"""JSON Schemas of the events, derived from the structs."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from hami_model.attribute_docs import attribute_docs
from hami_model.events.catalogue import ALL_EVENTS, type_of
from hami_model.events.envelope import Event

Schema = dict[str, Any]
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_WRITTEN_ALWAYS: Final = ("id", "sequence")
"""Fields with a default in Python that the writer fills in."""


def components(ref_template: str) -> dict[str, Schema]:
    """Schema by name of struct: all events and what they are made of. `ref_template` has `{name}`."""
    _, found = msgspec.json.schema_components(ALL_EVENTS, ref_template=ref_template)
    structs = {struct.__name__: struct for struct in _structs()}
    return {name: _completed(schema, structs.get(name)) for name, schema in sorted(found.items())}


def event_schema(event: type[Event]) -> Schema:
    """The schema of one event, standing alone."""
    found = components("#/$defs/{name}")
    used = _reachable(event.__name__, found)
    return {
        "$schema": _DIALECT,
        "$id": f"urn:{type_of(event)}",
        "title": type_of(event),
        "$ref": f"#/$defs/{event.__name__}",
        "$defs": {name: found[name] for name in sorted(used)},
    }


def _structs() -> set[type[msgspec.Struct]]:
    """The structs of all events and their parts."""
    found: set[type[msgspec.Struct]] = set()

    def visit(info: msgspec.inspect.Type) -> None:
        match info:
            case msgspec.inspect.StructType(cls=cls, fields=fields):
                if cls not in found:
                    found.add(cls)
                    for field in fields:
                        visit(field.type)
            case msgspec.inspect.VarTupleType(item_type=item):
                visit(item)
            case msgspec.inspect.UnionType(types=types):
                for one in types:
                    visit(one)

    for event in ALL_EVENTS:
        visit(msgspec.inspect.type_info(event))
    return found


def _completed(schema: Schema, struct: type[msgspec.Struct] | None) -> Schema:
    """With the docstrings of fields, and with fields required that are written always."""
    if struct is None:
        return schema
    docs: dict[str, str] = {}
    for owner in reversed(struct.__mro__):
        if issubclass(owner, msgspec.Struct) and owner is not msgspec.Struct:
            docs.update(attribute_docs(owner))
    properties: dict[str, Schema] = {}
    required: list[str] = []
    for name, found in schema.get("properties", {}).items():
        description = {"description": " ".join(docs[name].split())} if name in docs else {}
        properties[name] = found | description
        if issubclass(struct, Event) and name in _WRITTEN_ALWAYS:
            properties[name].pop("default", None)
            required.append(name)
        elif name in schema["required"]:
            required.append(name)
    return schema | {"properties": properties, "required": required}


def _reachable(name: str, found: dict[str, Schema]) -> set[str]:
    used: set[str] = set()
    open_names = [name]
    while open_names:
        one = open_names.pop()
        if one not in used:
            used.add(one)
            open_names += _references(found[one])
    return used


def _references(schema: object) -> list[str]:
    """Names of the definitions that a schema refers to."""
    if isinstance(schema, list):
        return [name for item in schema for name in _references(item)]
    if not isinstance(schema, dict):
        return []
    own = [schema["$ref"].rsplit("/", 1)[1]] if isinstance(schema.get("$ref"), str) else []
    return own + [name for value in schema.values() for name in _references(value)]
