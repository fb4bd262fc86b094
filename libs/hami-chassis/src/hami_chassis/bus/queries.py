"""Queries: request and reply by the NATS micro protocol, so that `nats micro` finds and lists them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec
from nats.aio.client import Client
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


async def start_service(client: Client, declared: MicroService) -> Service:
    """Answers from now on until the service is stopped. Raises the errors of nats-py."""
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
