"""HTTP servers: health, readiness and metrics; bounded bodies; errors as JSON without stack traces."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from hami_chassis.log import get_logger

log = get_logger("http")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
JSON = "application/json"
_BODY_UNREAD = frozenset({web.HTTPRequestEntityTooLarge.status_code, web.HTTPRequestTimeout.status_code})
"""After these the rest of the body is not read."""


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a server listens."""

    host: str = "127.0.0.1"
    """Address to bind; loopback unless the deployment says otherwise."""
    port: int = 0
    """TCP port; 0 takes a free one, which is written to the log."""


def json_error(status: int, message: str) -> web.Response:
    """The one shape of an error on the wire: `{"error": message}`."""
    return web.Response(status=status, body=msgspec.json.encode({"error": message}), content_type=JSON)


def json_response(body: bytes, *, status: int = 200) -> web.Response:
    """An answer from already encoded JSON."""
    return web.Response(status=status, body=body, content_type=JSON)


@web.middleware
async def json_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns every error into JSON; a defect is logged in full and answered with 500 and nothing about its inside."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        response = json_error(error.status, error.text or error.reason)
        if error.status in _BODY_UNREAD:
            response.force_close()
        return response
    except ConnectionResetError:
        raise
    except Exception as error:  # the boundary to the wire: logged in full, the caller gets 500
        log.exception("request-failed", path=request.path, error=str(error))
        return json_error(500, "internal error")


def new_app() -> web.Application:
    """An application whose errors are JSON. Bodies are read by `Bodies`, which bounds them."""
    return web.Application(middlewares=[json_errors])


Readiness = Mapping[str, Callable[[], bool]]
"""Named conditions; a process is ready when all of them hold (caches synced; never the bus)."""


def add_observation_routes(app: web.Application, *, registry: CollectorRegistry, ready: Readiness) -> None:
    """Adds `/healthz` (the loop turns), `/readyz` (503 names what is missing) and `/metrics`."""

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        missing = sorted(name for name, holds in ready.items() if not holds())
        if missing:
            return web.Response(status=503, text="".join(f"not ready: {name}\n" for name in missing))
        return web.Response(text="ok\n")

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)


class HttpServer:
    """One listening socket as a root task: `RootTask("http", server.run, Stage.INTAKE)`."""

    def __init__(
        self,
        app: web.Application,
        settings: HttpSettings,
        *,
        name: str = "http",
        tls: ssl.SSLContext | None = None,
        shutdown_seconds: float = 5.0,
    ) -> None:
        self._app = app
        self._settings = settings
        self._name = name
        self._tls = tls
        self._shutdown_seconds = shutdown_seconds
        self._port = 0
        self.listening = asyncio.Event()

    @property
    def port(self) -> int:
        """The port that is listened on; 0 before `listening` is set."""
        return self._port

    @property
    def url(self) -> str:
        """The address for a client on this machine."""
        scheme = "https" if self._tls is not None else "http"
        return f"{scheme}://{self._settings.host}:{self._port}"

    async def run(self) -> None:
        """Serves until cancelled; then answers what is in flight, at most `shutdown_seconds` long."""
        runner = web.AppRunner(self._app, access_log=None, shutdown_timeout=self._shutdown_seconds)
        await runner.setup()
        try:
            site = web.TCPSite(runner, self._settings.host, self._settings.port, ssl_context=self._tls)
            await site.start()
            self._port = runner.addresses[0][1]
            self.listening.set()
            log.info("listening", server=self._name, url=self.url)
            await asyncio.Event().wait()
        finally:
            self.listening.clear()
            await runner.cleanup()
