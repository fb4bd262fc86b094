"""Reading pods of the node and writing outcomes, against the API server imitation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from hami_chassis.bus import Message
from hami_chassis.kube import KubeClient, KubeSettings
from hami_chassis.metrics import ChassisMetrics
from hami_model import events, kube
from hami_node_agent.adapters.bus_events import AllocatingHints
from hami_node_agent.adapters.pods import NodePods, PodPatches, PodSubscriber
from hami_node_agent.metrics import NodeAgentMetrics
from hami_sim.fake_kube import FakeKube
from hami_sim.manual_clock import ManualClock
from prometheus_client import CollectorRegistry


def pod(name: str, uid: str, *, node: str = "n1", mirror_of: str = "") -> dict[str, Any]:
    annotations = {"kubernetes.io/config.mirror": mirror_of} if mirror_of else {}
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": uid, "annotations": annotations},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "x"}]},
        "status": {"phase": "Pending"},
    }


@pytest.fixture
async def fake() -> AsyncIterator[FakeKube]:
    found = FakeKube()
    yield found
    await found.stop()


@pytest.fixture
async def client(fake: FakeKube) -> AsyncIterator[KubeClient]:
    settings = KubeSettings(kubeconfig=await fake.start(), timeout_seconds=60.0)
    found = await KubeClient.connect(settings, metrics=ChassisMetrics(CollectorRegistry()), clock=ManualClock())
    yield found
    await found.close()


def ledger(client: KubeClient) -> NodePods:
    metrics = ChassisMetrics(CollectorRegistry())
    return NodePods(client, "n1", PodSubscriber(), metrics=metrics, clock=ManualClock())


async def test_without_a_hint_the_node_s_pods_are_listed(fake: FakeKube, client: KubeClient) -> None:
    fake.put("pods", pod("a", "u1"))
    fake.put("pods", pod("b", "u2", node="n2"))

    found = await ledger(client).read("u1")

    assert found is not None
    assert found.metadata.name == "a"
    assert await ledger(client).read("u2") is None
    assert [one.uid for one in await ledger(client).read_all()] == ["u1"]
    assert fake.count("get", "pods") == 0


async def test_an_event_of_the_scheduler_makes_it_one_get(fake: FakeKube, client: KubeClient) -> None:
    fake.put("pods", pod("a", "u1"))
    pods = ledger(client)
    event = events.AllocationAllocating(
        source="/hami/scheduler/x", time=ManualClock().now(), allocation_id="i", node="n1",
        pod=events.PodRef(namespace="ns", name="a", uid="u1"),
    )  # fmt: skip
    await AllocatingHints("n1", pods.hint).handle(
        Message(subject=event.subject(), payload=events.encode(event), headers={})
    )

    found = await pods.read("u1")

    assert found is not None
    assert found.uid == "u1"
    assert (fake.count("get", "pods"), fake.count("list", "pods")) == (1, 0)


@pytest.mark.parametrize(
    "standing",
    [
        pytest.param(None, id="it is gone"),
        pytest.param(pod("a", "u9"), id="another pod has its name"),
        pytest.param(pod("a", "u1", node="n2"), id="it is bound elsewhere"),
    ],
)
async def test_a_hint_is_no_proof(fake: FakeKube, client: KubeClient, standing: dict[str, Any] | None) -> None:
    if standing is not None:
        fake.put("pods", standing)
    pods = ledger(client)
    pods.hint(events.PodRef(namespace="ns", name="a", uid="u1"))

    assert await pods.read("u1") is None
    assert fake.count("list", "pods") == 0


async def test_what_is_no_event_is_left_alone() -> None:
    heard: list[events.PodRef] = []
    for payload in (b"", b"{}", b"\xff", b'{"type": "x"}'):
        await AllocatingHints("n1", heard.append).handle(Message(subject="s", payload=payload, headers={}))

    assert heard == []


async def test_a_static_pod_is_known_by_kubelet_s_uid(fake: FakeKube, client: KubeClient) -> None:
    fake.put("pods", pod("a", "u1", mirror_of="config-hash"))

    found = await ledger(client).read("config-hash")

    assert found is not None
    assert found.uid == "u1"


# ---- writing -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def writing(client: KubeClient, clock: ManualClock) -> AsyncIterator[PodPatches]:
    patches = PodPatches(client, "n1", metrics=NodeAgentMetrics(CollectorRegistry()), clock=clock)
    task = asyncio.create_task(patches.run())
    yield patches
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def known(name: str, uid: str) -> kube.Pod:
    return msgspec.convert(pod(name, uid), kube.Pod)


async def nothing_waits(patches: PodPatches, clock: ManualClock) -> None:
    while patches.waiting:
        if clock.sleeping:
            clock.advance(60)
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("status", [500, 503, 403, 409])
async def test_a_wish_is_written_until_it_holds(fake: FakeKube, client: KubeClient, status: int) -> None:
    fake.put("pods", pod("a", "u1"))
    fake.fail("patch", "pods", status, times=3)
    clock = ManualClock()
    async with writing(client, clock) as patches:
        patches.want(known("a", "u1"), {"k": "v"})
        await nothing_waits(patches, clock)

    metadata = fake.get("pods", "a", "ns")["metadata"]
    assert metadata["annotations"]["k"] == "v"
    assert metadata["labels"]["hami.io/vgpu-node"] == "n1"
    assert fake.count("patch", "pods") == 4


@pytest.mark.parametrize("standing", [None, pod("a", "u2")])
async def test_a_pod_that_is_gone_gets_nothing_and_neither_does_its_successor(
    fake: FakeKube, client: KubeClient, standing: dict[str, Any] | None
) -> None:
    if standing is not None:
        fake.put("pods", standing)
    clock = ManualClock()
    async with writing(client, clock) as patches:
        patches.want(known("a", "u1"), {"k": "v"})
        await nothing_waits(patches, clock)

    assert standing is None or "k" not in fake.get("pods", "a", "ns")["metadata"].get("annotations", {})


async def test_one_pod_s_trouble_does_not_hold_up_the_others(fake: FakeKube, client: KubeClient) -> None:
    fake.put("pods", pod("a", "u1"))
    fake.put("pods", pod("b", "u2"))
    fake.fail("patch", "pods", 503, nth=1)
    clock = ManualClock()
    async with writing(client, clock) as patches:
        patches.want(known("a", "u1"), {"k": "first"})
        patches.want(known("b", "u2"), {"k": "v"})
        patches.want(known("a", "u1"), {"k": "second"})
        await nothing_waits(patches, clock)

    assert [fake.get("pods", name, "ns")["metadata"]["annotations"]["k"] for name in "ab"] == ["second", "v"]
