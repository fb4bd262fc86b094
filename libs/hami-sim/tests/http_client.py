"""A REST client of a server that a test answers for."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from hami_sim.controlplane import RestClient

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def client_of(handler: Handler) -> AsyncIterator[RestClient]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        async with RestClient(f"http://{host}:{port}", ssl.create_default_context(), bearer_token="t0ken") as client:
            yield client
    finally:
        await runner.cleanup()
