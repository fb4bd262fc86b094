"""What every event has around its body, and its headers on NATS.

On the wire an event is one flat JSON object: `type`, `id`, `source`, `time`, `traceparent`, then the body.
"""

from __future__ import annotations

import json
import re
from abc import ABCMeta, abstractmethod
from datetime import UTC, datetime
from typing import Annotated, Final
from urllib.parse import quote
from uuid import UUID, uuid5

import msgspec

from hami_model.events import subjects

CONTENT_TYPE: Final = "application/json"
MESSAGE_ID_HEADER: Final = "Nats-Msg-Id"
_IDS: Final = UUID("6d0d2b3e-8a5c-5c5e-8f0a-3f1d7c9b2a40")
"""Name space of event ids. Never changes: a restarted service must give the same event the same id."""
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
_HEADER_SAFE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""Printable ASCII that CloudEvents leaves as it is in a header; the rest is percent-encoded."""


class _AbstractStruct(msgspec.StructMeta, ABCMeta):
    """Lets a struct have abstract methods."""


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", metaclass=_AbstractStruct):
    """The envelope. Its subclasses are the events; `catalogue` lists them.

    `id` is a function of what happened (`_identity` of each family), filled in where it is left out at construction.
    """

    id: str = ""
    """The same whenever the same event is published again; a reader drops an id that it has seen."""
    source: str
    """The publisher, such as /hami/scheduler/<instance>."""
    time: Annotated[datetime, msgspec.Meta(tz=True)]
    """When it happened, with zone."""
    traceparent: str = ""
    """W3C trace context, or empty."""

    def __post_init__(self) -> None:
        if self.time.tzinfo is None:
            raise ValueError("time of an event must carry its zone; pass datetime.now(tz=UTC) or the like")
        if not self.id:
            msgspec.structs.force_setattr(self, "id", self._identity())

    @property
    def type(self) -> str:
        """Such as `io.hami.allocation.reserved.v1`."""
        return str(self.__struct_config__.tag)

    @property
    @abstractmethod
    def about(self) -> str:
        """The object that the event is about, as `nodes/<name>` or `pods/<namespace>/<name>`: CloudEvents' subject."""

    @abstractmethod
    def subject(self, prefix: str = subjects.DEFAULT_PREFIX) -> str:
        """The NATS subject it is published on. Raises InvalidPrefixError."""

    @abstractmethod
    def _identity(self) -> str:
        """The id, as a function of what happened."""


def source(service: str, instance: str) -> str:
    """The source of what one instance of a service publishes, such as `/hami/scheduler/hami-scheduler-0`."""
    return f"/hami/{quote(service, safe='')}/{quote(instance, safe='')}"


def identity(*facts: str) -> str:
    """An id that is a function of the facts in their order."""
    return str(uuid5(_IDS, json.dumps(facts)))


def rfc3339(time: datetime) -> str:
    """In UTC, with as many digits of a second as are needed."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def headers(event: Event) -> dict[str, str]:
    """CloudEvents 1.0 binary mode, NATS' own key for duplicates, and the trace context where there is one."""
    event_id = _header_value(event.id)
    found = {
        "ce-specversion": "1.0",
        "ce-id": event_id,
        "ce-type": _header_value(event.type),
        "ce-source": _header_value(event.source),
        "ce-time": rfc3339(event.time),
        "ce-subject": _header_value(event.about),
        "content-type": CONTENT_TYPE,
        MESSAGE_ID_HEADER: event_id,
    }
    if _TRACEPARENT.fullmatch(event.traceparent):
        found["traceparent"] = event.traceparent
    return found


def _header_value(text: str) -> str:
    return quote(text, safe=_HEADER_SAFE, errors="surrogatepass")
