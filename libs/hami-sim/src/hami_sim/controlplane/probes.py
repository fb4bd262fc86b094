"""Readiness questions put to the control plane's programs: None means ready, a string says what is missing."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable

import aiohttp

PROBE_TIMEOUT = aiohttp.ClientTimeout(total=30)
OK = 200

Probe = Callable[[], Awaitable[str | None]]


def https_probe(url: str, tls: ssl.SSLContext) -> Probe:
    """Asks an HTTPS address for 200."""

    async def probe() -> str | None:
        connector = aiohttp.TCPConnector(ssl=tls)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=PROBE_TIMEOUT) as session,
                session.get(url) as response,
            ):
                answer = (await response.text()).strip()
                if response.status == OK:
                    return None
                return f"{url} answers {response.status}: {answer}"
        except (aiohttp.ClientError, TimeoutError) as error:
            return f"{url}: {error or type(error).__name__}"

    return probe
