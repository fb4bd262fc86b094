"""Queries: request and reply by the NATS micro protocol, so that `nats micro` finds and lists them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.micro import add_service
from nats.micro.request import Request
from nats.micro.service import Service, ServiceConfig

from hami_chassis.bus.messages import Message, Reply
from hami_chassis.log import get_logger

log = get_logger("bus")

Answer = Callable[[Message], Awaitable[Reply]]


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One query: its name (letters, digits, - and _), the subject it is asked on, and who answers."""

    name: str
    subject: str
    answer: Answer


class MicroService(msgspec.Struct, frozen=True, kw_only=True):
    """A named group of endpoints. `version` is a semantic version."""

    name: str
    version: str
    description: str
    endpoints: Sequence[Endpoint]


class Serving:
    """A declared service that may be switched on and off: queries are for the leader to answer."""

    def __init__(self, service: MicroService, *, active: bool) -> None:
        self._service = service
        self._active = asyncio.Event()
        self._inactive = asyncio.Event()
        (self.activate if active else self.deactivate)()

    def activate(self) -> None:
        """Answers from now on, whenever NATS is there."""
        self._inactive.clear()
        self._active.set()

    def deactivate(self) -> None:
        """Another one may answer."""
        self._active.clear()
        self._inactive.set()

    async def run(self, client: Client) -> None:
        """Answers over this connection, while active, until cancelled. Raises the errors of nats-py."""
        while True:
            await self._active.wait()
            started = await _start(client, self._service)
            try:
                await self._inactive.wait()
            finally:
                with suppress(NatsError):
                    await started.stop()


async def _start(client: Client, declared: MicroService) -> Service:
    service = await add_service(
        client, ServiceConfig(name=declared.name, version=declared.version, description=declared.description)
    )
    for endpoint in declared.endpoints:
        await service.add_endpoint(name=endpoint.name, subject=endpoint.subject, handler=_handler(endpoint))
    return service


def _handler(endpoint: Endpoint) -> Callable[[Request], Awaitable[None]]:
    async def handle(request: Request) -> None:
        message = Message(subject=request.subject, payload=request.data, headers=request.headers or {})
        try:
            reply = await endpoint.answer(message)
        except Exception as error:  # the boundary to the wire: logged in full, the caller gets 500
            log.exception("query-failed", endpoint=endpoint.name, error=str(error))
            reply = Reply(error_code="500", error_description="internal error")
        if reply.error_code:
            await request.respond_error(reply.error_code, reply.error_description, data=reply.payload)
        else:
            await request.respond(reply.payload)

    return handle
