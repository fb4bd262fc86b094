"""The bus: one connection, for ever renewed, and everything that runs over it.

publish() ──▶ outbox ──▶ acknowledged by a stream, or back to the outbox
subscribe(), consume(), serve() are declared before `run` and are there whenever NATS is
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from nats.aio.client import Client
from nats.errors import NoRespondersError, SlowConsumerError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from hami_chassis.bus.consumers import ConsumerLoop, DurableConsumer
from hami_chassis.bus.messages import Message, from_nats, from_stream
from hami_chassis.bus.outbox import Outgoing
from hami_chassis.bus.publishing import BUS_BACKOFF, NATS_ERRORS, OnOverflow, Publishing, raise_if_cancelled
from hami_chassis.bus.queries import MicroService, Serving
from hami_chassis.bus.settings import BusSettings, tls_context
from hami_chassis.bus.streams import Stream
from hami_chassis.errors import Permanent, Transient
from hami_chassis.log import get_logger
from hami_chassis.metrics import ChassisMetrics
from hami_chassis.retry import Retries

log = get_logger("bus")

Handle = Callable[[Message], Awaitable[None]]

_FORBIDDEN_SUBJECT = re.compile(r'permissions violation for publish to "([^"]+)"', re.IGNORECASE)
_SETTLED_SECONDS = 5.0  # what ran so long counts as having worked


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
        self._tls = tls_context(settings)
        self._connected = asyncio.Event()
        self._disconnected = asyncio.Event()
        self._publishing = Publishing(
            settings, metrics=metrics, streams=streams, on_overflow=on_overflow, connected=self._connected
        )
        self._subscriptions: list[tuple[str, str, Handle]] = []
        self._consumers: list[ConsumerLoop] = []
        self._servings: list[Serving] = []
        self._client: Client | None = None
        self._outage_told = False

    # ---- declared before run ---------------------------------------------------------------------------------

    def subscribe(self, subject: str, handle: Handle, *, queue: str = "") -> None:
        """A plain subscription: a hint, lost while NATS is away. With `queue` one member of the group gets each.

        A handler that raises Transient or Permanent loses that message, which is logged.
        """
        self._subscriptions.append((subject, queue, handle))

    def consume(self, consumer: DurableConsumer, handle: Handle) -> None:
        """A durable consumer; see `ConsumerLoop` for what the handler may raise."""
        self._consumers.append(ConsumerLoop(consumer, handle, self._metrics))

    def serve(self, service: MicroService, *, active: bool = True) -> Serving:
        """Answers queries, while the result is active."""
        serving = Serving(service, active=active)
        self._servings.append(serving)
        return serving

    # ---- at any time -----------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether NATS is connected at the moment. Never a condition of readiness."""
        return self._connected.is_set()

    @property
    def waiting(self) -> int:
        """How many events are not yet acknowledged."""
        return self._publishing.waiting

    def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> None:
        """Queues one event for its stream; `headers` carry `Nats-Msg-Id` (`hami_chassis.cloudevents`). Never waits."""
        if not self._settings.servers:
            self._metrics.bus_dropped.labels("no-bus").inc()
            return
        self._publishing.put(Outgoing(subject, payload, headers))

    async def request(self, subject: str, payload: bytes, *, timeout_seconds: float = 5.0) -> Message:
        """Asks a query. Raises Transient when nobody answers in time."""
        client = self._client
        if client is None or not self.connected:
            raise Transient(f"query {subject}: NATS is not connected")
        try:
            return from_nats(await client.request(subject, payload, timeout=timeout_seconds))
        except NoRespondersError as error:
            raise Transient(f"query {subject}: nobody answers it") from error
        except NATS_ERRORS as error:
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
        except NATS_ERRORS as error:
            raise Transient(f"stream {stream}: {str(error) or type(error).__name__}") from error

    async def wait_connected(self) -> None:
        """Returns once NATS is connected."""
        await self._connected.wait()

    async def wait_published(self) -> None:
        """Returns once everything that was published so far is acknowledged or given up."""
        await self._publishing.drained.wait()

    # ---- the root task ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Connects, and connects again, until cancelled; then publishes what waits, for `flush_seconds` at most."""
        if not self._settings.servers:
            log.warning("bus-disabled", note="bus.servers is empty: no events are published")
            await asyncio.Event().wait()
        retries = Retries(BUS_BACKOFF)
        while True:
            client = Client()
            closed = asyncio.Event()
            try:
                await self._connect(client, closed)
                retries.succeeded()
                await self._use(client, closed)
            except NATS_ERRORS as error:
                log.warning("bus-interrupted", error=str(error) or type(error).__name__)
            finally:
                self._note_connected(False)
                self._client = None
                with suppress(*NATS_ERRORS):
                    await client.close()
            await asyncio.sleep(retries.delay_after())

    async def _connect(self, client: Client, closed: asyncio.Event) -> None:
        async def on_error(error: Exception) -> None:
            self._note_error(client, error)

        async def on_disconnected() -> None:
            self._note_connected(False)

        async def on_connected() -> None:
            self._outage_told = False
            self._publishing.make_streams_again()
            self._note_connected(True)
            url = client.connected_url
            log.info("bus-connected", server=url.netloc.rpartition("@")[2] if url is not None else "")

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

    def _note_error(self, client: Client, error: Exception) -> None:
        if isinstance(error, SlowConsumerError):
            self._metrics.bus_slow_subscriptions.inc()
            log.warning("subscription-slow", subject=error.subject)
        elif forbidden := _FORBIDDEN_SUBJECT.search(str(error)):
            self._publishing.refuse(forbidden[1])
        elif client.is_connected:
            log.warning("bus-error", error=str(error) or type(error).__name__)
        elif not self._outage_told:
            self._outage_told = True  # one line an outage, not one a try
            log.warning("bus-not-connected", servers=list(self._settings.servers), error=str(error))

    def _note_connected(self, connected: bool) -> None:
        here, gone = (self._connected, self._disconnected) if connected else (self._disconnected, self._connected)
        gone.clear()
        here.set()
        self._metrics.bus_connected.set(int(connected))

    async def _use(self, client: Client, closed: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            works: list[Coroutine[Any, Any, None]] = [self._again(client, lambda: self._publishing.run(client))]
            works += [self._again(client, partial(serving.run, client)) for serving in self._servings]
            works += [self._again(client, partial(self._receive, client, *each)) for each in self._subscriptions]
            works += [self._again(client, partial(loop.run, client, self._disconnected)) for loop in self._consumers]
            tasks = [group.create_task(work) for work in works]
            await closed.wait()
            for task in tasks:
                task.cancel()

    async def _again(self, client: Client, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Does the work over this connection, anew whenever NATS interrupts it."""
        retries = Retries(BUS_BACKOFF)
        loop = asyncio.get_running_loop()
        while not client.is_closed:
            raise_if_cancelled()
            await self._connected.wait()
            began = loop.time()
            try:
                await work()
            except NotFoundError:
                self._publishing.make_streams_again()
            except NATS_ERRORS as error:
                log.debug("bus-work-interrupted", error=str(error) or type(error).__name__)
            if loop.time() - began > _SETTLED_SECONDS:
                retries.succeeded()
            await asyncio.sleep(retries.delay_after())

    async def _receive(self, client: Client, subject: str, queue: str, handle: Handle) -> None:
        """The library subscribes again by itself after a reconnect; the iteration ends when the client is closed."""
        subscription = await client.subscribe(subject, queue=queue)
        async for message in subscription.messages:
            try:
                await handle(from_nats(message))
            except (Transient, Permanent) as error:
                log.warning("message-refused", subject=message.subject, error=str(error))
