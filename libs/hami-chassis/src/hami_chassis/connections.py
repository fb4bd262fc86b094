"""Leaves an answer in the middle."""

from __future__ import annotations

import aiohttp


def leave(response: aiohttp.ClientResponse) -> None:
    """Ends the connection of an answer that was not read to its end; one that was read has none any more.

    Closing it politely would wait for the server's farewell, half a minute where the server is dead, and outlast the
    session.
    """
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
