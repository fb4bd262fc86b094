"""The NATS users of k8s/base on a real nats-server: each service can do its work, and cannot do another's."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
import yaml
from hami_chassis.bus import Bus, BusSettings, DurableConsumer, Endpoint, Message, MicroService, Reply, Stream
from hami_chassis.cloudevents import event_headers
from hami_chassis.metrics import ChassisMetrics
from hami_model.events.streams import StreamSettings
from hami_monitor.adapters.event_streams import usage_streams
from hami_node_agent.adapters.bus_events import node_streams
from hami_scheduler.adapters.event_streams import scheduler_streams
from hami_sim.loopback_ports import choose_free_ports
from hami_sim.nats_server import find_nats_server
from hami_sim.processes import start_program, stop_program
from hami_webhook.adapters.event_streams import admission_streams
from nats.aio.client import Client
from prometheus_client import CollectorRegistry

WORKLOAD = Path(__file__).resolve().parents[2] / "k8s/base/nats/workload.yaml"
USERS = ("scheduler", "webhook", "node-agent", "monitor", "reader")
LIMITS = StreamSettings()
SERVICES: dict[str, tuple[tuple[Stream, ...], tuple[str, ...]]] = {
    "scheduler": (
        scheduler_streams(LIMITS, prefix="hami"),
        ("hami.v1.placement.ns.uid.placed", "hami.v1.allocation.ns.n1.uid.reserved"),
    ),
    "webhook": (admission_streams(LIMITS, prefix="hami"), ("hami.v1.admission.ns.admitted",)),
    "node-agent": (
        node_streams(LIMITS, prefix="hami"),
        ("hami.v1.inventory.n1.NVIDIA", "hami.v1.health.n1.c1", "hami.v1.allocation.ns.n1.uid.allocated"),
    ),
    "monitor": (
        usage_streams(LIMITS, prefix="hami"),
        (
            "hami.v1.usage.ns.n1.uid",
            "hami.v1.usage.ns.n1.uid.not-enforced",
            "hami.v1.usage-node.n1",
            "hami.v1.usage-node.n1.out-of-band",
        ),
    ),
}
REFUSED = {
    "scheduler": ("hami.v1.usage-node.n1", "hami.v1.admission.ns.admitted", "$JS.API.STREAM.DELETE.HAMI_ALLOCATION"),
    "webhook": ("hami.v1.allocation.ns.n1.uid.reserved", "$JS.API.STREAM.PURGE.HAMI_ALLOCATION"),
    "node-agent": ("hami.v1.placement.ns.uid.placed", "hami.v1.query.state", "$JS.API.STREAM.DELETE.HAMI_INVENTORY"),
    "monitor": ("hami.v1.health.n1.c1", "hami.v1.inventory.n1.NVIDIA"),
    "reader": ("hami.v1.allocation.ns.n1.uid.released", "$JS.API.STREAM.CREATE.HAMI_USAGE"),
}


PATIENCE_SECONDS = 120
"""Of one answer: a machine of CI may be many times as slow as an idle one."""


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    (configuration,) = (
        each for each in yaml.safe_load_all(WORKLOAD.read_text()) if each["kind"] == "ConfigMap"
    )  # fmt: skip
    for name, text in configuration["data"].items():
        (tmp_path / name).write_text(text.replace("store_dir: /data", f"store_dir: {tmp_path / 'data'}"))
    port, monitoring = choose_free_ports(2)
    passwords = {f"{user.upper().replace('-', '_')}_PASSWORD": f"p-{user}" for user in USERS}
    # Options win over the file.
    places = ["-a", "127.0.0.1", "-p", str(port), "-m", str(monitoring)]
    server = start_program(
        "nats-server",
        [str(find_nats_server()), "-c", str(tmp_path / "nats.conf"), *places],
        log_path=tmp_path / "log",
        process_file=tmp_path / "process.json",
        environment={**os.environ, **passwords, "POD_NAME": "nats-0"},
    )
    yield f"nats://127.0.0.1:{port}"
    await stop_program(server)


def bus(url: str, user: str, streams: tuple[Stream, ...]) -> Bus:
    settings = BusSettings(servers=(url,), user=user, password=f"p-{user}", reconnect_seconds=0.05)
    return Bus(settings, name=user, metrics=ChassisMetrics(CollectorRegistry()), streams=streams)


@asynccontextmanager
async def running(bus: Bus) -> AsyncIterator[Bus]:
    task = asyncio.create_task(bus.run())
    try:
        await bus.wait_connected()
        yield bus
    finally:
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def client(url: str, user: str) -> AsyncIterator[tuple[Client, asyncio.Queue[str]]]:
    """A plain client and what the server refuses it."""
    refusals: asyncio.Queue[str] = asyncio.Queue()

    async def told(error: Exception) -> None:
        refusals.put_nowait(str(error).lower())

    connection = await nats.connect(url, user=user, password=f"p-{user}", error_cb=told)
    try:
        yield connection, refusals
    finally:
        await connection.close()


def headers(event_id: str) -> dict[str, str]:
    return event_headers(event_id=event_id, event_type="io.test.v1", source="test", time="2026-01-01T00:00:00Z")


@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_stores_its_events(service: str, url: str) -> None:
    streams, subjects = SERVICES[service]
    async with running(bus(url, service, streams)) as own:
        for subject in subjects:
            own.publish(subject, b"{}", headers(subject))
        await own.wait_published()
    async with client(url, "reader") as (reader, _):
        jetstream = reader.jetstream(timeout=PATIENCE_SECONDS)
        for subject in subjects:
            names = [stream.name for stream in streams]
            found = [name for name in names if (await jetstream.stream_info(name)).state.messages]
            assert found, subject


@pytest.mark.parametrize(("user", "subject"), [(user, subject) for user in REFUSED for subject in REFUSED[user]])
async def test_a_user_cannot_speak_for_others(user: str, subject: str, url: str) -> None:
    async with running(bus(url, "scheduler", ())), client(url, user) as (connection, refusals):
        await connection.publish(subject, b"{}")
        await connection.flush()
        assert "permissions violation" in await refusals.get()


async def test_the_server_asks_for_a_password(url: str) -> None:
    async with running(bus(url, "monitor", ())):  # the server runs
        reader, writer = await asyncio.open_connection(*url.removeprefix("nats://").split(":"))
        hello = await reader.readline()
        writer.close()
        await writer.wait_closed()
    assert json.loads(hello.removeprefix(b"INFO "))["auth_required"] is True


async def answered(reader: Client, subject: str) -> bytes:
    """The answer to a question, once somebody is there to give it."""
    while True:
        try:
            return bytes((await reader.request(subject, b"{}", timeout=PATIENCE_SECONDS)).data)
        except nats.errors.NoRespondersError:
            await asyncio.sleep(0.02)


async def test_the_scheduler_follows_news_and_answers_readers(url: str) -> None:
    scheduler_streams_, _ = SERVICES["scheduler"]
    node_streams_, _ = SERVICES["node-agent"]
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def take(message: Message) -> None:
        seen.put_nowait(message.subject)

    async def answer(_message: Message) -> Reply:
        return Reply(payload=b"{}")

    scheduler = bus(url, "scheduler", scheduler_streams_)
    scheduler.consume(
        DurableConsumer(stream="HAMI_INVENTORY", name="scheduler", subjects=["hami.v1.health.>"], from_now=False), take
    )
    scheduler.subscribe("hami.v1.allocation.>", take)
    endpoint = Endpoint(name="state", subject="hami.v1.query.state", answer=answer)
    scheduler.serve(MicroService(name="hami-scheduler", version="1.0.0", description="", endpoints=[endpoint]))
    async with running(bus(url, "node-agent", node_streams_)) as node, running(scheduler):
        node.publish("hami.v1.health.n1.c1", b"{}", headers("1"))
        await node.wait_published()
        assert await seen.get() == "hami.v1.health.n1.c1"
        async with client(url, "reader") as (reader, refusals):
            assert await answered(reader, "hami.v1.query.state") == b"{}"
            stored = await reader.jetstream(timeout=PATIENCE_SECONDS).subscribe(
                "hami.v1.health.>", stream="HAMI_INVENTORY", ordered_consumer=True
            )
            assert (await stored.next_msg(timeout=PATIENCE_SECONDS)).subject == "hami.v1.health.n1.c1"
            assert refusals.empty()
        last = [each.subject async for each in scheduler.last_per_subject("HAMI_INVENTORY", "hami.v1.health.>")]
        assert last == ["hami.v1.health.n1.c1"]
