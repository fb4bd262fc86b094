"""The raw REST client: errors as the server words them, waits, and watch events of any length."""

from __future__ import annotations

import asyncio
import itertools
import ssl

import msgspec
import pytest
from aiohttp import web
from hami_sim.controlplane import ApiError, RestClient
from hami_sim.controlplane.rest import ConditionNotMetError
from hami_sim.fake_kube import FakeKube
from http_client import client_of


async def test_requests_carry_method_query_type_and_token() -> None:
    async def echo(request: web.Request) -> web.Response:
        return web.json_response(
            {
                "request": f"{request.method} {request.path_qs}",
                "type": request.headers.get("Content-Type"),
                "token": request.headers.get("Authorization"),
                "body": (await request.read()).decode(),
            }
        )

    async with client_of(echo) as client:
        assert await client.patch("/a", {"x": 1}, fieldManager="m") == {
            "request": "PATCH /a?fieldManager=m",
            "type": "application/merge-patch+json",
            "token": "Bearer t0ken",
            "body": '{"x":1}',
        }
        applied = await client.apply("/a", {}, field_manager="m")
        assert applied["request"] == "PATCH /a?fieldManager=m&force=true"
        assert applied["type"] == "application/apply-patch+yaml"
        assert (await client.delete("/a", gracePeriodSeconds="0"))["request"] == "DELETE /a?gracePeriodSeconds=0"


@pytest.mark.parametrize(
    ("body", "reason", "message"),
    [
        ('{"kind":"Status","reason":"AlreadyExists","message":"pods \\"a\\" already exists"}',
         "AlreadyExists", 'pods "a" already exists'),
        ("gateway is tired", "Conflict", "gateway is tired"),
        ("", "Conflict", ""),
        ("[]", "Conflict", "[]"),
    ],
    ids=["Status", "text", "empty", "no object"],
)  # fmt: skip
async def test_a_refusal_keeps_the_servers_words(body: str, reason: str, message: str) -> None:
    async def refuse(_request: web.Request) -> web.Response:
        return web.Response(status=409, text=body)

    async with client_of(refuse) as client:
        with pytest.raises(ApiError) as refused:
            await client.post("/a", {})
    assert (refused.value.status, refused.value.reason, refused.value.message) == (409, reason, message)


async def test_a_wait_ends_with_the_condition_and_sees_absence_as_none() -> None:
    answers = iter([404, 200, 200])
    seen: list[object] = []

    async def answer(_request: web.Request) -> web.Response:
        status = next(answers)
        return web.json_response({"ready": len(seen) > 1} if status == 200 else {}, status=status)

    def ready(found: dict[str, object] | None) -> bool:
        seen.append(found)
        return found is not None and found["ready"] is True

    async with client_of(answer) as client:
        assert await client.wait_until("/a", ready) == {"ready": True}
    assert seen == [None, {"ready": False}, {"ready": True}]


async def test_a_wait_in_vain_shows_the_last_object() -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.json_response({"phase": "Pending"})

    async with client_of(answer) as client:
        with pytest.raises(ConditionNotMetError, match=r'{"phase":"Pending"}'):
            await client.wait_until("/a", lambda _found: False, timeout_seconds=0)


async def test_a_watch_yields_events_of_any_length_however_they_are_cut() -> None:
    events = [{"type": "ADDED", "object": {"text": "x" * size}} for size in (1, 300_000, 0)]
    raw = b"".join(msgspec.json.encode(event) + b"\n" for event in events)

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for start in range(0, len(raw), 7_001):
            await response.write(raw[start : start + 7_001])
        return response

    async with client_of(stream) as client, client.watch("/a", resourceVersion="5") as watched:
        assert [event async for event in watched] == events


async def test_a_client_that_was_not_entered_says_so() -> None:
    client = RestClient("http://127.0.0.1:1", ssl.create_default_context())
    with pytest.raises(RuntimeError, match="enter the client first"):
        await client.get("/a")


async def test_versions_are_all_that_there_were_however_late_the_watch_brings_them() -> None:
    fake = FakeKube()
    url = await fake.start()

    def put(step: str) -> None:
        fake.put("nodes", {"metadata": {"name": "n", "labels": {"step": step}}})

    async def late() -> None:
        asked = fake.count("list", "nodes")
        while fake.count("list", "nodes") == asked:  # noqa: ASYNC110  # the server announces no requests
            await asyncio.sleep(0)
        fake.resume_watches("nodes")

    put("before")
    async with RestClient(url, ssl.create_default_context()) as client:
        async with client.versions("/api/v1/nodes") as seen:
            fake.pause_watches("nodes")
            put("first")
            put("last")
            resuming = asyncio.create_task(late())
        await resuming
    await fake.stop()
    assert [node["metadata"]["labels"]["step"] for node in seen] == ["before", "first", "last"]


async def test_versions_end_with_an_error_where_the_watch_does() -> None:
    versions = itertools.count(7)

    async def answer(request: web.Request) -> web.Response:
        if "watch" in request.query:
            return web.json_response({"message": "too many requests"}, status=429)
        version = {"resourceVersion": str(next(versions))}
        return web.json_response({"metadata": version, "items": [{"metadata": version}]})

    async with client_of(answer) as client:
        with pytest.raises(ConditionNotMetError, match="too many requests"):
            async with client.versions("/api/v1/nodes"):
                pass
