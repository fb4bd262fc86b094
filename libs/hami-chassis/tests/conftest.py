"""Real servers on loopback for the tests of the chassis."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hami_chassis.metrics import ChassisMetrics
from prometheus_client import CollectorRegistry


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class NatsServer:
    """A nats-server with JetStream that can be stopped, and started again with or without its data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._generation = 0
        self.port = free_port()
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def start(self, *, keep_data: bool = True, options: tuple[str, ...] = ()) -> None:
        if not keep_data:
            self._generation += 1
        data = self._folder / f"data-{self._generation}"
        binary = Path(sys.executable).with_name("nats-server")
        self._process = await asyncio.create_subprocess_exec(
            str(binary), "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(data), *options,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                await asyncio.sleep(0.01)
                continue
            writer.close()
            await writer.wait_closed()
            return

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        self._process = None


@pytest.fixture
async def nats_server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """Not started yet."""
    server = NatsServer(tmp_path)
    yield server
    await server.stop()


@pytest.fixture
def metrics() -> ChassisMetrics:
    return ChassisMetrics(CollectorRegistry())
