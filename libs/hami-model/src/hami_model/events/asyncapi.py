"""The AsyncAPI 3 document of all events, derived from subjects and structs."""

from __future__ import annotations

import inspect
from typing import Any, Final

from hami_model.events import subjects
from hami_model.events.catalogue import ALL_EVENTS, type_of
from hami_model.events.envelope import CONTENT_TYPE, MESSAGE_ID_HEADER, Event
from hami_model.events.schemas import components
from hami_model.lifecycle import Phase

Document = dict[str, Any]
_DESCRIPTION: Final = (
    "State changes and samples of GPU sharing, over NATS. Names in subjects: dots become _, other characters than "
    "letters, digits and - become = and their bytes in hexadecimal. Readers skip what they do not know."
)
_PARAMETERS: Final[dict[str, Document]] = {
    "prefix": {"description": "Configured prefix of all subjects.", "default": subjects.DEFAULT_PREFIX},
    "node": {"description": "Name of the node."},
    "vendor": {"description": "Word of the family of accelerators."},
    "device": {"description": "Id of the card."},
    "namespace": {"description": "Namespace of the pod."},
    "pod_uid": {"description": "UID of the pod."},
    "verdict": {"description": "What was decided: the last word of the message's type before its version."},
    "phase": {"description": "Phase of the allocation.", "enum": [str(phase) for phase in Phase]},
}


def document() -> Document:
    """The whole document."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "HAMi events",
            "version": subjects.VERSION,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": CONTENT_TYPE,
        "channels": {family: _channel(family) for family in subjects.FAMILIES},
        "operations": {f"publish-{family}": _operation(family) for family in subjects.FAMILIES},
        "components": {
            "messages": {event.__name__: _message(event) for event in ALL_EVENTS},
            "schemas": {"Headers": _headers(), **components("#/components/schemas/{name}")},
        },
    }


def family_of(event: type[Event]) -> str:
    """The family by the event's type, such as `allocation` of `io.hami.allocation.reserved.v1`."""
    return type_of(event).split(".")[2]


def parameters_of(family: str) -> tuple[str, ...]:
    """Names of the tokens that follow the family in its subjects, in their order."""
    builder = getattr(subjects, family.replace("-", "_"))
    return tuple(name for name in inspect.signature(builder).parameters if name != "prefix")


def _channel(family: str) -> Document:
    names = parameters_of(family)
    return {
        "address": ".".join(["{prefix}", subjects.VERSION, family, *(f"{{{name}}}" for name in names)]),
        "parameters": {name: _PARAMETERS[name] for name in ("prefix", *names)},
        "messages": {
            event.__name__: {"$ref": f"#/components/messages/{event.__name__}"}
            for event in ALL_EVENTS
            if family_of(event) == family
        },
    }


def _operation(family: str) -> Document:
    return {"action": "send", "channel": {"$ref": f"#/channels/{family}"}}


def _message(event: type[Event]) -> Document:
    return {
        "name": type_of(event),
        "summary": inspect.cleandoc(event.__doc__ or ""),
        "contentType": CONTENT_TYPE,
        "headers": {"$ref": "#/components/schemas/Headers"},
        "payload": {"$ref": f"#/components/schemas/{event.__name__}"},
    }


def _headers() -> Document:
    """CloudEvents 1.0 in binary mode."""
    text = {"type": "string"}
    names = ["ce-id", "ce-type", "ce-source", "ce-time", "ce-subject", MESSAGE_ID_HEADER]
    fixed = {"ce-specversion": {"const": "1.0"}, "content-type": {"const": CONTENT_TYPE}}
    return {
        "type": "object",
        "properties": {**fixed, **dict.fromkeys(names, text), "traceparent": text},
        "required": [*fixed, *names],
    }
