"""The stand-in's end of the process that forks shims: started when first needed, again when it died."""

import asyncio
import os
import socket
import sys
from pathlib import Path

from hami_sim.kubelet import shim

_SCRIPT = str(Path(shim.__file__).resolve())
_CHANNEL = 3


class ShimServer:
    """One serves all nodes of a process. Shims and containers outlive it."""

    def __init__(self) -> None:
        self._channel: socket.socket | None = None
        self._pid = 0

    async def start_shim(self, folder: Path) -> None:
        """Returns when the folder's shim has started its process, or has said why not. Raises OSError."""
        if await self._ask(folder):
            return
        # The server died with the request in its hands.
        self.close()
        if not await self._ask(folder):
            raise OSError(f"no shim came up for {folder}; its shim.log may say why")

    def close(self) -> None:
        """End the server, not its shims; a later start begins a new one."""
        if self._channel:
            self._channel.close()
            self._channel = None
            os.waitpid(self._pid, 0)

    async def _ask(self, folder: Path) -> bool:
        """False: nobody answered and there is no shim."""
        read_end, write_end = os.pipe()
        loop = asyncio.get_running_loop()
        told = asyncio.Event()
        loop.add_reader(read_end, told.set)
        try:
            try:
                self._send(folder, write_end)
            finally:
                os.close(write_end)
            await told.wait()
            return bool(os.read(read_end, 1)) or has_shim(folder)
        finally:
            loop.remove_reader(read_end)
            os.close(read_end)

    def _send(self, folder: Path, descriptor: int) -> None:
        message = [os.fsencode(folder)]
        try:
            socket.send_fds(self._channel or self._start_server(), message, [descriptor])
        except (BrokenPipeError, ConnectionResetError):
            self.close()
            socket.send_fds(self._start_server(), message, [descriptor])

    def _start_server(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = ours
        with theirs:
            self._pid = _spawn_server(theirs.fileno())
        return ours


def has_shim(folder: Path) -> bool:
    """A shim took the folder. An empty file says that a stand-in gave the start up."""
    try:
        return (folder / "shim.json").stat().st_size > 0
    except FileNotFoundError:
        return False


def _spawn_server(channel: int) -> int:
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", _SCRIPT, str(_CHANNEL)],
        {},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, channel, _CHANNEL),
        ],
        setsid=True,
    )
