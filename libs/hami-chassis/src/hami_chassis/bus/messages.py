"""Messages as handlers see them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from nats.aio.msg import Msg
from nats.errors import NotJSMessageError

from hami_chassis.cloudevents import event_id


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message. `stream_sequence` and `deliveries` are 0 outside of a stream."""

    subject: str
    payload: bytes
    headers: Mapping[str, str]
    stream_sequence: int = 0
    deliveries: int = 0

    @property
    def id(self) -> str:
        """`ce-id`; empty when the message has none."""
        return event_id(self.headers)


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a query: a payload, or an error by code and description."""

    payload: bytes = b""
    error_code: str = ""
    error_description: str = ""


def from_nats(message: Msg) -> Message:
    """A message of a plain subscription."""
    return Message(subject=message.subject, payload=message.data, headers=message.headers or {})


def from_stream(message: Msg) -> Message:
    """A message that a stream delivered."""
    try:
        metadata = message.metadata
    except NotJSMessageError:
        return from_nats(message)
    return Message(
        subject=message.subject,
        payload=message.data,
        headers=message.headers or {},
        stream_sequence=metadata.sequence.stream,
        deliveries=metadata.num_delivered or 0,
    )
