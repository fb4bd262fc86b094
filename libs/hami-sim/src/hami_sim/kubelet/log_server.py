"""Container logs over HTTP(S), as the API server asks a kubelet for them.

One server serves all nodes of a process: names of pods are unique in a cluster, and every node may name the same port.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import BinaryIO

from aiohttp import web

from hami_sim.kubelet.processes import ContainerProcess
from hami_sim.kubelet.settings import LogServerSettings

_POLL_SECONDS = 0.1
_CHUNK_BYTES = 1 << 16
_UNKNOWN = ("sinceSeconds", "sinceTime", "timestamps")

FindProcess = Callable[[str, str, str, bool], ContainerProcess | None]
"""(namespace, pod, container, previous run) -> its process."""


class LogServer:
    """Start it, add every node's finder, read `port`."""

    def __init__(self, settings: LogServerSettings) -> None:
        self._address = settings.address
        self._tls: ssl.SSLContext | None = None
        if settings.certificate:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(settings.certificate, settings.key)
        self._finders: list[FindProcess] = []
        self._runner: web.AppRunner | None = None
        self.port = 0

    def add(self, find: FindProcess) -> None:
        """A node's containers."""
        self._finders.append(find)

    def remove(self, find: FindProcess) -> None:
        self._finders.remove(find)

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        app.router.add_get("/healthz", _healthz)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._address, 0, ssl_context=self._tls)
        await site.start()
        self.port = self._runner.addresses[0][1]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["LogServer"]:
        """Started for the block."""
        await self.start()
        try:
            yield self
        finally:
            await self.stop()

    async def stop(self) -> None:
        if self._runner:
            await self._runner.cleanup()

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        unknown = [name for name in _UNKNOWN if request.query.get(name, "false") != "false"]
        if unknown:
            raise web.HTTPBadRequest(text=f"the kubelet stand-in does not know {', '.join(unknown)}\n")
        try:
            tail = int(request.query["tailLines"]) if "tailLines" in request.query else None
            limit = int(request.query["limitBytes"]) if "limitBytes" in request.query else None
        except ValueError as error:
            raise web.HTTPBadRequest(text=f"{error}\n") from error
        names = request.match_info
        previous = request.query.get("previous") == "true"
        process = self._find(names["namespace"], names["pod"], names["container"], previous)
        if process is None or not process.log_path.exists():
            what = "previous terminated container" if previous else "container"
            raise web.HTTPNotFound(
                text=f'{what} "{names["container"]}" in pod "{names["pod"]}" not found or not started\n'
            )
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        await _send(response, process, tail, limit, follow=request.query.get("follow") == "true")
        await response.write_eof()
        return response

    def _find(self, namespace: str, pod: str, container: str, previous: bool) -> ContainerProcess | None:
        found = (find(namespace, pod, container, previous) for find in self._finders)
        return next((process for process in found if process is not None), None)


async def _healthz(_: web.Request) -> web.Response:
    return web.Response(text="ok")


async def _send(
    response: web.StreamResponse, process: ContainerProcess, tail: int | None, limit: int | None, *, follow: bool
) -> None:
    """The file stays open: what was written last can be read after the pod's folder is gone."""
    with await asyncio.to_thread(process.log_path.open, "rb") as file:
        await asyncio.to_thread(_skip_to_last_lines, file, tail)
        left = limit
        while left is None or left > 0:
            over = process.is_over()
            chunk = await asyncio.to_thread(file.read, _CHUNK_BYTES)
            if chunk:
                await response.write(chunk if left is None else chunk[:left])
                left = None if left is None else left - len(chunk)
            elif over or not follow:
                return
            else:
                await asyncio.sleep(_POLL_SECONDS)


def _skip_to_last_lines(file: BinaryIO, lines: int | None) -> None:
    """None: from the beginning."""
    if lines is None:
        return
    content = file.read()
    if lines <= 0:
        return
    end = len(content) - 1 if content.endswith(b"\n") else len(content)
    for _ in range(lines):
        end = content.rfind(b"\n", 0, end)
        if end < 0:
            break
    file.seek(max(end + 1, 0))
