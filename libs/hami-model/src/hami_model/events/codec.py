"""Events to bytes and back: one JSON object, which `nats sub` shows as it is."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

import msgspec

from hami_model.errors import MalformedError
from hami_model.events.catalogue import ALL_EVENTS, type_of
from hami_model.events.envelope import Event

EVENT_BYTES_MAX: Final = 1 << 20
"""The largest message that a NATS server takes by default."""


class MalformedEvent(MalformedError):  # noqa: N818  # reads as the state of the message
    """A message is no event, or lacks what its type must have. To retry it is useless."""


class UnknownEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a type or version that this build does not know. Readers count it and go on."""

    type: str
    id: str
    source: str
    time: Annotated[datetime, msgspec.Meta(tz=True)]
    raw: bytes
    """The message as it came."""


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    id: Annotated[str, msgspec.Meta(min_length=1)]
    source: str
    time: Annotated[datetime, msgspec.Meta(tz=True)]


_ENCODER: Final = msgspec.json.Encoder()
_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)
_DECODERS: Final = {type_of(event): msgspec.json.Decoder(event) for event in ALL_EVENTS}


def encode(event: Event) -> bytes:
    """The event as JSON. Equal events give equal bytes."""
    return _ENCODER.encode(event)


def decode(data: bytes) -> Event | UnknownEvent:
    """The event in a message. Fields that are not known are skipped. Raises MalformedEvent."""
    if len(data) > EVENT_BYTES_MAX:
        raise MalformedEvent(f"event of {len(data)} bytes; {EVENT_BYTES_MAX} are allowed")
    try:
        envelope = _ENVELOPE.decode(data)
        decoder = _DECODERS.get(envelope.type)
        if decoder is not None:
            return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedEvent(f"not an event: {error}") from error
    return UnknownEvent(type=envelope.type, id=envelope.id, source=envelope.source, time=envelope.time, raw=bytes(data))
