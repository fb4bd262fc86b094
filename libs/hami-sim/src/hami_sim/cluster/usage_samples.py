"""The monitors' latest samples, read from the stream that keeps them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec
import nats
import nats.errors
import nats.js.errors
from hami_model import events
from hami_model.events import streams, subjects
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

FRESH = timedelta(seconds=60)
"""An older sample says nothing about now."""
CONNECT_SECONDS = 15  # one that does not run refuses at once
FETCH_SECONDS = 5.0
BATCH = 256


class UsageUnknownError(Exception):
    """NATS, or what the stream holds, could not be read."""


class UsageSamples(msgspec.Struct, frozen=True, kw_only=True):
    """By pod UID, container and card; and by card."""

    slices: dict[tuple[str, str, str], events.CardUsage]
    cards: dict[str, events.CardTelemetry]


async def latest_samples(url: str, now: datetime | None = None) -> UsageSamples:
    """What is not older than `FRESH`. Raises UsageUnknownError."""
    moment = now or datetime.now(tz=UTC)
    try:
        client = await connect(url)
        try:
            found = [events.decode(data) for data in await _last_messages(client)]
        finally:
            await client.close()
    except (nats.errors.Error, OSError, TimeoutError) as error:
        raise UsageUnknownError(f"{url}: {str(error) or type(error).__name__}") from error
    except events.MalformedEvent as error:
        raise UsageUnknownError(f"{url}: {error}") from error
    return samples_of(found, moment)


def samples_of(found: list[events.Event | events.UnknownEvent], now: datetime) -> UsageSamples:
    """Fresh samples, sorted by what they are about."""
    slices: dict[tuple[str, str, str], events.CardUsage] = {}
    cards: dict[str, events.CardTelemetry] = {}
    for event in found:
        if now - event.time > FRESH:
            continue
        if isinstance(event, events.UsageSampled):
            for container in event.containers:
                for usage in container.cards:
                    slices[event.pod.uid, container.container, usage.card_id] = usage
        elif isinstance(event, events.UsageNodeSampled):
            cards.update({card.card_id: card for card in event.cards})
    return UsageSamples(slices=slices, cards=cards)


async def connect(url: str) -> Client:
    """No second try, no reconnecting. Raises nats.errors.Error, OSError or TimeoutError."""
    async with asyncio.timeout(CONNECT_SECONDS):
        return await nats.connect(
            url, allow_reconnect=False, max_reconnect_attempts=1, connect_timeout=CONNECT_SECONDS, error_cb=_ignore
        )


async def _ignore(_error: Exception) -> None:
    """What matters is raised by the call that fails."""


async def _last_messages(client: Client) -> list[bytes]:
    stream = streams.stream_name("USAGE", prefix=subjects.DEFAULT_PREFIX)
    config = ConsumerConfig(
        deliver_policy=DeliverPolicy.LAST_PER_SUBJECT, ack_policy=AckPolicy.NONE, inactive_threshold=10.0,
        mem_storage=True,
    )  # fmt: skip
    found: list[bytes] = []
    try:
        async with asyncio.timeout(FETCH_SECONDS):
            subscription = await client.jetstream().pull_subscribe(subjects.everything(), stream=stream, config=config)
            remaining = (await subscription.consumer_info()).num_pending or 0
            while remaining > 0:
                batch = await subscription.fetch(min(remaining, BATCH), timeout=FETCH_SECONDS)
                found += [message.data for message in batch]
                remaining -= len(batch)
    except nats.js.errors.NotFoundError:
        return []  # no monitor has started yet
    return found
