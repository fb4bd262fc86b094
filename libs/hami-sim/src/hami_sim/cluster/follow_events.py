"""Follows the events of a cluster on NATS."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import msgspec
import nats
import nats.errors
from hami_model import events
from hami_model.events import subjects

from hami_sim.cluster.card_places import with_places
from hami_sim.cluster.errors import ClusterError
from hami_sim.cluster.usage_samples import connect

JsonObject = dict[str, Any]

EVERYTHING: Final = "hami.v1.>"
_QUERIES = subjects.query("x").removesuffix("x")
_USAGE_SAMPLES = frozenset(kind.__struct_config__.tag for kind in (events.UsageSampled, events.UsageNodeSampled))


class SeenEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One message as it came."""

    subject: str
    headers: dict[str, str]
    payload: bytes


async def follow(url: str, subject: str) -> AsyncIterator[SeenEvent]:
    """From now on, until the caller ends. Raises ClusterError when `subject` is none, NATS is away or goes away."""
    try:
        client = await connect(url)
    except (nats.errors.Error, OSError, TimeoutError) as error:
        raise ClusterError(f"NATS at {url} does not answer: {str(error) or type(error).__name__}") from error
    try:
        try:
            subscription = await client.subscribe(subject)
        except nats.errors.BadSubjectError as error:
            raise ClusterError(
                f"{subject!r} is no subject of NATS: words with dots between, such as {EVERYTHING}"
            ) from error
        async for message in subscription.messages:
            yield SeenEvent(subject=message.subject, headers=dict(message.headers or {}), payload=message.data)
        raise ClusterError(f"NATS at {url} went away")
    finally:
        await client.close()


async def lines(url: str, subject: str | None, places: Mapping[str, str], *, in_json: bool) -> AsyncIterator[bytes]:
    """Of events from now on, as `follow` does. Without a subject persons are spared usage samples and queries."""
    async for seen in follow(url, subject or EVERYTHING):
        if in_json:
            yield as_json(seen)
        elif subject is not None or not (is_usage_sample(seen) or is_query(seen)):
            yield with_places(as_text(seen), places).encode()


def is_usage_sample(seen: SeenEvent) -> bool:
    """One of those that every monitor publishes each few seconds of its cards and slices."""
    return seen.headers.get("ce-type") in _USAGE_SAMPLES


def is_query(seen: SeenEvent) -> bool:
    """Somebody's question to the scheduler, such as `explain`."""
    return seen.subject.startswith(_QUERIES)


def as_json(seen: SeenEvent) -> bytes:
    """One line: subject, headers and the payload, which is text where it is no JSON."""
    payload: Any
    try:
        payload = msgspec.json.decode(seen.payload)
    except msgspec.DecodeError:
        payload = seen.payload.decode(errors="replace")
    return msgspec.json.encode({"subject": seen.subject, "headers": seen.headers, "payload": payload})


def as_text(seen: SeenEvent) -> str:
    """One line for a person: when, what happened, about what, and what the event adds."""
    try:
        event = events.decode(seen.payload)
    except events.MalformedEvent:
        return f"{seen.subject}  {len(seen.payload)} bytes that are no event"
    if isinstance(event, events.UnknownEvent):
        return f"{event.time:%H:%M:%S}  {event.type}  (unknown to this build)"
    kind = event.type.removeprefix("io.hami.").removesuffix(".v1")
    return f"{event.time:%H:%M:%S}  {kind:<26}  {event.about}  {detail(event)}".rstrip()


def detail(event: events.Event) -> str:
    """What a line adds to kind and object."""
    added = ""
    match event:
        case events.AllocationEvent():
            held = [card.card_id for container in event.containers for card in container.cards]
            added = f"{event.node} {', '.join(dict.fromkeys(held))}"
        case events.PlacementUnschedulable() | events.AdmissionRejected():
            added = event.reason
        case events.PlacementPlaced():
            added = f"{event.node} ({event.nodes_fitting} of {event.nodes_considered} nodes fit)"
        case events.CardHealthChanged():
            added = f"{event.card_id} {'healthy' if event.healthy else 'unhealthy'} {event.cause}"
        case events.SliceNotEnforced():
            said_by = f", by its {event.control_from}" if event.reason == "opted-out" and event.control_from else ""
            added = f"{event.container} process {event.process} ({event.pid}): {event.reason}{said_by}"
        case events.OutOfBandUser():
            whose = f"pod {event.pod.namespace}/{event.pod.name}" if event.pod is not None else event.user
            added = (
                f"{', '.join(card.card_id for card in event.cards)} process {event.process} ({event.pid}) of {whose}"
            )
        case events.InventoryReported():
            added = f"{len(event.cards)} cards, {event.handoff}"
        case events.AdmissionAdmitted():
            added = ", ".join(change.path for change in event.changes)
    return added
