"""How connections to the API server end: without a wait for a server that says nothing any more."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from hami_chassis.kube.credentials import Endpoint, StaticAuthorization
from hami_chassis.kube.transport import Call, Transport

BEGUN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"


class DumbServer:
    """Begins to answer one request of one TLS connection, and then never says a word again."""

    def __init__(self, listener: socket.socket, tls: ssl.SSLContext) -> None:
        self._listener = listener
        self._tls = tls
        self.port: int = listener.getsockname()[1]

    def serve(self) -> bytes:
        """What the client sends below TLS after the answer, until it ends the connection."""
        connection, _ = self._listener.accept()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = self._tls.wrap_bio(incoming, outgoing, server_side=True)
        request = b""
        with closing(connection):
            while not request.endswith(b"\r\n\r\n"):
                try:
                    request += session.read()
                except ssl.SSLWantReadError:
                    connection.sendall(outgoing.read())
                    incoming.write(connection.recv(65536))
            session.write(BEGUN)
            connection.sendall(outgoing.read())
            return b"".join(iter(lambda: _received(connection), b""))


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except ConnectionResetError:
        return b""


@contextmanager
def dumb_server(authority, folder: Path) -> Iterator[DumbServer]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*authority.issue("server", folder))
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield DumbServer(listener, tls)


def transport(server: DumbServer, authority, metrics) -> Transport:
    tls = ssl.create_default_context(cadata=authority.pem.decode())
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    endpoint = Endpoint(url=f"https://127.0.0.1:{server.port}", authorization=StaticAuthorization(), tls=tls)
    return Transport(endpoint, user_agent="test", metrics=metrics)


async def test_a_stream_that_is_left_ends_its_connection_at_once(tmp_path, new_authority, metrics):
    authority = new_authority("ca")
    with dumb_server(authority, tmp_path) as server:
        serving = asyncio.create_task(asyncio.to_thread(server.serve))
        client = transport(server, authority, metrics)
        async with client.stream(
            Call("watch", "pods"), "/api/v1/pods", query={}, timeout_seconds=600, silence_seconds=600
        ) as content:
            assert await content.readany() == b"{}"
        await client.close()
        assert await serving == b""  # no farewell, which would wait for the server's
