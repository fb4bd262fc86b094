"""The bus: one connection, for ever renewed, and everything that runs over it.

publish() ──▶ outbox ──▶ acknowledged by a stream, or back to the outbox
subscribe(), consume(), serve() are declared before `run` and are there whenever NATS is
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError, SlowConsumerError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from hami_chassis.bus.acks import AckedPublisher, Fate
from hami_chassis.bus.consumers import ConsumerLoop, DurableConsumer
from hami_chassis.bus.messages import Message, from_nats, from_stream
from hami_chassis.bus.outbox import Outbox, Outgoing
from hami_chassis.bus.queries import MicroService, start_service
from hami_chassis.bus.settings import BusSettings, tls_context
from hami_chassis.bus.streams import Stream, ensure_streams
from hami_chassis.errors import Permanent, Transient
from hami_chassis.log import get_logger
from hami_chassis.metrics import ChassisMetrics
from hami_chassis.retry import Backoff, Retries

log = get_logger("bus")

Handle = Callable[[Message], Awaitable[None]]
OnOverflow = Callable[[int], Awaitable[None]]

_BACKOFF = Backoff(first_seconds=0.1, limit_seconds=5.0)
_TRIES_WITHOUT_STREAM = 20
_NATS_ERRORS = (NatsError, OSError, TimeoutError)


class Bus:
    """Root task `run`. Everything else may be called at any time and never waits for NATS, `request` apart."""

    def __init__(
        self,
        settings: BusSettings,
        *,
        name: str,
        metrics: ChassisMetrics,
        streams: Sequence[Stream] = (),
        on_overflow: OnOverflow | None = None,
    ) -> None:
        """`on_overflow(dropped)` runs once NATS takes events again after some had to be dropped."""
        self._settings = settings
        self._name = name
        self._metrics = metrics
        self._streams = streams
        self._on_overflow = on_overflow
        self._tls = tls_context(settings)
        self._outbox = Outbox(max_messages=settings.outbox_max_messages, max_bytes=settings.outbox_max_bytes)
        self._outbox_filled = asyncio.Event()
        self._subscriptions: list[tuple[str, str, Handle]] = []
        self._consumers: list[ConsumerLoop] = []
        self._services: list[MicroService] = []
        self._client: Client | None = None
        self._connected = asyncio.Event()
        self._disconnected = asyncio.Event()
        self._streams_due = True
        self._in_flight = 0
        self._drained = asyncio.Event()
        self._drained.set()

    # ---- declared before run ---------------------------------------------------------------------------------

    def subscribe(self, subject: str, handle: Handle, *, queue: str = "") -> None:
        """A plain subscription: a hint, lost while NATS is away. With `queue` one member of the group gets each.

        A handler that raises Transient or Permanent loses that message, which is logged.
        """
        self._subscriptions.append((subject, queue, handle))

    def consume(self, consumer: DurableConsumer, handle: Handle) -> None:
        """A durable consumer; see `ConsumerLoop` for what the handler may raise."""
        self._consumers.append(ConsumerLoop(consumer, handle, self._metrics))

    def serve(self, service: MicroService) -> None:
        """Answers queries."""
        self._services.append(service)

    # ---- at any time -----------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether NATS is connected at the moment. Never a condition of readiness."""
        return self._connected.is_set()

    @property
    def waiting(self) -> int:
        """How many events are not yet acknowledged."""
        return len(self._outbox) + self._in_flight

    def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> None:
        """Queues one event for its stream; `headers` carry `Nats-Msg-Id` (`hami_chassis.cloudevents`). Never waits."""
        if not self._settings.servers:
            self._metrics.bus_dropped.labels("no-bus").inc()
            return
        dropped = self._outbox.put(Outgoing(subject, payload, headers))
        if dropped:
            self._metrics.bus_dropped.labels("overflow").inc(dropped)
        self._outbox_filled.set()
        self._note_waiting()

    async def request(self, subject: str, payload: bytes, *, timeout_seconds: float = 5.0) -> Message:
        """Asks a query. Raises Transient when nobody answers in time."""
        client = self._client
        if client is None or not self.connected:
            raise Transient(f"query {subject}: NATS is not connected")
        try:
            return from_nats(await client.request(subject, payload, timeout=timeout_seconds))
        except NoRespondersError as error:
            raise Transient(f"query {subject}: nobody answers it") from error
        except _NATS_ERRORS as error:
            raise Transient(f"query {subject}: {str(error) or 'no answer in time'}") from error

    async def last_per_subject(self, stream: str, subject: str) -> AsyncGenerator[Message]:
        """The last stored message of every subject that matches. Raises Transient when NATS or the stream is away."""
        client = self._client
        if client is None or not self.connected:
            raise Transient(f"stream {stream}: NATS is not connected")
        jetstream = client.jetstream()
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.LAST_PER_SUBJECT,
            ack_policy=AckPolicy.NONE,
            inactive_threshold=60.0,
            mem_storage=True,
        )
        try:
            subscription = await jetstream.pull_subscribe(subject, stream=stream, config=config)
            remaining = (await subscription.consumer_info()).num_pending or 0
            while remaining > 0:
                for message in await subscription.fetch(
                    min(remaining, 256), timeout=self._settings.ack_timeout_seconds
                ):
                    remaining -= 1
                    yield from_stream(message)
            await subscription.unsubscribe()
        except _NATS_ERRORS as error:
            raise Transient(f"stream {stream}: {str(error) or type(error).__name__}") from error

    def _note_connected(self, connected: bool) -> None:
        here, gone = (self._connected, self._disconnected) if connected else (self._disconnected, self._connected)
        gone.clear()
        here.set()
        self._metrics.bus_connected.set(int(connected))

    def _note_waiting(self) -> None:
        self._metrics.bus_outbox.set(self.waiting)
        if self.waiting:
            self._drained.clear()
        else:
            self._drained.set()

    async def wait_connected(self) -> None:
        """Returns once NATS is connected."""
        await self._connected.wait()

    async def wait_published(self) -> None:
        """Returns once everything that was published so far is acknowledged or given up."""
        await self._drained.wait()

    # ---- the root task ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Connects, and connects again, until cancelled; then publishes what waits, for `flush_seconds` at most."""
        if not self._settings.servers:
            log.warning("bus-disabled", note="bus.servers is empty: no events are published")
            await asyncio.Event().wait()
        retries = Retries(_BACKOFF)
        while True:
            client = Client()
            closed = asyncio.Event()
            try:
                await self._connect(client, closed)
                retries.succeeded()
                await self._use(client, closed)
            except _NATS_ERRORS as error:
                log.warning("bus-interrupted", error=str(error) or type(error).__name__)
            finally:
                self._note_connected(False)
                self._client = None
                with suppress(*_NATS_ERRORS):
                    await client.close()
            await asyncio.sleep(retries.delay_after())

    async def _connect(self, client: Client, closed: asyncio.Event) -> None:
        failing = False

        async def on_error(error: Exception) -> None:
            nonlocal failing
            if isinstance(error, SlowConsumerError):
                self._metrics.bus_slow_subscriptions.inc()
                log.warning("subscription-slow", subject=error.subject)
            elif client.is_connected:
                log.warning("bus-error", error=str(error) or type(error).__name__)
            elif not failing:
                failing = True  # one line an outage, not one a try
                log.warning("bus-not-connected", servers=list(self._settings.servers), error=str(error))

        async def on_disconnected() -> None:
            self._note_connected(False)

        async def on_connected() -> None:
            nonlocal failing
            failing = False
            self._streams_due = True
            self._note_connected(True)
            log.info(
                "bus-connected", server=client.connected_url.netloc.rpartition("@")[2] if client.connected_url else ""
            )

        async def on_closed() -> None:
            closed.set()

        options: dict[str, Any] = {"tls": self._tls} if self._tls is not None else {}
        if self._settings.user:
            options |= {"user": self._settings.user, "password": self._settings.password}
        elif self._settings.token:
            options |= {"token": self._settings.token}
        await client.connect(
            list(self._settings.servers),
            name=self._name,
            max_reconnect_attempts=-1,
            reconnect_time_wait=self._settings.reconnect_seconds,  # type: ignore[arg-type]  # used as seconds
            connect_timeout=5,
            ping_interval=20,
            error_cb=on_error,
            disconnected_cb=on_disconnected,
            reconnected_cb=on_connected,
            closed_cb=on_closed,
            **options,
        )
        self._client = client
        await on_connected()

    async def _use(self, client: Client, closed: asyncio.Event) -> None:
        publisher = AckedPublisher(client, ack_timeout_seconds=self._settings.ack_timeout_seconds)
        try:
            await publisher.start()
            for service in self._services:
                await start_service(client, service)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._publish_for_ever(client, publisher, group))]
                tasks += [group.create_task(self._receive(client, *each)) for each in self._subscriptions]
                tasks += [group.create_task(self._consume_for_ever(client, loop)) for loop in self._consumers]
                await closed.wait()
                for task in tasks:
                    task.cancel()
        finally:
            if client.is_connected and len(self._outbox):
                await self._flush(client, publisher)

    async def _flush(self, client: Client, publisher: AckedPublisher) -> None:
        retries = Retries(_BACKOFF)
        with suppress(TimeoutError, *_NATS_ERRORS):
            async with asyncio.timeout(self._settings.flush_seconds):
                while len(self._outbox):
                    if self._streams_due:
                        await self._make_streams(client)
                    if not await self._publish_batch(publisher):
                        await asyncio.sleep(retries.delay_after())
        if len(self._outbox):
            log.warning("events-unpublished", events=len(self._outbox))

    # ---- publishing ------------------------------------------------------------------------------------------

    async def _publish_for_ever(self, client: Client, publisher: AckedPublisher, group: asyncio.TaskGroup) -> None:
        retries = Retries(_BACKOFF)
        while True:
            _raise_if_cancelled()
            await self._connected.wait()
            if self._streams_due and not await self._make_streams(client):
                # Somebody else may have made them: publishing is tried all the same.
                await asyncio.sleep(retries.delay_after())
            if not len(self._outbox):
                if (dropped := self._outbox.take_dropped()) and self._on_overflow is not None:
                    log.warning("outbox-had-overflowed", dropped=dropped)
                    group.create_task(_call(self._on_overflow, dropped))
                self._outbox_filled.clear()
                await self._outbox_filled.wait()
                continue
            if await self._publish_batch(publisher):
                retries.succeeded()
            else:
                await asyncio.sleep(retries.delay_after())

    async def _make_streams(self, client: Client) -> bool:
        self._streams_due = False
        try:
            await ensure_streams(client.jetstream(timeout=self._settings.ack_timeout_seconds), self._streams)
        except _NATS_ERRORS as error:
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
            dropped = self._outbox.put_back(returned)
            if dropped:
                self._metrics.bus_dropped.labels("overflow").inc(dropped)
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

    # ---- receiving -------------------------------------------------------------------------------------------

    async def _receive(self, client: Client, subject: str, queue: str, handle: Handle) -> None:
        """The library subscribes again by itself after a reconnect; the iteration ends when the client is closed."""
        subscription = await client.subscribe(subject, queue=queue)
        async for message in subscription.messages:
            try:
                await handle(from_nats(message))
            except (Transient, Permanent) as error:
                log.warning("message-refused", subject=message.subject, error=str(error))

    async def _consume_for_ever(self, client: Client, loop: ConsumerLoop) -> None:
        retries = Retries(_BACKOFF)
        while not client.is_closed:
            _raise_if_cancelled()
            await self._connected.wait()
            try:
                await loop.run(client, self._disconnected)
            except NotFoundError:
                self._streams_due = True
                self._outbox_filled.set()  # wakes the publisher, which makes the streams
            except _NATS_ERRORS as error:
                log.debug("consumer-interrupted", error=str(error) or type(error).__name__)
            await asyncio.sleep(retries.delay_after())


async def _call(callback: OnOverflow, dropped: int) -> None:
    await callback(dropped)


def _raise_if_cancelled() -> None:
    """nats-py swallows a cancellation that arrives while it flushes; the task still knows of it."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
