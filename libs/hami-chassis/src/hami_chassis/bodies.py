"""Bodies of requests: how large one may be, how long one may take, and what all that are on their way hold together."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

WITHIN_SECONDS: Final = 30.0
"""The API server waits no longer for a webhook; whoever takes longer to ask is no API server."""
_LARGEST_AT_ONCE: Final = 8
"""So many of the largest size may be on their way at once; of common ones, thousands."""


class Bodies:
    """Those of one server, read by its handlers.

    Anyone who reaches the server's port can begin bodies and never end them. When those that are on their way hold more
    than there is room for, the one that has been longest at it goes: a body that is sent in earnest takes a moment.
    """

    def __init__(self, *, largest_bytes: int, within_seconds: float = WITHIN_SECONDS) -> None:
        """`largest_bytes`: the largest limit of any."""
        self._room_bytes = _LARGEST_AT_ONCE * largest_bytes
        self._within_seconds = within_seconds
        self._held_bytes: dict[asyncio.Timeout, int] = {}
        """Of each body that is on its way, the oldest first."""
        self._total_bytes = 0

    async def read(self, request: web.Request, *, limit_bytes: int) -> bytes:
        """The whole body.

        Raises HTTPRequestEntityTooLarge (413) before more than the limit is held in memory, and HTTPRequestTimeout
        (408) when it did not come in time or had to make room.
        """
        declared = request.content_length
        if declared is not None and declared > limit_bytes:
            raise web.HTTPRequestEntityTooLarge(max_size=limit_bytes, actual_size=declared)
        body = bytearray()
        try:
            async with asyncio.timeout(self._within_seconds) as reading:
                self._held_bytes[reading] = 0
                try:
                    async for chunk in request.content.iter_any():
                        body += chunk
                        if len(body) > limit_bytes:
                            raise web.HTTPRequestEntityTooLarge(max_size=limit_bytes, actual_size=len(body))
                        self._hold(reading, len(chunk))
                finally:
                    self._total_bytes -= self._held_bytes.pop(reading, 0)
        except TimeoutError:
            raise web.HTTPRequestTimeout(text="the body did not come in time") from None
        return bytes(body)

    def _hold(self, reading: asyncio.Timeout, size_bytes: int) -> None:
        if reading not in self._held_bytes:
            return  # it is about to go
        self._held_bytes[reading] += size_bytes
        self._total_bytes += size_bytes
        while self._total_bytes > self._room_bytes:
            oldest = next(iter(self._held_bytes))
            self._total_bytes -= self._held_bytes.pop(oldest)
            if not oldest.expired():  # else it goes anyway, and refuses to be told
                oldest.reschedule(asyncio.get_running_loop().time())
