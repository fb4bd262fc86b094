"""The scheduler under a real kube-apiserver and a real kube-scheduler."""

from __future__ import annotations

import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hami_sim.controlplane import ControlPlane, RestClient

sys.path.insert(0, str(Path(__file__).parents[2] / "services" / "scheduler" / "tests"))

from scheduler_builders import ALLOCATED_KEY, NVIDIA, node, pod, quota
from scheduler_service import Scheduler, eventually, running, series, settings_for

Json = dict[str, Any]


@pytest.fixture
async def scheduler(control_plane: ControlPlane) -> AsyncIterator[Scheduler]:
    """One replica, which the real kube-scheduler asks."""
    settings = settings_for(str(control_plane.kubeconfig))
    async with running(settings) as found:
        await control_plane.use_extender(found.url)
        yield found
        await control_plane.use_extender(None)


@pytest.fixture
async def node_name(kube: RestClient) -> AsyncIterator[str]:
    """A node with one card of 10,000 MiB. The name is new: the controllers remember earlier nodes by name."""
    name = f"node-{uuid.uuid4().hex[:8]}"
    await kube.post("/api/v1/nodes", node(name))
    await kube.wait_until(f"/api/v1/nodes/{name}", lambda found: not (found or {})["spec"].get("taints"))
    yield name
    await kube.delete(f"/api/v1/nodes/{name}")


class Pods:
    """Pods of one namespace."""

    def __init__(self, kube: RestClient, namespace: str) -> None:
        self._kube = kube
        self.path = f"/api/v1/namespaces/{namespace}/pods"
        self.namespace = namespace

    async def create(self, name: str, **fields: Any) -> Json:
        body = pod(name, namespace=self.namespace, **fields)
        del body["metadata"]["uid"], body["status"]
        return await self._kube.post(self.path, body)

    async def read(self, name: str) -> Json:
        return await self._kube.get(f"{self.path}/{name}")

    async def bound(self, name: str) -> Json:
        found = await self._kube.wait_until(
            f"{self.path}/{name}", lambda found: bool((found or {})["spec"].get("nodeName"))
        )
        assert found is not None
        return found

    async def pending(self, name: str, because: str = "") -> Json:
        """The pod once kube-scheduler found no node for it, for that reason.

        It may not have heard of the node at its first try, and write that there is none.
        """

        def is_rejected(found: Json | None) -> bool:
            conditions = (found or {}).get("status", {}).get("conditions", [])
            said = [c.get("message", "") for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"]
            return any(because in message for message in said)

        found = await self._kube.wait_until(f"{self.path}/{name}", is_rejected)
        assert found is not None
        return found

    async def delete(self, name: str) -> None:
        await self._kube.delete(f"{self.path}/{name}", gracePeriodSeconds="0")

    async def events_of(self, name: str) -> list[tuple[str, str]]:
        found = await self._kube.get(f"/api/v1/namespaces/{self.namespace}/events")
        return [(item["reason"], item["message"]) for item in found["items"] if item["involvedObject"]["name"] == name]


@pytest.fixture
def pods(kube: RestClient, namespace: str) -> Pods:
    return Pods(kube, namespace)


@pytest.mark.usefixtures("scheduler")
async def test_a_pod_that_asks_is_bound_with_its_whole_allocation(node_name: str, kube: RestClient, pods: Pods) -> None:
    created = await pods.create("slice", memory=3000, cores=30)
    version = created["metadata"]["resourceVersion"]
    async with kube.watch(pods.path, resourceVersion=version) as events:
        # kube-scheduler may not have heard of the node at its first try, and write that there is none.
        bound = await anext(change["object"] async for change in events if change["object"]["spec"].get("nodeName"))

    assert bound["spec"]["nodeName"] == node_name
    annotations = bound["metadata"]["annotations"]
    assert annotations[ALLOCATED_KEY] == f"{node_name}-0,NVIDIA,3000,30:;"
    assert annotations["hami.io/vgpu-node"] == node_name
    assert annotations["hami.io/bind-phase"] == "allocating"
    assert {"hami.io/vgpu-time", "hami.io/bind-time", "hami.io/allocation-id"} <= annotations.keys()
    assert bound["metadata"]["labels"] == {"hami.io/vgpu-node": node_name}
    found = await kube.get(f"/api/v1/nodes/{node_name}")
    assert "hami.io/mutex.lock" not in found["metadata"]["annotations"]


@pytest.mark.usefixtures("scheduler")
async def test_a_pod_that_waits_says_why_and_gets_the_card_when_the_other_is_gone(node_name: str, pods: Pods) -> None:
    await pods.create("first", memory=8000)
    await pods.bound("first")
    await pods.create("second", memory=8000)
    await pods.pending("second", "1/1 CardInsufficientMemory")

    async def is_explained() -> bool:
        told = await pods.events_of("second")
        return ("FilteringFailed", f"1 nodes CardInsufficientMemory({node_name})") in told

    await eventually(is_explained)
    await pods.delete("first")
    await pods.bound("second")


@pytest.mark.usefixtures("node_name")
async def test_a_pod_that_a_quota_held_back_is_woken_when_the_quota_is_raised(
    scheduler: Scheduler, kube: RestClient, pods: Pods
) -> None:
    path = f"/api/v1/namespaces/{pods.namespace}/resourcequotas"
    tight = quota("q", pods.namespace, gpumem=1000)
    await kube.post(path, tight)
    # kube-apiserver's own quota admission counts the same resource: it must let the pod be created.
    await kube.wait_until(f"{path}/q", lambda found: bool((found or {}).get("status", {}).get("hard")))
    await kube.patch(f"{path}/q", {"spec": {"hard": {"limits.nvidia.com/gpumem": "1000"}}})
    await eventually(lambda: _knows_quota(scheduler, pods.namespace, 1000))  # else the pod may be placed before
    await pods.create("held-back", memory=2000)
    await pods.pending("held-back", "ResourceQuotaNotFit")
    await kube.patch(f"{path}/q", {"spec": {"hard": {"limits.nvidia.com/gpumem": "2000"}}})
    await pods.bound("held-back")


async def _knows_quota(scheduler: Scheduler, namespace: str, mib: int) -> bool:
    _, text = await scheduler.observe("/metrics")
    return series(text, "hami_scheduler_quota_memory_limit_bytes", namespace=namespace) == mib * 2**20


@pytest.mark.case("LIF-04")
@pytest.mark.usefixtures("scheduler")
async def test_a_pod_that_waits_is_placed_when_cards_register(
    control_plane: ControlPlane, kube: RestClient, pods: Pods
) -> None:
    del control_plane
    name = f"node-{uuid.uuid4().hex[:8]}"
    bare = node(name)
    register_annotations = bare["metadata"].pop("annotations")
    await kube.post("/api/v1/nodes", bare)
    await kube.wait_until(f"/api/v1/nodes/{name}", lambda found: not (found or {})["spec"].get("taints"))
    await pods.create("early", memory=1000)
    await pods.pending("early")
    await kube.patch(f"/api/v1/nodes/{name}", {"metadata": {"annotations": register_annotations}})
    assert (await pods.bound("early"))["spec"]["nodeName"] == name
    await kube.delete(f"/api/v1/nodes/{name}")


async def test_a_scheduler_that_restarts_in_the_middle_loses_nothing(
    control_plane: ControlPlane, node_name: str, pods: Pods
) -> None:
    settings = settings_for(str(control_plane.kubeconfig))
    async with running(settings) as first:
        await control_plane.use_extender(first.url)
        await pods.create("before", memory=6000)
        await pods.bound("before")
    # Nobody answers: kube-scheduler retries with backoff.
    await pods.create("between", memory=3000)
    await pods.create("too-much", memory=3000)
    async with running(settings) as second:
        await eventually(lambda: _one_is_bound(pods, "between", "too-much"))
        answer = await second.filter(pod("probe", memory=3000), [node_name])
        assert answer["FailedNodes"] == {node_name: "1/1 CardInsufficientMemory"}
        await control_plane.use_extender(None)


async def _one_is_bound(pods: Pods, *names: str) -> bool:
    found = [await pods.read(name) for name in names]
    return [bool(each["spec"].get("nodeName")) for each in found].count(True) == 1


@pytest.mark.usefixtures("scheduler")
async def test_twenty_pods_at_once_are_bound_to_one_node_without_a_lock(
    node_name: str, kube: RestClient, pods: Pods
) -> None:
    await kube.patch(f"/api/v1/nodes/{node_name}", node(node_name, 2))
    for number in range(20):
        await pods.create(f"p{number}", memory=1000)
    held = [(await pods.bound(f"p{number}"))["metadata"]["annotations"][ALLOCATED_KEY] for number in range(20)]
    assert sorted(text.split(",")[0] for text in held) == [f"{node_name}-0"] * 10 + [f"{node_name}-1"] * 10
    assert all(text.split(",")[1] == NVIDIA for text in held)
    found = await kube.get(f"/api/v1/nodes/{node_name}")
    assert "hami.io/mutex.lock" not in found["metadata"]["annotations"]
