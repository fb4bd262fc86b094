"""The scheduler and a real nats-server: events once by id, an outage, chains left open, health news, queries."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import nats
import pytest
from hami_model import events, keys
from hami_model.events import streams, subjects
from hami_scheduler.config import EventSettings
from hami_sim.fake_kube import FakeKube
from hami_sim.nats_server import NatsServer
from nats.aio.client import Client

sys.path.insert(0, str(Path(__file__).parents[2] / "services" / "scheduler" / "tests"))

from scheduler_builders import ALLOCATED_KEY, Json, node, pod, quota
from scheduler_service import Scheduler, eventually, running, series, settings_for

N1 = ["n1"]
PATIENCE_SECONDS = 120
"""Of one answer: a machine of CI may be many times as slow as an idle one."""


@pytest.fixture
async def fake_kube() -> AsyncIterator[FakeKube]:
    fake = FakeKube()
    await fake.start()
    fake.put("nodes", node("n1"))
    yield fake
    await fake.stop()


@pytest.fixture
def prefix() -> str:
    """Subjects of this test alone: the server is shared."""
    return f"t{uuid.uuid4().hex[:8]}"


@pytest.fixture
async def scheduler(fake_kube: FakeKube, nats_url: str, prefix: str) -> AsyncIterator[Scheduler]:
    settings = settings_for(fake_kube.url, nats=nats_url, events=EventSettings(prefix=prefix, instance="s-0"))
    async with running(settings) as found:
        yield found


@pytest.fixture
async def client(nats_url: str) -> AsyncIterator[Client]:
    found = await nats.connect(nats_url)
    yield found
    await found.close()


async def stored(client: Client, prefix: str, family: str = "*") -> list[tuple[str, str]]:
    """(type without prefix and version, pod name) of every stored event, in the order of the stream."""
    stream = streams.stream_name("ALLOCATION", prefix=prefix)
    jetstream = client.jetstream(timeout=PATIENCE_SECONDS)
    found = []
    try:
        info = await jetstream.stream_info(stream)
    except nats.js.errors.NotFoundError:
        return []
    for number in range(max(info.state.first_seq, 1), info.state.last_seq + 1):  # 0 to 0: nothing yet
        message = await jetstream.get_msg(stream, number)
        event = events.decode(message.data or b"")
        assert not isinstance(event, events.UnknownEvent)
        if family in ("*", event.type.split(".")[2]):
            name = event.pod.name if isinstance(event, events.AllocationEvent | events.PlacementPlaced) else ""
            found.append((event.type.removeprefix("io.hami.").removesuffix(".v1"), name))
    return found


async def told(client: Client, prefix: str, *wanted: tuple[str, str]) -> None:
    """Returns once all of these are stored."""

    async def all_there() -> bool:
        return set(wanted) <= set(await stored(client, prefix))

    await eventually(all_there)


async def test_the_life_of_an_allocation_is_told_in_order_and_once(
    fake_kube: FakeKube, scheduler: Scheduler, client: Client, prefix: str
) -> None:
    created = fake_kube.put("pods", pod("a", memory=3000))
    await scheduler.filter(created, N1)
    await scheduler.bind(created, "n1")
    ended = fake_kube.get("pods", "a", "default")
    fake_kube.put("pods", {**ended, "status": {"phase": "Succeeded"}})
    fake_kube.remove("pods", "a", "default")

    await told(client, prefix, ("allocation.released", "a"))
    assert await stored(client, prefix) == [
        ("allocation.reserved", "a"),
        ("placement.placed", "a"),
        ("allocation.allocating", "a"),
        ("allocation.released", "a"),
    ]
    allocation_id = ended["metadata"]["annotations"][keys.ALLOCATION_ID]
    last = await client.jetstream(timeout=PATIENCE_SECONDS).get_msg(streams.stream_name("ALLOCATION", prefix=prefix), 4)
    event = events.decode(last.data or b"")
    assert isinstance(event, events.AllocationReleased)
    assert (event.id, event.reason) == (f"{allocation_id}.released", "Succeeded")
    assert [share.cards[0].memory_mib for share in event.containers] == [3000]


async def test_a_rejection_and_a_failed_bind_are_told(
    fake_kube: FakeKube, scheduler: Scheduler, client: Client, prefix: str
) -> None:
    await scheduler.filter(fake_kube.put("pods", pod("big", memory=20_000)), N1)
    created = fake_kube.put("pods", pod("a"))
    await scheduler.filter(created, N1)
    fake_kube.fail("create", "pods/binding", 403)
    await scheduler.bind(created, "n1")
    await told(client, prefix, ("placement.unschedulable", ""), ("allocation.expired", "a"))


async def test_a_rejection_is_told_with_what_would_help(
    fake_kube: FakeKube, scheduler: Scheduler, client: Client, prefix: str
) -> None:
    first = fake_kube.put("pods", pod("first", memory=6000))
    await scheduler.filter(first, N1)
    await scheduler.bind(first, "n1")
    listening = await client.subscribe(f"{prefix}.v1.placement.*.*.unschedulable")
    await client.flush()
    await scheduler.filter(fake_kube.put("pods", pod("second", memory=6000)), N1)
    event = events.decode((await listening.next_msg(timeout=PATIENCE_SECONDS)).data)
    assert isinstance(event, events.PlacementUnschedulable)
    assert event.reasons == {"CardInsufficientMemory": 1}
    advice = (
        "fits on none of 1 nodes: 6,000 MiB asked; 4,000 free on card n1-0 of n1; would fit on n1 (card n1-0) if "
        "container main asked NVIDIA for at most 4,000 MiB of each card (asks 6,000), or when pod default/first ends"
    )
    assert event.advice == advice

    def is_noticed() -> bool:
        return any(found["message"] == advice for found in fake_kube.all("events"))

    await eventually(is_noticed)


async def test_what_happened_while_nats_was_away_arrives_once_when_it_is_back(
    fake_kube: FakeKube, tmp_path: Path, prefix: str
) -> None:
    server = await NatsServer.start(tmp_path / "nats")
    settings = settings_for(fake_kube.url, nats=server.url, events=EventSettings(prefix=prefix, instance="s-0"))
    try:
        async with running(settings) as scheduler:
            first = fake_kube.put("pods", pod("first"))
            await scheduler.filter(first, N1)
            await scheduler.bind(first, "n1")
            async with await nats.connect(server.url) as client:
                await told(client, prefix, ("allocation.allocating", "first"))
            await server.stop()
            second = fake_kube.put("pods", pod("second"))
            assert (await scheduler.filter(second, N1))["NodeNames"] == N1
            assert await scheduler.bind(second, "n1") == {"Error": ""}
            assert (await scheduler.observe("/readyz"))[0] == 200
            fake_kube.remove("pods", "first", "default")
            server = await NatsServer.start(tmp_path / "nats", port=server.port)
            async with await nats.connect(server.url) as client:
                await told(client, prefix, ("allocation.released", "first"), ("allocation.allocating", "second"))
                found = await stored(client, prefix)
        assert len(found) == len(set(found)) == 7
    finally:
        await server.stop()


async def test_a_new_leader_closes_chains_it_finds_open_and_tells_what_is_missing(
    fake_kube: FakeKube, nats_url: str, client: Client, prefix: str
) -> None:
    """A dead leader left: a reservation, a bound pod it never told of, and a pod that went unseen."""
    event_settings = EventSettings(prefix=prefix, instance="s-0")
    settings = settings_for(fake_kube.url, nats=nats_url, events=event_settings)
    async with running(settings) as dead:
        reserved = fake_kube.put("pods", pod("reserved"))
        await dead.filter(reserved, N1)
        gone = fake_kube.put("pods", pod("gone"))
        await dead.filter(gone, N1)
        await dead.bind(gone, "n1")
        await told(client, prefix, ("allocation.reserved", "reserved"), ("allocation.allocating", "gone"))
    fake_kube.remove("pods", "gone", "default")
    annotations = {
        keys.ASSIGNED_NODE: "n1",
        keys.ASSIGNED_TIME: "1",
        keys.ALLOCATION_ID: "0199-untold",
        ALLOCATED_KEY: "n1-0,NVIDIA,100,0:;",
    }
    fake_kube.put("pods", pod("untold", node_name="n1", annotations=annotations))
    async with running(settings_for(fake_kube.url, nats=nats_url, events=event_settings)):
        await told(
            client,
            prefix,
            ("allocation.expired", "reserved"),
            ("allocation.released", "gone"),
            ("allocation.allocating", "untold"),
        )


async def publish_health(client: Client, prefix: str, *, healthy: bool, version: str) -> None:
    event = events.CardHealthChanged(
        source="/hami/node-agent/n1",
        time=datetime.now(tz=UTC),
        node="n1",
        vendor="NVIDIA",
        card_id="n1-0",
        healthy=healthy,
        cause="xid",
        resource_version=version,
    )
    await client.jetstream(timeout=PATIENCE_SECONDS).publish(
        event.subject(prefix), events.encode(event), headers=events.headers(event)
    )


async def _healthy(scheduler: Scheduler, value: float) -> bool:
    _, text = await scheduler.observe("/metrics")
    return series(text, "hami_scheduler_card_healthy", card="n1-0") == value


async def test_a_health_event_counts_until_the_watch_has_come_so_far(
    fake_kube: FakeKube, scheduler: Scheduler, client: Client, prefix: str
) -> None:
    await told_streams(client, prefix)
    fake_kube.pause_watches("nodes")
    seen = int(fake_kube.get("nodes", "n1")["metadata"]["resourceVersion"])
    await publish_health(client, prefix, healthy=False, version=str(seen + 1000))
    await eventually(lambda: _healthy(scheduler, 0.0))
    created = fake_kube.put("pods", pod("waiting"))
    assert (await scheduler.filter(created, N1))["FailedNodes"] == {"n1": "1/1 CardNotHealth"}
    await publish_health(client, prefix, healthy=True, version=str(seen + 1001))
    await eventually(lambda: keys.WAKE in fake_kube.get("pods", "waiting", "default")["metadata"]["annotations"])
    await publish_health(client, prefix, healthy=False, version="1")  # older than what the watch has delivered
    await publish_health(client, prefix, healthy=True, version="2")
    assert (await scheduler.filter(created, N1))["NodeNames"] == N1


async def told_streams(client: Client, prefix: str) -> None:
    async def there() -> bool:
        try:
            await client.jetstream(timeout=PATIENCE_SECONDS).stream_info(
                streams.stream_name("INVENTORY", prefix=prefix)
            )
        except nats.js.errors.NotFoundError:
            return False
        return True

    await eventually(there)


async def ask(client: Client, prefix: str, name: str, question: object) -> Any:
    """The answer to a query, once it is served."""
    while True:
        try:
            reply = await client.request(subjects.query(name, prefix=prefix), msgspec.json.encode(question), timeout=60)
        except nats.errors.NoRespondersError:
            await asyncio.sleep(0.02)
            continue
        headers = reply.headers or {}
        if headers.get("Nats-Service-Error-Code"):
            return headers["Nats-Service-Error-Code"], headers["Nats-Service-Error"]
        return msgspec.json.decode(reply.data)


async def test_queries_are_answered(fake_kube: FakeKube, scheduler: Scheduler, client: Client, prefix: str) -> None:
    fake_kube.put("resourcequotas", quota("q", "tight", gpumem=100))
    created = fake_kube.put("pods", pod("a", memory=6000))
    await scheduler.filter(created, N1)
    await scheduler.bind(created, "n1")
    waiting: Json = fake_kube.put("pods", pod("waiting", memory=6000))
    await scheduler.filter(waiting, N1)

    explained = await ask(client, prefix, "explain", {"namespace": "default", "name": "waiting"})
    assert explained["state"] == "pending"
    assert explained["reasons"] == {"1/1 CardInsufficientMemory": 1}
    assert explained["sentence"].endswith("(asks 6,000), or when pod default/a ends")
    card = explained["nodes"][0]["cards"][0]
    assert (card["code"], card["asked"], card["used"], card["total"]) == ("CardInsufficientMemory", 6000, 6000, 10000)
    assert card["sentence"] == "The card has less free memory than asked."

    bound = await ask(client, prefix, "explain", {"namespace": "default", "name": "a"})
    assert (bound["state"], bound["node"], bound["slices"][0]["memory_mib"]) == ("bound", "n1", 6000)

    state = await ask(client, prefix, "state", {"node": "n1"})
    assert (state["bound_pods"], state["rejected_pods"], state["nodes_total"]) == (1, 1, 1)
    assert state["nodes"][0]["cards"][0]["used_memory_mib"] == 6000
    assert [each["name"] for each in state["nodes"][0]["pods"]] == ["a"]

    planned = await ask(client, prefix, "what-if", {"pods": [pod("x", memory=3000), pod("y", memory=3000)]})
    assert [each["node"] for each in planned["pods"]] == ["n1", ""]
    without = await ask(
        client, prefix, "what-if", {"pods": [pod("x", memory=6000)], "remove": [created["metadata"]["uid"]]}
    )
    assert (without["pods"][0]["node"], without["removed"]) == ("n1", [created["metadata"]["uid"]])
    again = await ask(client, prefix, "state", {"node": "n1"})
    assert again == state

    assert (await ask(client, prefix, "explain", {"namespace": "default", "name": "nobody"}))[0] == "404"
    assert (await ask(client, prefix, "explain", {"name": 7}))[0] == "400"
