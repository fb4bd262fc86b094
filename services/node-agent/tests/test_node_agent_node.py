"""Our Node object while a watch is late: the register annotation, and the lock of a node that is handed off by it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest
from hami_chassis.clock import SystemClock
from hami_chassis.kube import KubeClient, KubeSettings
from hami_chassis.metrics import ChassisMetrics
from hami_model import events, keys, kube, register
from hami_model.cards import Card
from hami_model.ids import CardId
from hami_model.vendors import vendor
from hami_node_agent.adapters.node import LockRelease, NodeRegistration, NodeWatch
from hami_node_agent.core.health import HealthChange
from hami_node_agent.core.outcome import Origin
from hami_node_agent.metrics import NodeAgentMetrics
from hami_sim.fake_kube import FakeKube
from prometheus_client import CollectorRegistry

NVIDIA = vendor("NVIDIA")
SICK, WELL = (
    (Card(id=CardId("GPU-1"), slots=10, memory_mib=1000, cores_percent=100, model="A", healthy=healthy),)
    for healthy in (False, True)
)


def pod(uid: str, phase: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "a", "namespace": "ns", "uid": uid, "annotations": {keys.BIND_PHASE: phase}},
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "image": "x"}]},
        "status": {"phase": "Pending"},
    }


class Told:
    """What was published."""

    def __init__(self) -> None:
        self.events: list[events.Event | events.UnknownEvent] = []

    def publish(self, _subject: str, payload: bytes, _headers: object) -> None:
        self.events.append(events.decode(payload))


class World:
    """One node, and what watches it."""

    def __init__(self, fake: FakeKube, client: KubeClient) -> None:
        self.fake, self.client = fake, client
        chassis, clock = ChassisMetrics(CollectorRegistry()), SystemClock()
        self.metrics = NodeAgentMetrics(CollectorRegistry())
        self.watch = NodeWatch(client, "n1", NVIDIA, metrics=chassis, clock=clock)
        self.seen_pods: list[kube.Pod] = []
        self.told = Told()
        self.registration = NodeRegistration(
            client,
            self.watch,
            NVIDIA,
            Origin(source="/hami/node-agent/n1", node="n1", prefix="hami"),
            sink=self.told,
            used_by=lambda _card: (),
            heartbeat_seconds=3600.0,
            metrics=self.metrics,
            clock=clock,
        )
        self.release = LockRelease(
            client, self.watch, "n1", pods=lambda: self.seen_pods, metrics=self.metrics, clock=clock
        )

    @property
    def annotations(self) -> dict[str, str]:
        return self.fake.get("nodes", "n1")["metadata"].get("annotations") or {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        works = [self.watch.informer.run(), self.registration.run(), self.release.run()]
        tasks = [asyncio.create_task(work) for work in works]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    fake = FakeKube()
    fake.put("nodes", {"metadata": {"name": "n1"}, "status": {}})
    settings = KubeSettings(kubeconfig=await fake.start(), timeout_seconds=60.0)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(fake.stop)
        client = await KubeClient.connect(settings, metrics=ChassisMetrics(CollectorRegistry()), clock=SystemClock())
        stack.push_async_callback(client.close)
        yield World(fake, client)


async def eventually(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  # the time limit is that of the test
        await asyncio.sleep(0.01)


async def test_what_is_offered_again_is_written_though_the_watch_still_shows_it(world: World) -> None:
    """A card fails and comes back before the watch has brought that it failed."""
    world.registration.begin("late-binding")
    world.registration.offer(WELL)
    well = register.encode(NVIDIA, WELL, "late-binding")
    async with world.running():
        await eventually(lambda: world.watch.view is not None and world.watch.view.register == well)
        world.fake.pause_watches("nodes")
        for cards in (SICK, WELL):
            world.registration.offer(cards)
            wanted = register.encode(NVIDIA, cards, "late-binding")
            await eventually(lambda: world.annotations.get(NVIDIA.register_key) == wanted)  # noqa: B023
        assert world.fake.count("patch", "nodes") == 3


async def test_of_what_changed_within_one_patch_the_last_of_each_card_is_told(world: World) -> None:
    """They have one id, so a second one would be taken for a repetition: here the one that says with what it broke."""
    world.registration.begin("late-binding")
    for cause, xid in (("probe-failed", None), ("xid", 79)):
        change = HealthChange(card_id=CardId("GPU-1"), healthy=False, cause=cause, xid=xid)
        world.registration.offer(SICK, (change,))
    async with world.running():
        await eventually(lambda: any(isinstance(event, events.InventoryReported) for event in world.told.events))
    told = [event for event in world.told.events if isinstance(event, events.CardHealthChanged)]
    assert [(event.healthy, event.cause, event.xid) for event in told] == [(False, "xid", 79)]


async def test_a_lock_stays_for_a_pod_though_an_earlier_one_of_its_name_is_done(world: World) -> None:
    """As of a set that makes its pods anew under their names, on a node whose watch of pods is late."""
    served, waiting = pod("u1", keys.BIND_PHASE_SUCCESS), pod("u2", keys.BIND_PHASE_ALLOCATING)
    world.seen_pods = [msgspec.convert(served, kube.Pod)]
    world.fake.put("pods", waiting)
    lock = {keys.NODE_LOCK: "2026-01-01T00:00:00Z,ns,a"}
    world.fake.put("nodes", {"metadata": {"name": "n1", "annotations": lock}, "status": {}})
    world.release.begin("lock")
    async with world.running():
        await world.fake.wait_for_requests("get", "pods")
        assert world.annotations == lock
        done = world.fake.put("pods", pod("u2", keys.BIND_PHASE_SUCCESS))
        world.seen_pods = [msgspec.convert(done, kube.Pod)]
        world.release.pod_seen(world.seen_pods[0])
        await eventually(lambda: world.annotations == {})
    assert world.fake.count("patch", "nodes") == 1


async def test_a_lock_goes_though_the_watch_has_not_brought_that_its_pod_is_deleted(world: World) -> None:
    world.seen_pods = [msgspec.convert(pod("u1", keys.BIND_PHASE_SUCCESS), kube.Pod)]
    lock = {keys.NODE_LOCK: "2026-01-01T00:00:00Z,ns,a"}
    world.fake.put("nodes", {"metadata": {"name": "n1", "annotations": lock}, "status": {}})
    world.release.begin("lock")
    async with world.running():
        await eventually(lambda: world.annotations == {})
