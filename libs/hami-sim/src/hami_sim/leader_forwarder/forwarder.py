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
        self.listening = asyncio.Event()

    def close_connections(self) -> None:
        """Ends all connections to the leader of before."""
        for task in self._connections:
            task.cancel()

    async def run(self, host: str, port: int) -> None:
        """Until cancelled."""
        server = await asyncio.start_server(self._accept, host, port)
        self.listening.set()
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            self.close_connections()
            await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._wait_seconds):
                await self._leader_known.wait()
            address = self._leader()
            if address is None:
                return
            host, _, port = address.rpartition(":")
            there_reader, there_writer = await asyncio.open_connection(host, int(port))
        except (OSError, TimeoutError) as error:
            log.warning("leader-not-reached", address=self._leader(), error=str(error) or type(error).__name__)
            writer.close()
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_carry(reader, there_writer))
                both.create_task(_carry(there_reader, writer))
        finally:
            writer.close()
            there_writer.close()


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
