"""Plain JSON over the Kubernetes API: paths and documents as they travel, no generated classes.

Errors: `ApiError` for an answer of the server that is no success (status, reason and message are the server's).
Connection errors are aiohttp's own.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec
from aiohttp.connector import NEEDS_CLEANUP_CLOSED
from hami_chassis.connections import leave

from hami_sim.controlplane.layout import CertificateFiles

JsonObject = dict[str, Any]

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
POLL_SECONDS = 0.1
NOT_FOUND = 404
FIRST_ERROR_STATUS = 400


class ApiError(Exception):
    """The API server refused a request."""

    def __init__(self, method: str, path: str, status: int, reason: str, message: str) -> None:
        super().__init__(f"{method} {path}: {status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class ConditionNotMetError(Exception):
    """An object did not become what was waited for in time."""


class RestClient:
    """Requests of one identity to one API server. An async context manager, bound to the loop that enters it."""

    def __init__(self, base_url: str, tls: ssl.SSLContext, *, bearer_token: str | None = None) -> None:
        self._base_url = base_url
        self._tls = tls
        self._headers = {} if bearer_token is None else {"Authorization": f"Bearer {bearer_token}"}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            self._base_url,
            connector=aiohttp.TCPConnector(ssl=self._tls, enable_cleanup_closed=NEEDS_CLEANUP_CLOSED),
            headers=self._headers,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, path: str, **query: str) -> JsonObject:
        """The object or list at a path such as `/api/v1/nodes/a`."""
        return await self._json("GET", path, query)

    async def get_text(self, path: str, **query: str) -> str:
        """What a path answers, undecoded, such as a pod's log."""
        return (await self._bytes("GET", path, query, None, JSON)).decode(errors="replace")

    @asynccontextmanager
    async def stream(self, path: str, **query: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """What a path answers, as it comes, such as a log that is followed."""
        async with self._open().get(path, params=query, timeout=aiohttp.ClientTimeout(total=None)) as response:
            await _refuse_errors(response, "GET", path)
            try:
                yield response.content.iter_any()
            finally:
                leave(response)

    async def post(self, path: str, body: object, **query: str) -> JsonObject:
        """Creates."""
        return await self._json("POST", path, query, body)

    async def put(self, path: str, body: object, **query: str) -> JsonObject:
        """Replaces."""
        return await self._json("PUT", path, query, body)

    async def patch(self, path: str, body: object, content_type: str = MERGE_PATCH, **query: str) -> JsonObject:
        """Patches; the content type says how."""
        return await self._json("PATCH", path, query, body, content_type)

    async def apply(self, path: str, body: object, *, field_manager: str, **query: str) -> JsonObject:
        """Server-side apply, taking over fields that others own."""
        query = {**query, "fieldManager": field_manager, "force": "true"}
        return await self._json("PATCH", path, query, body, APPLY_PATCH)

    async def delete(self, path: str, **query: str) -> JsonObject:
        """Deletes; `gracePeriodSeconds="0"` at once."""
        return await self._json("DELETE", path, query)

    async def wait_until(
        self, path: str, condition: Callable[[JsonObject | None], bool], *, timeout_seconds: float = 300.0
    ) -> JsonObject | None:
        """Reads `path` until the condition holds of it (None: there is no such object) and returns what was read.

        Raises `ConditionNotMetError` with the last object.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            found: JsonObject | None
            try:
                found = await self.get(path)
            except ApiError as error:
                if error.status != NOT_FOUND:
                    raise
                found = None
            if condition(found):
                return found
            if time.monotonic() > deadline:
                last = "absent" if found is None else msgspec.json.encode(found).decode()
                raise ConditionNotMetError(f"{path} after {timeout_seconds:.0f} s: {last}")
            await asyncio.sleep(POLL_SECONDS)

    @asynccontextmanager
    async def watch(self, path: str, **query: str) -> AsyncIterator[AsyncIterator[JsonObject]]:
        """Watch events of a list path, `{"type":…,"object":…}`."""
        async with self._open().get(
            path, params={**query, "watch": "true"}, timeout=aiohttp.ClientTimeout(total=None)
        ) as response:
            await _refuse_errors(response, "GET", path)
            try:
                yield _decoded_lines(response)
            finally:
                leave(response)

    @asynccontextmanager
    async def versions(self, path: str) -> AsyncIterator[list[JsonObject]]:
        """Every version of the objects of a list path from the block's beginning to its end; to be read after it."""
        listed = await self.get(path)
        seen: list[JsonObject] = [*listed["items"]]

        async def follow() -> None:
            async with self.watch(path, resourceVersion=listed["metadata"]["resourceVersion"]) as changes:
                async for change in changes:
                    seen.append(change["object"])  # noqa: PERF401  # it is read before this ends

        following = asyncio.create_task(follow())
        try:
            yield seen
            last = max((_version(found) for found in (await self.get(path))["items"]), default=0)
            while max(map(_version, seen), default=0) < last:
                if following.done():
                    raise ConditionNotMetError(f"the watch of {path} ended: {following.exception()}")
                await asyncio.sleep(POLL_SECONDS)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _json(
        self, method: str, path: str, query: Mapping[str, str], body: object = None, content_type: str = JSON
    ) -> JsonObject:
        return msgspec.json.decode(await self._bytes(method, path, query, body, content_type), type=JsonObject)

    async def _bytes(self, method: str, path: str, query: Mapping[str, str], body: object, content_type: str) -> bytes:
        content = None if body is None else msgspec.json.encode(body)
        async with self._open().request(
            method, path, params=query, data=content, headers={"Content-Type": content_type}
        ) as response:
            await _refuse_errors(response, method, path)
            return await response.read()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("enter the client first: `async with control_plane.client() as client`")
        return self._session


def tls_context(ca: CertificateFiles, client: CertificateFiles | None = None) -> ssl.SSLContext:
    """A client's TLS context that trusts one authority and shows one certificate."""
    context = ssl.create_default_context(cafile=str(ca.certificate))
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    return context


def _version(found: JsonObject) -> int:
    """Kubernetes numbers the versions of all objects of a kind in one ascending order."""
    return int(found["metadata"]["resourceVersion"])


async def _refuse_errors(response: aiohttp.ClientResponse, method: str, path: str) -> None:
    if response.status < FIRST_ERROR_STATUS:
        return
    raw = await response.read()
    try:
        status = msgspec.json.decode(raw, type=JsonObject)
    except msgspec.MsgspecError:
        status = {"message": raw.decode(errors="replace").strip()}
    reason = status.get("reason") or response.reason or ""
    raise ApiError(method, path, response.status, reason, status.get("message", ""))


async def _decoded_lines(response: aiohttp.ClientResponse) -> AsyncIterator[JsonObject]:
    # By hand, not by readline: a watch event may be longer than the reader's limit.
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield msgspec.json.decode(line, type=JsonObject)
