"""The AsyncAPI 3 document of all events, derived from subjects and structs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
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
_BESIDE: Final = {
    "io.hami.usage.slice-not-enforced.v1": "not-enforced",
    "io.hami.usage-node.out-of-band.v1": "out-of-band",
}
"""Events with a channel of their own beside their family's, which bears the name of their subjects' builder."""
CHANNELS: Final = (*subjects.FAMILIES, *_BESIDE.values())
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
        "channels": {channel: _channel(channel) for channel in CHANNELS},
        "operations": {f"publish-{channel}": _operation(channel) for channel in CHANNELS},
        "components": {
            "messages": {event.__name__: _message(event) for event in ALL_EVENTS},
            "schemas": {"Headers": _headers(), **components("#/components/schemas/{name}")},
        },
    }


def family_of(event: type[Event]) -> str:
    """The family by the event's type, such as `allocation` of `io.hami.allocation.reserved.v1`."""
    return type_of(event).split(".")[2]


def channel_of(event: type[Event]) -> str:
    return _BESIDE.get(type_of(event)) or family_of(event)


def parameters_of(channel: str) -> tuple[str, ...]:
    """Names of the tokens that follow the family in its subjects, in their order."""
    return tuple(name for name in inspect.signature(_builder(channel)).parameters if name != "prefix")


def _builder(channel: str) -> Callable[..., str]:
    found: Callable[..., str] = getattr(subjects, channel.replace("-", "_"))
    return found


def _address(channel: str) -> str:
    places = {f"place{position}": f"{{{name}}}" for position, name in enumerate(parameters_of(channel))}
    tokens = _builder(channel)(*places, prefix="prefix").split(".")
    return ".".join(["{prefix}", *(places.get(token, token) for token in tokens[1:])])


def _channel(channel: str) -> Document:
    names = parameters_of(channel)
    return {
        "address": _address(channel),
        "parameters": {name: _PARAMETERS[name] for name in ("prefix", *names)},
        "messages": {
            event.__name__: {"$ref": f"#/components/messages/{event.__name__}"}
            for event in ALL_EVENTS
            if channel_of(event) == channel
        },
    }


def _operation(channel: str) -> Document:
    return {"action": "send", "channel": {"$ref": f"#/channels/{channel}"}}


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
