"""Durable consumers: each message handled, then acknowledged; repetitions recognised by their id."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import ConnectionReconnectingError
from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from hami_chassis.bus.messages import Message, from_stream
from hami_chassis.bus.seen import SeenIds
from hami_chassis.errors import Permanent, Transient
from hami_chassis.log import get_logger
from hami_chassis.metrics import ChassisMetrics
from hami_chassis.retry import DEFAULT_BACKOFF

log = get_logger("bus")

Handle = Callable[[Message], Awaitable[None]]

_BATCH = 256
_HEARTBEAT_SECONDS = 5.0
_PULL = msgspec.json.encode(
    {"batch": _BATCH, "expires": 30_000_000_000, "idle_heartbeat": int(_HEARTBEAT_SECONDS * 1e9)}  # nanoseconds
)
_HEARTBEAT = "100"
_EXPIRED = frozenset({"404", "408"})


class DurableConsumer(msgspec.Struct, frozen=True, kw_only=True):
    """A place in a stream that the server remembers by its name."""

    stream: str
    name: str
    subjects: Sequence[str] = ()
    """Only these of the stream's subjects; empty is all."""
    from_now: bool = False
    """Begin with what comes after the first start, instead of with everything that is stored."""
    ack_seconds: float = 30.0
    """A message not acknowledged within this time is delivered again."""
    max_deliveries: int = -1
    """-1: for ever."""
    inactive_seconds: float = 0.0
    """The server forgets a consumer nobody asked for so long; 0 never."""

    def config(self) -> ConsumerConfig:
        """In the words of the server."""
        return ConsumerConfig(
            durable_name=self.name,
            deliver_policy=DeliverPolicy.NEW if self.from_now else DeliverPolicy.ALL,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=self.ack_seconds,
            max_deliver=self.max_deliveries,
            filter_subjects=list(self.subjects) or None,
            inactive_threshold=self.inactive_seconds or None,
        )


class ConsumerLoop:
    """Pulls for one consumer and hands each message to its handler, one after another.

    The handler returns when the message is done. It raises Transient to get it again later and Permanent to refuse
    it for good; both are logged and counted. A message whose id was done before is acknowledged without the handler.
    """

    def __init__(self, consumer: DurableConsumer, handle: Handle, metrics: ChassisMetrics) -> None:
        self._consumer = consumer
        self._handle = handle
        self._metrics = metrics
        self._done = SeenIds()

    async def run(self, client: Client, disconnected: asyncio.Event) -> None:
        """Consumes until cancelled, or until the connection is lost or fails (the errors of nats-py).

        Raises NotFoundError when the server has lost the stream or the consumer.
        """
        config = self._consumer
        jetstream = client.jetstream()
        await jetstream.add_consumer(config.stream, config.config())
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        try:
            while True:
                await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{config.stream}.{config.name}", _PULL, reply=inbox)
                if not await self._take_pulled(subscription, disconnected):
                    # Silence and refusals look alike: only asking tells whether the consumer still exists.
                    await jetstream.consumer_info(config.stream, config.name)
        finally:
            await _unsubscribe(subscription)

    async def _take_pulled(self, subscription: Subscription, disconnected: asyncio.Event) -> bool:
        """Handles messages as they arrive. False when the pull ended without saying that it simply expired."""
        taken = 0
        while taken < _BATCH:
            try:
                raw = await _next(subscription, disconnected)
            except TimeoutError:
                return False
            status = (raw.headers or {}).get("Status", "")
            if status == _HEARTBEAT:
                continue
            if status:
                return status in _EXPIRED
            await self._take(raw)
            taken += 1
        return True

    async def _take(self, raw: Msg) -> None:
        message = from_stream(raw)
        if message.id and message.id in self._done:
            await raw.ack()
            self._count("duplicate")
            return
        try:
            await self._handle(message)
        except Transient as error:
            delay = error.retry_after_seconds or DEFAULT_BACKOFF.delay_seconds(message.deliveries)
            log.warning("message-again", consumer=self._consumer.name, subject=message.subject, error=str(error))
            await raw.nak(delay=delay)
            self._count("again")
        except Permanent as error:
            log.warning("message-refused", consumer=self._consumer.name, subject=message.subject, error=str(error))
            await raw.term()
            self._count("refused")
        else:
            self._done.add(message.id)
            await raw.ack()
            self._count("done")

    def _count(self, end: str) -> None:
        self._metrics.bus_consumed.labels(self._consumer.name, end).inc()


async def _next(subscription: Subscription, disconnected: asyncio.Event) -> Msg:
    """The next message. A lost connection ends the wait at once: the server forgets pulls with it."""
    if subscription.pending_msgs:
        return await subscription.next_msg(timeout=_HEARTBEAT_SECONDS)
    arrival = asyncio.create_task(subscription.next_msg(timeout=3 * _HEARTBEAT_SECONDS))
    loss = asyncio.create_task(disconnected.wait())
    try:
        await asyncio.wait([arrival, loss], return_when=asyncio.FIRST_COMPLETED)
        if arrival.done():
            return arrival.result()
        raise ConnectionReconnectingError
    finally:
        arrival.cancel()
        loss.cancel()
        await asyncio.wait([arrival, loss])


async def _unsubscribe(subscription: Subscription) -> None:
    try:
        await subscription.unsubscribe()
    except NatsError as error:
        log.debug("not-unsubscribed", error=str(error))
