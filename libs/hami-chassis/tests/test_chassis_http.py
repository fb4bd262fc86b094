"""HTTP: bounded bodies, errors as JSON, health and metrics, TLS that follows its files."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import structlog
from aiohttp import web
from hami_chassis.bodies import Bodies
from hami_chassis.http import HttpServer, HttpSettings, add_observation_routes, json_response, new_app
from hami_chassis.tls import CertificateUnusable, ReloadingTls, TlsSettings
from hami_sim.manual_clock import ManualClock
from prometheus_client import CollectorRegistry, Counter

LIMIT = 1000


@asynccontextmanager
async def serving(app: web.Application, **options) -> AsyncIterator[HttpServer]:
    server = HttpServer(app, HttpSettings(), **options)
    task = asyncio.create_task(server.run())
    waiter = asyncio.create_task(server.listening.wait())
    await asyncio.wait([task, waiter], return_when=asyncio.FIRST_COMPLETED)
    try:
        yield server
    finally:
        task.cancel()
        await asyncio.wait([task])


def app_under_test(within_seconds: float = 60.0) -> web.Application:
    app = new_app()
    bodies = Bodies(largest_bytes=LIMIT, within_seconds=within_seconds)

    async def echo(request: web.Request) -> web.Response:
        return json_response(await bodies.read(request, limit_bytes=LIMIT))

    async def defect(_request: web.Request) -> web.Response:
        raise KeyError("secret inside")

    app.router.add_post("/echo", echo)
    app.router.add_get("/defect", defect)
    return app


async def chunks(total: int) -> AsyncIterator[bytes]:
    for _ in range(total // 100):
        yield b"x" * 100


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(b"x" * LIMIT, 200, id="just within"),
        pytest.param(b"x" * (LIMIT + 1), 413, id="declared too long"),
        pytest.param(lambda: chunks(LIMIT), 200, id="in chunks, just within"),
        pytest.param(lambda: chunks(100 * LIMIT), 413, id="in chunks, too long"),
    ],
)
async def test_bodies_are_bounded(body, status):
    async with serving(app_under_test()) as server, aiohttp.ClientSession() as session:
        data = body() if callable(body) else body
        async with session.post(f"{server.url}/echo", data=data) as response:
            assert response.status == status
            if status == 413:
                assert "error" in await response.json()


@asynccontextmanager
async def begun_body(server: HttpServer, sent_bytes: int) -> AsyncIterator[asyncio.StreamReader]:
    """A request whose body never ends; once the server has asked for it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: {LIMIT}\r\n\r\n"
    writer.write(head.encode())
    assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")
    writer.write(b"x" * sent_bytes)
    try:
        yield reader
    finally:
        writer.close()


async def status_and_end(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    """Of an answer: its status, and whether the connection ends with it."""
    answer = await reader.readuntil(b"\r\n\r\n")
    return answer.split(b" ")[1], b"Connection: close" in answer


async def test_a_body_that_does_not_come_to_its_end_in_time_is_given_up():
    async with serving(app_under_test(within_seconds=0.05)) as server, begun_body(server, 10) as reader:
        assert await status_and_end(reader) == (b"408", True)


async def test_bodies_that_never_end_hold_no_more_than_there_is_room_for_and_the_oldest_go_first():
    async with serving(app_under_test()) as server, AsyncExitStack() as begun:
        readers = [await begun.enter_async_context(begun_body(server, LIMIT - 1)) for _ in range(8)]
        async with aiohttp.ClientSession() as session:
            for gone in readers[:3]:  # each fills what the one before it left
                readers.append(await begun.enter_async_context(begun_body(server, LIMIT - 1)))
                assert await status_and_end(gone) == (b"408", True)
            async with session.post(f"{server.url}/echo", data=b"x" * LIMIT) as response:
                assert (response.status, len(await response.read())) == (200, LIMIT)
        assert await status_and_end(readers[3]) == (b"408", True)
        assert not any(reader.at_eof() for reader in readers[4:])


class Body:
    """Of a request, as far as it is read: a first chunk, and nothing more unless it ends there."""

    content_length = None

    def __init__(self, first: bytes, *, ends: bool) -> None:
        self.content = self
        self._first = first
        self._ends = ends
        self.was_read = asyncio.Event()

    async def iter_any(self) -> AsyncIterator[bytes]:
        await asyncio.sleep(0)
        yield self._first
        self.was_read.set()
        if not self._ends:
            await asyncio.Event().wait()


async def test_room_is_made_by_a_body_whose_time_runs_out_at_that_very_moment():
    bodies = Bodies(largest_bytes=LIMIT, within_seconds=0.05)
    begins = Body(b"x", ends=False)
    late = asyncio.create_task(bodies.read(begins, limit_bytes=LIMIT))
    await begins.was_read.wait()
    time.sleep(0.1)  # noqa: ASYNC251 (its time is over, and nothing has seen that yet)
    fills_the_room = Body(b"x" * 8 * LIMIT, ends=True)
    assert len(await asyncio.create_task(bodies.read(fills_the_room, limit_bytes=8 * LIMIT))) == 8 * LIMIT
    with pytest.raises(web.HTTPRequestTimeout):
        await late


async def test_a_body_whose_sender_goes_away_is_no_defect():
    async with serving(app_under_test()) as server:
        with structlog.testing.capture_logs() as logs:
            async with begun_body(server, 10):
                pass
            async with aiohttp.ClientSession() as session, session.post(f"{server.url}/echo", data=b"x") as response:
                assert response.status == 200
    assert logs == []


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nothing", 404), ("GET", "/echo", 405), ("GET", "/defect", 500)]
)
async def test_errors_are_json_and_show_nothing_of_the_inside(method, path, status):
    async with (
        serving(app_under_test()) as server,
        aiohttp.ClientSession() as session,
        session.request(method, server.url + path) as response,
    ):
        assert response.status == status
        body = await response.text()
        assert (await response.json())["error"]
        assert "secret" not in body
        assert "Traceback" not in body


async def test_health_readiness_and_metrics():
    registry = CollectorRegistry()
    Counter("hami_test_things_total", "Things.", registry=registry).inc()
    ready = {"pods": False, "nodes": True}
    app = new_app()
    add_observation_routes(
        app, registry=registry, ready={"pods": lambda: ready["pods"], "nodes": lambda: ready["nodes"]}
    )
    async with serving(app) as server, aiohttp.ClientSession() as session:

        async def get(path: str) -> tuple[int, str]:
            async with session.get(server.url + path) as response:
                return response.status, await response.text()

        assert await get("/healthz") == (200, "ok\n")
        assert await get("/readyz") == (503, "not ready: pods\n")
        ready["pods"] = True
        assert await get("/readyz") == (200, "ok\n")
        status, metrics = await get("/metrics")
        assert status == 200
        assert "hami_test_things_total 1.0" in metrics


async def test_a_stopping_server_answers_what_is_in_flight():
    release, arrived = asyncio.Event(), asyncio.Event()
    app = new_app()

    async def slow(_request: web.Request) -> web.Response:
        arrived.set()
        await release.wait()
        return json_response(b"{}")

    app.router.add_get("/slow", slow)
    async with aiohttp.ClientSession() as session:
        async with serving(app) as server:
            request = asyncio.create_task(session.get(server.url + "/slow"))
            await arrived.wait()
            asyncio.get_running_loop().call_later(0.05, release.set)
        response = await request
        assert response.status == 200
        response.release()


# ---- TLS -----------------------------------------------------------------------------------------------------


def client_context(authority, pair: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.pem.decode())
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if pair is not None:
        context.load_cert_chain(*pair)
    return context


async def common_name_served(server: HttpServer, context: ssl.SSLContext) -> str:
    _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
    certificate = writer.get_extra_info("peercert")
    writer.close()
    await writer.wait_closed()
    return certificate["subject"][0][0][1]


async def test_a_renewed_certificate_is_served_and_a_half_written_one_is_not(tmp_path, new_authority):
    authority = new_authority("ca")
    certificate_file, key_file = authority.issue("first", tmp_path)
    settings = TlsSettings(cert_file=str(certificate_file), key_file=str(key_file), reload_seconds=10)
    clock = ManualClock()
    tls = ReloadingTls(settings, clock=clock)
    reloader = asyncio.create_task(tls.run())
    async with serving(new_app(), tls=tls.context) as server:
        context = client_context(authority)
        assert server.url.startswith("https://")
        assert await common_name_served(server, context) == "first"
        new_certificate, new_key = authority.issue("second", tmp_path)
        certificate_file.write_bytes(new_certificate.read_bytes())  # the key has not followed yet
        await clock.wait_for_sleepers()
        clock.advance(10)
        await asyncio.sleep(0)
        await clock.wait_for_sleepers()
        assert await common_name_served(server, context) == "first"
        key_file.write_bytes(new_key.read_bytes())
        clock.advance(10)
        await asyncio.sleep(0)
        await clock.wait_for_sleepers()
        assert await common_name_served(server, context) == "second"
    reloader.cancel()
    await asyncio.wait([reloader])


async def test_only_clients_of_the_authority_are_served(tmp_path, new_authority):
    authority, stranger = new_authority("ca"), new_authority("stranger")
    certificate_file, key_file = authority.issue("server", tmp_path)
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    settings = TlsSettings(
        cert_file=str(certificate_file), key_file=str(key_file), client_ca_file=str(tmp_path / "ca.crt")
    )
    tls = ReloadingTls(settings, clock=ManualClock())
    app = new_app()
    add_observation_routes(app, registry=CollectorRegistry(), ready={})

    async def get(pair: tuple[Path, Path] | None) -> int:
        connector = aiohttp.TCPConnector(ssl=client_context(authority, pair))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(f"https://127.0.0.1:{server.port}/healthz") as response,
        ):
            return response.status

    async with serving(app, tls=tls.context) as server:
        assert await get(authority.issue("client", tmp_path)) == 200
        with pytest.raises(aiohttp.ClientError):
            await get(None)
        strange = stranger.issue("strange", tmp_path)
        with pytest.raises(aiohttp.ClientError):
            await get(strange)
        (tmp_path / "ca.crt").write_bytes(authority.pem + stranger.pem)
        assert tls.reload_if_changed()
        assert await get(strange) == 200
        assert not tls.reload_if_changed()


@pytest.mark.parametrize("broken", ["cert_file", "key_file", "client_ca_file"])
def test_files_that_cannot_be_served_say_which(tmp_path, new_authority, broken):
    authority = new_authority("ca")
    certificate_file, key_file = authority.issue("server", tmp_path)
    files = {"cert_file": str(certificate_file), "key_file": str(key_file), "client_ca_file": str(tmp_path / "ca.crt")}
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    ReloadingTls(TlsSettings(**files), clock=ManualClock())
    with pytest.raises(CertificateUnusable, match="missing"):
        ReloadingTls(TlsSettings(**(files | {broken: str(tmp_path / "missing")})), clock=ManualClock())
    (tmp_path / "garbage").write_bytes(b"garbage")
    with pytest.raises(CertificateUnusable, match="cannot be served"):
        ReloadingTls(TlsSettings(**(files | {broken: str(tmp_path / "garbage")})), clock=ManualClock())
