"""How connections to the API server end: without a wait for a server that says nothing any more."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import threading
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hami_chassis.kube.credentials import Endpoint, StaticAuthorization
from hami_chassis.kube.transport import Call, Transport

BEGUN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"


class DumbServer:
    """Takes one request, says one thing or nothing, and then never a word again, not even of TLS."""

    def __init__(self, listener: socket.socket, tls: ssl.SSLContext, answer: bytes) -> None:
        self._listener = listener
        self._tls = tls
        self._answer = answer
        self.port: int = listener.getsockname()[1]
        self.asked = threading.Event()

    def serve(self) -> None:
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
            if self._answer:
                session.write(self._answer)
                connection.sendall(outgoing.read())
            self.asked.set()
            while _received(connection):
                pass


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except ConnectionResetError:
        return b""


@contextmanager
def dumb_server(authority, folder: Path, answer: bytes) -> Iterator[DumbServer]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*authority.issue("server", folder))
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        server = DumbServer(listener, tls, answer)
        thread = threading.Thread(target=server.serve)
        thread.start()
        yield server
        thread.join()


def transport(server: DumbServer, authority, metrics) -> Transport:
    tls = ssl.create_default_context(cadata=authority.pem.decode())
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    endpoint = Endpoint(url=f"https://127.0.0.1:{server.port}", authorization=StaticAuthorization(), tls=tls)
    return Transport(endpoint, user_agent="test", metrics=metrics)


async def leave_a_stream(client: Transport, _server: DumbServer) -> None:
    call = Call("watch", "pods")
    async with client.stream(call, "/api/v1/pods", query={}, timeout_seconds=600, silence_seconds=600) as content:
        assert await content.readany() == b"{}"


async def cancel_a_call(client: Transport, server: DumbServer) -> None:
    call = asyncio.create_task(
        client.request(Call("get", "pods", "a"), "GET", "/api/v1/pods/a", timeout_seconds=600),
    )
    await asyncio.to_thread(server.asked.wait)
    call.cancel()
    await asyncio.wait([call])


@pytest.mark.parametrize(("end", "answer"), [(leave_a_stream, BEGUN), (cancel_a_call, b"")])
def test_no_connection_outlasts_its_client(tmp_path, new_authority, metrics, end, answer):
    authority = new_authority("ca")

    async def run(server: DumbServer) -> None:
        client = transport(server, authority, metrics)
        await end(client, server)
        await client.close()

    with warnings.catch_warnings(record=True) as told, dumb_server(authority, tmp_path, answer) as server:
        warnings.simplefilter("always")
        asyncio.run(run(server))
        gc.collect()
    assert [str(warning.message) for warning in told if warning.category is ResourceWarning] == []
