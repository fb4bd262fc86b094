"""From the outbox to the streams: batches, acknowledgements, streams made when they are missing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec
from nats.aio.client import Client
from nats.errors import Error as NatsError

from hami_chassis.bus.acks import AckedPublisher, Fate
from hami_chassis.bus.outbox import Outbox, Outgoing
from hami_chassis.bus.settings import BusSettings
from hami_chassis.bus.streams import Stream, ensure_streams
from hami_chassis.errors import Permanent, Transient
from hami_chassis.log import get_logger
from hami_chassis.metrics import ChassisMetrics
from hami_chassis.retry import Backoff, Retries

log = get_logger("bus")

OnOverflow = Callable[[int], Awaitable[None]]

NATS_ERRORS = (NatsError, OSError, TimeoutError)
BUS_BACKOFF = Backoff(first_seconds=0.1, limit_seconds=5.0)
_TRIES_WITHOUT_STREAM = 20


class Publishing:
    """Holds the outbox across connections and empties it over the one there is."""

    def __init__(
        self,
        settings: BusSettings,
        *,
        metrics: ChassisMetrics,
        streams: Sequence[Stream],
        on_overflow: OnOverflow | None,
        connected: asyncio.Event,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._streams = streams
        self._on_overflow = on_overflow
        self._connected = connected
        self._outbox = Outbox(max_messages=settings.outbox_max_messages, max_bytes=settings.outbox_max_bytes)
        self._wake = asyncio.Event()
        self._streams_due = True
        self._in_flight = 0
        self._publisher: AckedPublisher | None = None
        self.drained = asyncio.Event()
        """Set while nothing waits."""
        self.drained.set()

    @property
    def waiting(self) -> int:
        """How many events are not yet acknowledged."""
        return len(self._outbox) + self._in_flight

    def put(self, message: Outgoing) -> None:
        """Queues one message."""
        self._count_overflow(self._outbox.put(message))
        self._wake.set()
        self._note_waiting()

    def make_streams_again(self) -> None:
        """Something says that a stream is missing, or the server is a new one."""
        self._streams_due = True
        self._wake.set()

    def refuse(self, subject: str) -> None:
        """The server does not allow publishing there."""
        if self._publisher is not None:
            self._publisher.refuse(subject)

    async def run(self, client: Client) -> None:
        """Publishes over this connection until cancelled; then what waits, for `flush_seconds` at most."""
        publisher = AckedPublisher(client, ack_timeout_seconds=self._settings.ack_timeout_seconds)
        self._publisher = publisher
        try:
            await publisher.start()
            async with asyncio.TaskGroup() as group:
                await self._publish_for_ever(client, publisher, group)
        finally:
            if client.is_connected and len(self._outbox):
                await self._flush(client, publisher)

    async def _publish_for_ever(self, client: Client, publisher: AckedPublisher, group: asyncio.TaskGroup) -> None:
        retries = Retries(BUS_BACKOFF)
        while True:
            raise_if_cancelled()
            await self._connected.wait()
            if self._streams_due and not await self._make_streams(client):
                # Somebody else may have made them: publishing is tried all the same.
                await asyncio.sleep(retries.delay_after())
            if not len(self._outbox):
                if dropped := self._outbox.take_dropped():
                    log.warning("outbox-had-overflowed", dropped=dropped)
                    if self._on_overflow is not None:
                        group.create_task(self._tell_overflow(self._on_overflow, dropped))
                if not self._streams_due:  # others may wait for a stream that has no event yet
                    self._wake.clear()
                    await self._wake.wait()
            elif await self._publish_batch(publisher):
                retries.succeeded()
            else:
                await asyncio.sleep(retries.delay_after())

    async def _flush(self, client: Client, publisher: AckedPublisher) -> None:
        retries = Retries(BUS_BACKOFF)
        with suppress(TimeoutError, *NATS_ERRORS):
            async with asyncio.timeout(self._settings.flush_seconds):
                while len(self._outbox):
                    if self._streams_due:
                        await self._make_streams(client)
                    if not await self._publish_batch(publisher):
                        await asyncio.sleep(retries.delay_after())
        if len(self._outbox):
            log.warning("events-unpublished", events=len(self._outbox))

    async def _make_streams(self, client: Client) -> bool:
        self._streams_due = False
        try:
            await ensure_streams(client.jetstream(timeout=self._settings.ack_timeout_seconds), self._streams)
        except NATS_ERRORS as error:
            self._streams_due = True
            log.warning("streams-not-ready", error=str(error) or type(error).__name__)
            return False
        return True

    async def _publish_batch(self, publisher: AckedPublisher) -> bool:
        """Publishes some of the outbox. False when something has to be tried again."""
        batch = self._outbox.take(self._settings.batch_messages)
        self._in_flight = len(batch)
        returned: list[Outgoing] = batch
        made = not self._streams_due
        try:
            fates = await publisher.publish(batch)
            returned = [
                kept for message, fate in zip(batch, fates, strict=True) if (kept := self._settle(message, fate, made))
            ]
        finally:
            self._in_flight = 0
            self._count_overflow(self._outbox.put_back(returned))
            self._note_waiting()
        self._metrics.bus_retried.inc(len(returned))
        return not returned

    def _settle(self, message: Outgoing, fate: Fate, streams_made: bool) -> Outgoing | None:
        """What is to be tried again, if anything."""
        if fate is Fate.STORED:
            self._metrics.bus_published.inc()
            return None
        if fate is Fate.AGAIN:
            return message
        if fate is Fate.NO_STREAM and not streams_made:
            return message
        if fate is Fate.NO_STREAM and message.without_stream < _TRIES_WITHOUT_STREAM:
            self._streams_due = True
            return msgspec.structs.replace(message, without_stream=message.without_stream + 1)
        self._metrics.bus_dropped.labels(fate.value).inc()
        log.error("event-given-up", subject=message.subject, cause=fate.value, size_bytes=message.size_bytes)
        return None

    async def _tell_overflow(self, callback: OnOverflow, dropped: int) -> None:
        try:
            await _call_until_done(callback, dropped)
        except asyncio.CancelledError:
            self._outbox.dropped += dropped  # the connection ended for good: it is told over the next one
            raise

    def _count_overflow(self, dropped: int) -> None:
        if dropped:
            self._metrics.bus_dropped.labels("overflow").inc(dropped)

    def _note_waiting(self) -> None:
        self._metrics.bus_outbox.set(self.waiting)
        if self.waiting:
            self.drained.clear()
        else:
            self.drained.set()


async def _call_until_done(callback: OnOverflow, dropped: int) -> None:
    """The callback reads the ledger and the streams, which may be away: it is called until it has done its work."""
    retries = Retries(BUS_BACKOFF)
    while True:
        try:
            await callback(dropped)
        except Transient as error:
            log.warning("republishing-interrupted", error=str(error))
            await asyncio.sleep(retries.delay_after(error))
        except Permanent as error:
            log.warning("republishing-given-up", error=str(error))
            return
        else:
            return


def raise_if_cancelled() -> None:
    """nats-py swallows a cancellation that arrives while it flushes; the task still knows of it."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
