"""Accepts connections and carries their bytes to the leader and back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hami_chassis.log import get_logger

log = get_logger("forwarder")

_CHUNK_BYTES = 65_536


class Forwarder:
    """Connections belong to the leader they were made to: when it changes they are closed, and callers dial again."""

    def __init__(
        self, *, leader: Callable[[], str | None], leader_known: asyncio.Event, wait_seconds: float = 5.0
    ) -> None:
        self._leader = leader
        self._leader_known = leader_known
        self._wait_seconds = wait_seconds
        self._connections: set[asyncio.Task[None]] = set()
        self._to_leader: set[asyncio.Task[None]] = set()
        """Of these, those that have reached it; the others wait for it."""
        self.listening = asyncio.Event()

    @property
    def connections(self) -> int:
        """How many callers are connected."""
        return len(self._connections)

    def close_connections(self) -> None:
        """Ends all connections to the leader of before."""
        for task in self._to_leader:
            task.cancel()

    async def run(self, host: str, port: int) -> None:
        """Until cancelled."""
        server = await asyncio.start_server(self._accept, host, port)
        self.listening.set()
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        task.add_done_callback(self._to_leader.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await self._dial()
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_carry(reader, there_writer))
                    both.create_task(_carry(there_reader, writer))
            finally:
                there_writer.close()
        except (OSError, TimeoutError) as error:
            log.warning("leader-not-reached", address=self._leader(), error=str(error) or type(error).__name__)
        finally:
            writer.close()

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the leader, which is waited for. Raises OSError, TimeoutError."""
        async with asyncio.timeout(self._wait_seconds):
            await self._leader_known.wait()
        address = self._leader()
        if address is None:
            raise ConnectionError("nobody leads any more")
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        if address != self._leader():
            writer.close()
            raise ConnectionError("another one leads by now")
        task = asyncio.current_task()
        if task is not None:
            self._to_leader.add(task)
        return reader, writer


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One direction until its end, which is passed on."""
    try:
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.close()  # the other direction then ends too
