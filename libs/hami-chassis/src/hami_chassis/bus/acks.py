"""Publishing to streams in batches: all are sent, then all acknowledgements are awaited together.

nats-py's own `publish_async` waits for a semaphore per message and loses one of its places for ever with every
publication that fails before it was sent, which an outbox that retries for hours would run into.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import BadHeaderError, BadSubjectError, MaxPayloadError
from nats.errors import Error as NatsError

from hami_chassis.bus.outbox import Outgoing


class Fate(Enum):
    """What became of one publication."""

    STORED = "stored"
    AGAIN = "again"
    """No answer, or the stream cannot take it now."""
    NO_STREAM = "no-stream"
    """No stream wants this subject (any more)."""
    REFUSED = "refused"
    """It can never be stored: too large, not valid, or not allowed."""


class _AckError(msgspec.Struct, frozen=True):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Ack(msgspec.Struct, frozen=True):
    error: _AckError | None = None


_MESSAGE_TOO_LARGE = 10054  # JetStream's error code for a message beyond the stream's limit


class AckedPublisher:
    """Publishes through one connection."""

    def __init__(self, client: Client, *, ack_timeout_seconds: float) -> None:
        self._client = client
        self._ack_timeout_seconds = ack_timeout_seconds
        self._inbox = client.new_inbox()
        self._waiting: dict[str, tuple[str, asyncio.Future[Fate]]] = {}
        self._number = 0

    async def start(self) -> None:
        """Subscribes to the acknowledgements; the library repeats that after a reconnect."""
        await self._client.subscribe(f"{self._inbox}.*", cb=self._on_ack)

    async def publish(self, batch: Sequence[Outgoing]) -> list[Fate]:
        """What became of each, in the order of the batch."""
        loop = asyncio.get_running_loop()
        fates: list[asyncio.Future[Fate]] = []
        tokens: list[str] = []
        try:
            for message in batch:
                self._number += 1
                token = str(self._number)
                waiter: asyncio.Future[Fate] = loop.create_future()
                self._waiting[token] = (message.subject, waiter)
                tokens.append(token)
                fates.append(waiter)
                await self._send(message, token, waiter)
            await asyncio.wait(fates, timeout=self._ack_timeout_seconds)
            return [waiter.result() if waiter.done() else Fate.AGAIN for waiter in fates]
        finally:
            for token in tokens:
                self._waiting.pop(token, None)

    def refuse(self, subject: str) -> None:
        """The server does not let this user publish there: it answers nothing, so its error is taken as the answer."""
        for waiting_subject, waiter in self._waiting.values():
            if waiting_subject == subject and not waiter.done():
                waiter.set_result(Fate.REFUSED)

    async def _send(self, message: Outgoing, token: str, waiter: asyncio.Future[Fate]) -> None:
        try:
            if not self._client.is_connected:
                waiter.set_result(Fate.AGAIN)
                return
            await self._client.publish(
                message.subject,
                message.payload,
                reply=f"{self._inbox}.{token}",
                headers=dict(message.headers),
            )
        except (BadSubjectError, BadHeaderError, MaxPayloadError):
            waiter.set_result(Fate.REFUSED)
        except (NatsError, OSError):
            waiter.set_result(Fate.AGAIN)

    async def _on_ack(self, message: Msg) -> None:
        _, waiter = self._waiting.get(message.subject.rpartition(".")[2], ("", None))
        if waiter is None or waiter.done():
            return
        if (message.headers or {}).get("Status") == "503":
            waiter.set_result(Fate.NO_STREAM)
            return
        try:
            error = msgspec.json.decode(message.data, type=_Ack).error
        except msgspec.DecodeError:
            waiter.set_result(Fate.NO_STREAM)  # answered by something that is not a stream
            return
        if error is None:
            waiter.set_result(Fate.STORED)
        elif error.err_code == _MESSAGE_TOO_LARGE:
            waiter.set_result(Fate.REFUSED)
        else:
            waiter.set_result(Fate.AGAIN)
