"""The forwarder that stands in for a Service: follows the Lease, closes what belonged to the leader of before."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from hami_chassis.clock import SystemClock
from hami_chassis.kube import KubeClient, KubeSettings
from hami_chassis.metrics import ChassisMetrics
from hami_chassis.settings import SettingsError, load_settings
from hami_sim.fake_kube import FakeKube
from hami_sim.leader_forwarder.forwarder import Forwarder
from hami_sim.leader_forwarder.lease_holder import LeaseHolder, replica_name
from hami_sim.leader_forwarder.main import ForwarderSettings
from hami_sim.loopback_ports import choose_free_ports
from prometheus_client import CollectorRegistry

UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"


@pytest.mark.parametrize(
    ("identity", "name"),
    [
        pytest.param(f"scheduler-0-{UUID}", "scheduler-0", id="a replica's name and a uuid"),
        pytest.param(f"host_{UUID}", "host", id="joined by an underscore"),
        pytest.param("scheduler-0", "scheduler-0", id="no uuid"),
        pytest.param("", "", id="nobody"),
        pytest.param(UUID, "", id="a uuid alone"),
    ],
)
def test_replicas_are_known_by_what_stands_before_the_uuid(identity: str, name: str):
    assert replica_name(identity) == name


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        pytest.param([], "at least one", id="nobody to forward to"),
        pytest.param(["addresses={a: nowhere}"], "not host:port", id="no port"),
        pytest.param(["addresses={a: '127.0.0.1:1'}", "lease.look_seconds=0"], "positive", id="no pause"),
    ],
)
def test_settings_that_cannot_be(sets: list[str], said: str):
    with pytest.raises(SettingsError, match=said):
        load_settings(ForwarderSettings, environment={}, sets=sets)


@asynccontextmanager
async def answering(word: str) -> AsyncIterator[str]:
    """A server that answers every line with its word; yields its address."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while line := await reader.readline():
                writer.write(word.encode() + b" " + line)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@asynccontextmanager
async def running(*work) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def ask(port: int, text: str = "hello") -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text.encode() + b"\n")
    answer = await reader.readline()
    writer.close()
    return answer.decode().strip()


class TestForwarder:
    async def test_bytes_go_to_the_leader_and_back(self):
        known = asyncio.Event()
        known.set()
        (port,) = choose_free_ports(1)
        async with answering("a") as address:
            forwarder = Forwarder(leader=lambda: address, leader_known=known)
            async with running(forwarder.run("127.0.0.1", port)):
                await forwarder.listening.wait()
                assert await ask(port) == "a hello"

    async def test_connections_end_with_the_leadership_and_new_ones_reach_the_next(self):
        known = asyncio.Event()
        known.set()
        (port,) = choose_free_ports(1)
        async with answering("a") as first, answering("b") as second:
            leader = first
            forwarder = Forwarder(leader=lambda: leader, leader_known=known)
            async with running(forwarder.run("127.0.0.1", port)):
                await forwarder.listening.wait()
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"x\n")
                assert await reader.readline() == b"a x\n"
                leader = second
                forwarder.close_connections()
                assert await reader.read() == b""
                writer.close()
                assert await ask(port) == "b hello"

    async def test_callers_wait_for_a_leader_and_are_sent_away_when_none_comes(self):
        known = asyncio.Event()
        (port,) = choose_free_ports(1)
        async with answering("a") as address:
            forwarder = Forwarder(leader=lambda: address, leader_known=known, wait_seconds=30)
            async with running(forwarder.run("127.0.0.1", port)):
                await forwarder.listening.wait()
                asked = asyncio.create_task(ask(port))
                await asyncio.sleep(0)
                known.set()
                assert await asked == "a hello"
        (port,) = choose_free_ports(1)
        impatient = Forwarder(leader=lambda: None, leader_known=asyncio.Event(), wait_seconds=0.01)
        async with running(impatient.run("127.0.0.1", port)):
            await impatient.listening.wait()
            with suppress(ConnectionError):
                assert await ask(port) == ""

    async def test_callers_that_wait_when_a_leader_comes_are_answered(self):
        """Its coming closes the connections to the one before; theirs is to nobody yet."""
        known = asyncio.Event()
        (port,) = choose_free_ports(1)
        async with answering("a") as address:
            leader: str | None = None
            forwarder = Forwarder(leader=lambda: leader, leader_known=known, wait_seconds=300)
            async with running(forwarder.run("127.0.0.1", port)):
                await forwarder.listening.wait()
                asked = asyncio.create_task(ask(port))
                while not forwarder.connections:  # noqa: ASYNC110  # it tells nobody
                    await asyncio.sleep(0.01)
                leader = address
                known.set()
                forwarder.close_connections()
                assert await asked == "a hello"

    async def test_a_leader_that_is_not_there_ends_the_connection(self):
        known = asyncio.Event()
        known.set()
        port, nobody = choose_free_ports(2)
        forwarder = Forwarder(leader=lambda: f"127.0.0.1:{nobody}", leader_known=known)
        async with running(forwarder.run("127.0.0.1", port)):
            await forwarder.listening.wait()
            with suppress(ConnectionError):
                assert await ask(port) == ""


class TestLeaseHolder:
    async def test_it_follows_the_lease(self):
        fake = FakeKube()
        url = await fake.start()
        metrics, clock = ChassisMetrics(CollectorRegistry()), SystemClock()
        client = await KubeClient.connect(KubeSettings(kubeconfig=url), metrics=metrics, clock=clock, user_agent="t")
        changed = asyncio.Queue[str | None]()
        holder = LeaseHolder(
            client, namespace="hami-system", name="hami-scheduler", addresses={"a": "h:1", "b": "h:2"},
            look_seconds=0.01, clock=clock,
        )  # fmt: skip
        holder.on_change = lambda: changed.put_nowait(holder.address)

        def held_by(name: str) -> None:
            identity = f"{name}-{uuid.uuid4()}" if name else ""
            metadata = {"name": "hami-scheduler", "namespace": "hami-system"}
            fake.put("leases", {"metadata": metadata, "spec": {"holderIdentity": identity}})

        try:
            async with running(holder.run()):
                for name, address in (("a", "h:1"), ("b", "h:2"), ("stranger", None), ("", None), ("a", "h:1")):
                    held_by(name)
                    assert await changed.get() == address
                    assert holder.known.is_set() == (address is not None)
                fake.fail("get", "leases", 503, times=3)
                await fake.wait_for_requests("get", "leases", fake.count("get", "leases") + 4)
                assert holder.address == "h:1"
        finally:
            await client.close()
            await fake.stop()
