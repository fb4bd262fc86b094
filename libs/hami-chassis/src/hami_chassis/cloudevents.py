"""CloudEvents 1.0, binary mode: the headers that go with the payload of an event on the bus."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

SPEC_VERSION = "1.0"
ID = "ce-id"
TYPE = "ce-type"
SOURCE = "ce-source"
TIME = "ce-time"
SUBJECT = "ce-subject"
CONTENT_TYPE = "content-type"
MESSAGE_ID = "Nats-Msg-Id"
TRACE_PARENT = "traceparent"


def event_headers(
    *,
    event_id: str,
    event_type: str,
    source: str,
    time: datetime | str,
    subject: str = "",
    content_type: str = "application/json",
    traceparent: str = "",
) -> dict[str, str]:
    """The headers of one event. `event_id` is also the id by which JetStream drops duplicates."""
    headers = {
        "ce-specversion": SPEC_VERSION,
        ID: event_id,
        TYPE: event_type,
        SOURCE: source,
        TIME: time if isinstance(time, str) else rfc3339(time),
        CONTENT_TYPE: content_type,
        MESSAGE_ID: event_id,
    }
    if subject:
        headers[SUBJECT] = subject
    if traceparent:
        headers[TRACE_PARENT] = traceparent
    return headers


def event_id(headers: Mapping[str, str]) -> str:
    """The id of an event from its headers; empty when it has none."""
    return headers.get(ID) or headers.get(MESSAGE_ID) or ""


def rfc3339(moment: datetime) -> str:
    """In UTC with milliseconds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
