"""One HTTP session to the API server: authorization, deadlines, and errors translated once."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
from aiohttp.connector import NEEDS_CLEANUP_CLOSED

from hami_chassis.connections import leave
from hami_chassis.errors import ChassisError
from hami_chassis.kube.credentials import Endpoint
from hami_chassis.kube.errors import KubeTransient, KubeUnknown, decode_status, error_from_status
from hami_chassis.metrics import ChassisMetrics

_WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
# A peer that died without a word (node lost, connection tracking forgot) is noticed within half a minute.
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
_DIGITS_MAX: Final = 9
"""Of a pause that is asked for in seconds; the header may hold a date, or anything."""


class Call:
    """What a request is, for messages and metrics."""

    def __init__(self, verb: str, resource: str, name: str = "") -> None:
        self.verb = verb
        self.resource = resource
        self.text = f"{verb} {resource} {name}".rstrip()


class Transport:
    """Sends requests. There is no client-side rate limit and no bound on connections: binds must never queue here."""

    def __init__(self, endpoint: Endpoint, *, user_agent: str, metrics: ChassisMetrics) -> None:
        self._endpoint = endpoint
        self._metrics = metrics
        self._user_agent = user_agent
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def request(
        self,
        call: Call,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout_seconds: float,
    ) -> bytes:
        """The body of a successful answer. Raises the errors of `hami_chassis.kube.errors`."""
        timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        async with self._send(
            call, method, path, query=query, body=body, content_type=content_type, timeout=timeout
        ) as response:
            return await response.read()

    @asynccontextmanager
    async def stream(
        self, call: Call, path: str, *, query: Mapping[str, str], timeout_seconds: float, silence_seconds: float
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """The body of a successful GET, to be read as it comes. `silence_seconds` without a byte of it is an error."""
        timeout = aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=10.0, sock_read=silence_seconds)
        async with self._send(call, "GET", path, query=query, timeout=timeout) as response:
            yield response.content

    @asynccontextmanager
    async def _send(
        self,
        call: Call,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  # aiohttp's own deadline, which also bounds the connect
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        is_write = method in _WRITES
        headers = {"Content-Type": content_type} if body is not None else {}
        authorization = await self._endpoint.authorization.header()
        if authorization is not None:
            headers["Authorization"] = authorization
        try:
            async with self._opened().request(
                method,
                self._endpoint.url + path,
                params=query,
                data=body,
                headers=headers,
                timeout=timeout,
                proxy=self._endpoint.proxy,
                server_hostname=self._endpoint.server_hostname,
                allow_redirects=False,
            ) as response:
                self._count(call, str(response.status))
                if not 200 <= response.status < 300:
                    raise _refusal(call, response, await response.read(), is_write=is_write)
                try:
                    yield response
                finally:
                    leave(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._count(call, "error")
            raise translate_failure(call, error, is_write=is_write) from error

    def _count(self, call: Call, code: str) -> None:
        self._metrics.kube_requests.labels(call.verb, call.resource, code).inc()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0,
                ssl=self._endpoint.tls if self._endpoint.tls is not None else True,
                socket_factory=_socket_with_keepalive,
                enable_cleanup_closed=NEEDS_CLEANUP_CLOSED,  # of calls that were cancelled
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                # Compressed answers cost both sides more time than a cluster network saves.
                headers={"User-Agent": self._user_agent, "Accept": "application/json", "Accept-Encoding": "identity"},
                read_bufsize=2**18,
            )
        return self._session


def translate_failure(call: Call, error: Exception, *, is_write: bool) -> KubeTransient:
    """Our error for one of the library's. Only a connection that never was proves that a write has not happened."""
    reason = f"{type(error).__name__} {error}".strip()
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return KubeTransient(f"{call.text}: API server not reached: {reason}")
    if is_write:
        return KubeUnknown(f"{call.text}: no complete answer, it may have happened: {reason}")
    return KubeTransient(f"{call.text}: no complete answer: {reason}")


def _refusal(call: Call, response: aiohttp.ClientResponse, body: bytes, *, is_write: bool) -> ChassisError:
    after = response.headers.get("Retry-After", "")
    return error_from_status(
        decode_status(body, response.status),
        request=call.text,
        is_write=is_write,
        retry_after_seconds=int(after) if after.isascii() and after.isdecimal() and len(after) <= _DIGITS_MAX else None,
    )


def _socket_with_keepalive(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    opened = socket.socket(family, kind, protocol)
    opened.setblocking(False)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        opened.setsockopt(socket.IPPROTO_TCP, option, value)
    return opened
