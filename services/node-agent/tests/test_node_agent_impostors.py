"""A pod that calls itself the mirror of another takes nothing from it; a static pod's mirror still stands for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest
from hami_chassis.kube import KubeClient, KubeSettings
from hami_chassis.metrics import ChassisMetrics
from hami_model import kube
from hami_node_agent.adapters.collection import Collection
from hami_node_agent.adapters.late_binding import LateBinding
from hami_node_agent.adapters.pods import NodePods, PodSubscriber
from hami_node_agent.core.entitlement import MIRROR_KEY, by_kubelet_uid
from hami_node_agent.core.handed_out import HandedContainer, HandedOut, HandedPod
from hami_sim.fake_kube import FakeKube
from hami_sim.manual_clock import ManualClock
from node_agent_world import until
from prometheus_client import CollectorRegistry


def pod(name: str, uid: str, *, mirror_of: str = "") -> dict[str, Any]:
    annotations = {MIRROR_KEY: mirror_of} if mirror_of else {}
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": uid, "annotations": annotations},
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "image": "x"}]},
        "status": {"phase": "Pending"},
    }


def decoded(found: dict[str, Any]) -> kube.Pod:
    return msgspec.convert(found, kube.Pod)


VICTIM = pod("victim", "u1")
IMPOSTOR = pod("a", "u2", mirror_of="u1")
STATIC = pod("static", "u3", mirror_of="config-hash")
SECOND = pod("z", "u4", mirror_of="config-hash")


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([IMPOSTOR, VICTIM], {"u1": "u1"}),
        ([VICTIM, IMPOSTOR], {"u1": "u1"}),
        ([STATIC], {"config-hash": "u3"}),
        ([SECOND, STATIC], {"config-hash": "u3"}),
        ([STATIC, VICTIM, IMPOSTOR], {"config-hash": "u3", "u1": "u1"}),
    ],
)
def test_a_uid_belongs_to_the_pod_that_has_it(pods: list[dict[str, Any]], expected: dict[str, str]) -> None:
    assert {uid: found.uid for uid, found in by_kubelet_uid(decoded(one) for one in pods).items()} == expected


class Leftovers:
    """Specifications and the book of the node's pods, in memory; nothing has a folder."""

    def __init__(self, *uids: str) -> None:
        self.specs = set(uids)
        container = HandedContainer(slices=(), region_name="r.cache", position=0)
        self.book = HandedOut(
            {
                uid: HandedPod(namespace="ns", name="victim", allocation_id="i", containers={"main": container})
                for uid in uids
            }
        )

    async def owners(self) -> set[str]:
        return set(self.specs)

    async def remove_pod(self, uid: str) -> None:
        self.specs.discard(uid)

    def is_missing(self) -> bool:
        return False

    async def write(self, book: HandedOut) -> None:
        assert book is self.book


class NoFolders:
    async def owners(self) -> set[str]:
        return set()


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


class Node:
    """The watch and the collection, as main joins them."""

    def __init__(self, client: KubeClient, left: Leftovers) -> None:
        self.subscriber = PodSubscriber()
        metrics = ChassisMetrics(CollectorRegistry())
        self.pods = NodePods(client, "n1", self.subscriber, metrics=metrics, clock=ManualClock())
        self.forgotten: list[str] = []
        self.collection = Collection(
            left.book,
            ledger=self.pods,
            cdi=cast("Any", left),
            files=cast("Any", NoFolders()),
            own=left,
            checkpoint=cast("Any", None),
            forget=self.forgotten.append,
            pods_synced=self.pods.informer.synced,
            clock=ManualClock(),
        )
        self.subscriber.on_gone.append(self.collection.pod_gone)

    async def sees(self, *uids: str) -> None:
        await until(lambda: {found.uid for found in self.pods.informer.values()} == set(uids), f"pods {uids}")

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.pods.informer.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("first", [IMPOSTOR, VICTIM], ids=["impostor", "victim"])
async def test_the_victim_is_found_and_keeps_its_things(
    fake: FakeKube, client: KubeClient, first: dict[str, Any]
) -> None:
    left = Leftovers("u1")
    node = Node(client, left)
    fake.put("pods", first)
    async with node.watching():
        await node.sees(first["metadata"]["uid"])
        for one in (VICTIM, IMPOSTOR):
            if one is not first:
                fake.put("pods", one)
        await node.sees("u1", "u2")

        found = node.pods.cached("u1")
        assert found is not None
        assert found.uid == "u1"
        assert [one.uid for one in node.pods.all_cached()] == ["u1"]
        assert [one.uid for one in await node.pods.read_all()] == ["u1"]

        fake.remove("pods", "a", "ns")
        await node.sees("u1")
        await node.collection.collect()

        assert (left.specs, set(left.book.uids()), node.forgotten) == ({"u1"}, {"u1"}, [])
        assert node.pods.cached("u1") is not None

        fake.remove("pods", "victim", "ns")
        await node.sees()
        await node.collection.collect()

    assert (left.specs, node.forgotten) == (set(), ["u1"])


async def test_an_impostor_s_end_proves_nothing_of_a_pod_that_the_watch_has_not_brought(
    fake: FakeKube, client: KubeClient
) -> None:
    left = Leftovers("u1")
    node = Node(client, left)
    fake.put("pods", VICTIM)
    for tell in node.subscriber.on_gone:
        tell(decoded(IMPOSTOR))

    await node.collection.collect()

    assert (left.specs, node.forgotten) == ({"u1"}, [])


async def test_a_read_past_the_watch_finds_the_victim(fake: FakeKube, client: KubeClient) -> None:
    node = Node(client, Leftovers())
    fake.put("pods", IMPOSTOR)
    async with node.watching():
        await node.sees("u2")
    fake.put("pods", VICTIM)

    found = await node.pods.read("u1")

    assert found is not None
    assert found.uid == "u1"
    assert [one.uid for one in await node.pods.read_all()] == ["u1"]


async def test_a_static_pod_s_things_stay_as_long_as_its_mirror(fake: FakeKube, client: KubeClient) -> None:
    left = Leftovers("config-hash")
    node = Node(client, left)
    fake.put("pods", STATIC)
    async with node.watching():
        await node.sees("u3")
        await node.collection.collect()
        found = node.pods.cached("config-hash")
        assert found is not None
        assert (found.uid, left.specs) == ("u3", {"config-hash"})

        fake.remove("pods", "static", "ns")
        await node.sees()
        await node.collection.collect()

    assert (left.specs, node.pods.cached("config-hash")) == (set(), None)


class Told:
    """Outcomes, by the UID of the pod that they name."""

    def __init__(self) -> None:
        self.uids: list[str] = []

    def write(self, pod: kube.Pod, _annotations: object) -> None:
        self.uids.append(pod.uid)

    def announce_failed(self, pod: kube.Pod, _reason: str, _holders: object = ()) -> None:
        self.uids.append(pod.uid)


async def test_the_outcome_of_the_victim_is_never_told_of_the_impostor(client: KubeClient) -> None:
    book = HandedOut({"u1": HandedPod(namespace="ns", name="victim", allocation_id="i", state="failed", reason="x")})
    told, nothing = Told(), cast("Any", None)
    late_binding = LateBinding(
        "n1", nothing, book,
        ledger=Node(client, Leftovers()).pods, checkpoint=nothing, ownership=None, files=nothing,
        own=nothing, inventory=nothing, outcomes=cast("Any", told), metrics=nothing, new_region_name=str,
        enforcing=nothing, showing=nothing,
    )  # fmt: skip

    late_binding.news.announce_again(decoded(IMPOSTOR))
    assert told.uids == []

    late_binding.news.announce_again(decoded(VICTIM))
    assert set(told.uids) == {"u1"}
