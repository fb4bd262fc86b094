"""What is still to be published: a queue in memory, bounded in messages and bytes. Pure; the bus empties it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

import msgspec


class Outgoing(msgspec.Struct, frozen=True):
    """One message to be stored in a stream."""

    subject: str
    payload: bytes
    headers: Mapping[str, str]
    without_stream: int = 0
    """How many times no stream wanted it."""

    @property
    def size_bytes(self) -> int:
        return len(self.payload) + len(self.subject)


class Outbox:
    """First in, first out. When it is full the oldest is dropped: what is newer says more about the present."""

    def __init__(self, *, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._queue: deque[Outgoing] = deque()
        self._bytes = 0
        self.dropped = 0
        """How many were dropped since `take_dropped`."""

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, message: Outgoing) -> int:
        """Appends. Returns how many old ones had to go."""
        self._queue.append(message)
        self._bytes += message.size_bytes
        return self._shrink()

    def take(self, limit: int) -> list[Outgoing]:
        """Removes and returns the oldest, at most `limit`."""
        batch = [self._queue.popleft() for _ in range(min(limit, len(self._queue)))]
        self._bytes -= sum(message.size_bytes for message in batch)
        return batch

    def put_back(self, messages: Iterable[Outgoing]) -> int:
        """Returns what could not be published to the front, in its order. Returns how many had to go."""
        returned = list(messages)
        self._queue.extendleft(reversed(returned))
        self._bytes += sum(message.size_bytes for message in returned)
        return self._shrink()

    def take_dropped(self) -> int:
        """How many were dropped since the last call."""
        dropped, self.dropped = self.dropped, 0
        return dropped

    def _shrink(self) -> int:
        gone = 0
        while len(self._queue) > self._max_messages or (self._bytes > self._max_bytes and len(self._queue) > 1):
            self._bytes -= self._queue.popleft().size_bytes
            gone += 1
        self.dropped += gone
        return gone
