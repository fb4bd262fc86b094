"""HAMi's node agent under our scheduler: its registrations, its phases, the node lock; beside nodes of ours, too."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import their_agent
from hami_model import register, vendors
from hami_sim.fake_kube import FakeKube
from scheduler_builders import container, limits, node, pod
from scheduler_service import Scheduler, eventually, running, series, settings_for
from their_agent import LOCK, PHASE, TO_ALLOCATE
from their_scheduler import REGISTER
from vectors import Row, rows

Json = dict[str, Any]
VECTORS = Path(__file__).parents[1] / "data/vectors"
REGISTERED = [
    row
    for row in rows(VECTORS / "node-register.jsonl.xz")
    if row["expect"].get("register_annotation") and "suspect" not in row["tags"]
]
TWO_CARDS = next(row for row in REGISTERED if row["id"] == "reg-002")
"""Two cards of 15,360 MiB in ten parts."""


def their_node(name: str, row: Row) -> Json:
    """A node as HAMi's agent registered it."""
    expect = row["expect"]
    offered = sum(device["replicas"] for device in expect["kubelet_devices"])
    found = node(name, 0)
    scores = {"hami.io/node-nvidia-score": expect["score_annotation"]} if expect["score_annotation"] else {}
    found["metadata"]["annotations"] = {REGISTER: expect["register_annotation"], **scores}
    for part in ("capacity", "allocatable"):
        found["status"][part] = {**found["status"][part], "nvidia.com/gpu": str(offered)}
    return found


@pytest.fixture
async def kube() -> AsyncIterator[FakeKube]:
    fake = FakeKube()
    await fake.start()
    yield fake
    await fake.stop()


class Cluster:
    """Our scheduler, and HAMi's agent on one node: kubelet asks it container by container when the test says so."""

    def __init__(self, kube: FakeKube, scheduler: Scheduler, node_name: str = "theirs") -> None:
        self.kube = kube
        self.scheduler = scheduler
        self.node_name = node_name

    async def place(self, name: str, node_name: str = "", **fields: Any) -> None:
        """Filter and bind, as kube-scheduler asks for them: a bind that fails is tried again."""
        chosen = node_name or self.node_name
        created = self.kube.put("pods", pod(name, **fields))
        answer = await self.scheduler.filter(created, [chosen])
        assert answer["NodeNames"] == [chosen], answer

        async def bound() -> bool:
            return (await self.scheduler.bind(created, chosen))["Error"] == ""

        await eventually(bound)

    @property
    def lock(self) -> str | None:
        found: str | None = self.kube.get("nodes", self.node_name)["metadata"]["annotations"].get(LOCK)
        return found

    def annotations(self, name: str) -> dict[str, str]:
        found: dict[str, str] = self.kube.get("pods", name, "default")["metadata"]["annotations"]
        return found

    def agent_allocates(self, count: int = 1) -> str:
        """Kubelet's call for one container with that many cards. Returns the agent's error."""
        pods = sorted(self.kube.all("pods"), key=lambda one: str(one["metadata"]["name"]))
        found = their_agent.allocate(self.node_name, self.lock, pods, [["an-id"] * count])
        for each in pods:
            changed = copy.deepcopy(each)
            changed["metadata"]["annotations"] = found.pods["default", each["metadata"]["name"]]
            if changed["metadata"]["annotations"] != each["metadata"].get("annotations", {}):
                self.kube.put("pods", changed)
        if found.lock != self.lock:
            changed = copy.deepcopy(self.kube.get("nodes", self.node_name))
            del changed["metadata"]["annotations"][LOCK]
            self.kube.put("nodes", changed)
        return found.error


@pytest.fixture
async def cluster(kube: FakeKube) -> AsyncIterator[Cluster]:
    kube.put("nodes", their_node("theirs", TWO_CARDS))
    async with running(settings_for(kube.url)) as scheduler:
        yield Cluster(kube, scheduler)


async def test_every_recorded_registration_is_read_to_the_last_card(kube: FakeKube) -> None:
    for row in REGISTERED:
        kube.put("nodes", their_node(row["id"], row))
    expected = {
        (row["id"], card.id): card.memory_mib * 2**20
        for row in REGISTERED
        for card in register.decode(vendors.vendor(vendors.NVIDIA), row["expect"]["register_annotation"])
    }
    assert len(expected) > 150
    async with running(settings_for(kube.url)) as scheduler:

        async def all_there() -> bool:
            _, text = await scheduler.observe("/metrics")
            # Cards of MIG and unhealthy ones included: what they can take is another question.
            found = {
                key: series(text, "hami_scheduler_card_memory_bytes", node=key[0], card=key[1]) for key in expected
            }
            return found == expected

        await eventually(all_there)


async def test_the_lock_goes_from_pod_to_pod_as_the_agent_hands_over(cluster: Cluster) -> None:
    await cluster.place("first", memory=3000)
    assert cluster.lock is not None
    assert cluster.lock.endswith(",default,first")
    assert cluster.annotations("first")[PHASE] == "allocating"

    second = asyncio.create_task(cluster.place("second", memory=5000))
    answer = await cluster.scheduler.bind(cluster.kube.put("pods", pod("third", memory=100)), "theirs")
    assert "node lock contention" in answer["Error"]
    assert not second.done()
    assert cluster.agent_allocates() == ""
    assert cluster.annotations("first")[PHASE] == "success"
    await second
    assert cluster.lock is not None
    assert cluster.lock.endswith(",default,second")
    assert cluster.agent_allocates() == ""
    assert cluster.lock is None
    assert cluster.annotations("second")[PHASE] == "success"


async def test_every_container_of_a_pod_gets_the_slot_that_the_agent_takes_next(cluster: Cluster) -> None:
    """An init container and two app containers ask, one between them does not."""
    asks = limits(memory=1000)
    await cluster.place(
        "many",
        init_containers=[container("first", ask=asks)],
        containers=[
            container("a", ask=limits(memory=2000)),
            container("plain"),
            container("b", ask=limits(gpu=2, memory=500)),
        ],
    )
    slots = their_agent.decode(cluster.annotations("many")[TO_ALLOCATE])
    assert [[piece[2] for piece in slot] for slot in slots] == [[1000], [2000], [], [500, 500], []]
    for count in (1, 1):
        assert cluster.agent_allocates(count) == ""
        assert cluster.lock is not None
    assert cluster.agent_allocates(2) == ""
    assert cluster.annotations("many")[PHASE] == "success"
    assert cluster.lock is None


async def test_a_hand_over_that_fails_holds_up_nobody(cluster: Cluster) -> None:
    await cluster.place("fails", memory=3000)
    assert cluster.agent_allocates(count=2) != ""
    assert cluster.annotations("fails")[PHASE] == "failed"
    assert cluster.lock is None
    await cluster.place("next", memory=3000)
    assert cluster.agent_allocates() == ""


async def test_what_the_agent_handed_out_is_counted_by_a_scheduler_that_starts_later(kube: FakeKube) -> None:
    kube.put("nodes", their_node("theirs", TWO_CARDS))
    async with running(settings_for(kube.url)) as before:
        cluster = Cluster(kube, before)
        await cluster.place("whole", gpu=2, memory=15_000)
        assert cluster.agent_allocates(2) == ""
    async with running(settings_for(kube.url)) as after:
        answer = await after.filter(kube.put("pods", pod("late", memory=1000)), ["theirs"])
        assert answer["FailedNodes"] == {"theirs": "2/2 CardInsufficientMemory"}


async def test_on_a_node_of_ours_beside_it_nothing_is_locked(kube: FakeKube) -> None:
    kube.put("nodes", their_node("theirs", TWO_CARDS))
    kube.put("nodes", node("ours", 2))
    async with running(settings_for(kube.url)) as scheduler:
        cluster = Cluster(kube, scheduler)
        await cluster.place("waits", memory=1000)
        await asyncio.gather(*(cluster.place(f"p{number}", "ours", memory=1000) for number in range(10)))
        assert LOCK not in kube.get("nodes", "ours")["metadata"]["annotations"]
        assert cluster.lock is not None
        assert cluster.lock.endswith(",default,waits")


async def test_events_have_the_reasons_that_hami_s_have(cluster: Cluster) -> None:
    await cluster.place("p", memory=1000)

    def reasons() -> set[str]:
        return {event["reason"] for event in cluster.kube.all("events") if event["involvedObject"]["name"] == "p"}

    await eventually(lambda: {"FilteringSucceed", "BindingSucceed"} <= reasons())
