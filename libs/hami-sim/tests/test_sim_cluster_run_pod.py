"""What `hami-sim run` shows of a pod's output where the API server or kubelet answers late, or breaks off."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from hami_sim.cluster.run_pod import run_pod
from hami_sim.controlplane import ApiError, RestClient
from http_client import client_of

PODS = "/api/v1/namespaces/default/pods"
POD: dict[str, Any] = {"metadata": {"name": "p"}}


class Server:
    """Of one pod that has ended. Each answer of `logs` serves one request for its output, the last one all further."""

    def __init__(self, *logs: Callable[[web.Request], Any]) -> None:
        self._logs = list(logs)
        self.is_there = True
        self.requests: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path}")
        if request.path == f"{PODS}/p/log":
            response: web.StreamResponse = await self._logs[0](request)
            del self._logs[: len(self._logs) > 1]
            return response
        if not self.is_there:
            return web.json_response({"reason": "NotFound", "message": 'pods "p" not found'}, status=404)
        ended = {"state": {"terminated": {"exitCode": 3}}}
        return web.json_response(POD | {"status": {"containerStatuses": [ended]}})


class Cluster:
    def __init__(self, server: Server) -> None:
        self._server = server

    @asynccontextmanager
    async def client(self) -> AsyncIterator[RestClient]:
        async with client_of(self._server.answer) as client:
            yield client


async def whole(_request: web.Request) -> web.Response:
    return web.Response(text="one\ntwo\nthree\n")


async def unreachable(_request: web.Request) -> web.Response:
    return web.json_response({"message": "dial tcp 127.0.0.1:10250: connection refused"}, status=500)


async def broken_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"one\ntw")
    assert request.transport is not None
    request.transport.close()
    return response


async def test_output_that_cannot_be_read_yet_is_asked_for_again(capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    server = Server(unreachable, unreachable, whole)

    assert await run_pod(Cluster(server), POD, "default", say=said.append) == 3

    assert capfd.readouterr().out == "one\ntwo\nthree\n"
    assert said == [
        "its output cannot be read now, and is asked for again: dial tcp 127.0.0.1:10250: connection refused"
    ]
    assert server.requests[-1] == f"DELETE {PODS}/p"


async def test_output_that_breaks_off_goes_on_where_it_did(capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []

    assert await run_pod(Cluster(Server(broken_off, broken_off, whole)), POD, "default", say=said.append) == 3

    assert capfd.readouterr().out == "one\ntwo\nthree\n"
    assert len(said) == 1


async def test_output_of_a_pod_that_is_gone_is_an_error() -> None:
    async def gone(_request: web.Request) -> web.Response:
        server.is_there = False
        return web.json_response({"message": 'pods "p" not found'}, status=404)

    server = Server(gone)
    with pytest.raises(ApiError, match='pods "p" not found'):
        await run_pod(Cluster(server), POD, "default", say=lambda _: None)
