"""One PreStartContainer call over ports in memory: what happens in which order, and what trouble costs."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hami_chassis.errors import Transient
from hami_model import device_config, kube, vendors
from hami_model.cards import Card
from hami_model.ids import CardId
from hami_node_agent.adapters.kubelet_files import KubeletCheckpointUnreadable
from hami_node_agent.adapters.late_binding import LateBinding
from hami_node_agent.core import cdi_spec
from hami_node_agent.core.cdi_spec import OwnSpec, Shown
from hami_node_agent.core.entitlement import MIRROR_KEY
from hami_node_agent.core.grant import ContainerFiles, HostLayout, HostState
from hami_node_agent.core.handed_out import HandedContainer, HandedOut, HandedPod, encode
from hami_node_agent.core.inventory import Inventory, OfferedCard
from hami_node_agent.metrics import NodeAgentMetrics
from hami_node_agent.ports import HostView, RefusedForGoodError
from hand_over_parts import default_parts
from kubelet_api.checkpoint import CheckpointView, read_checkpoint
from kubelet_api.deviceplugin_v1beta1_pb2 import CDIDevice, ContainerAllocateResponse
from node_agent_world import allocation_annotations
from prometheus_client import CollectorRegistry

NVIDIA = next(found for found in device_config.default_config().vendors if found.vendor.word == vendors.NVIDIA)
CARD = Card(id=CardId("A"), slots=10, memory_mib=10000, cores_percent=100, healthy=True)
REGION = "CUDA_DEVICE_MEMORY_SHARED_CACHE"


def pod(uid: str, *, memory: int = 1000, phase: str = "Pending", node: str = "n1", bind_time: int = 1) -> kube.Pod:
    return msgspec.convert(
        {
            "metadata": {
                "name": f"pod-{uid}",
                "namespace": "ns",
                "uid": uid,
                "annotations": allocation_annotations(f"A,NVIDIA,{memory},10:;", node, bind_time),
            },
            "spec": {"nodeName": "n1", "containers": [{"name": "main"}]},
            "status": {"phase": phase},
        },
        kube.Pod,
    )


class World:
    """All ports at once; what happened is in `log`, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.held: list[tuple[str, str, str]] = []
        """Pod UID, device ids with commas between and CDI name (or, with a slash, a region file)."""
        self.seen: dict[str, kube.Pod] = {}
        self.there: dict[str, kube.Pod] = {}
        self.reads = 0
        self.lists = 0
        self.has_synced = True
        self.looks = 0
        self.is_book_missing = False
        self.api_away = False
        self.checkpoint_fault = ""
        self.save_faults = 0
        self.second_opinion: tuple[str, str, str] | None = None
        self.saved = b""
        self.written: dict[str, dict[str, str]] = {}
        self.failed: list[str] = []
        self.inventory = Inventory(offered=(OfferedCard(card=CARD, minor=0, numa_node=None, kubelet_ids=CARD.slots),))
        self.book = HandedOut()
        outcomes = Outcomes(self)
        self.late_binding = LateBinding(
            "n1",
            NVIDIA,
            self.book,
            ledger=self,  # type: ignore[arg-type]  # several ports have a `read` and a `write`
            checkpoint=Checkpoint(self),
            ownership=self,
            files=self,
            own=Own(self),
            inventory=self,
            outcomes=outcomes,
            metrics=NodeAgentMetrics(CollectorRegistry()),
            new_region_name=lambda: "r.cache",
            **default_parts(HostLayout(), NVIDIA, inventory=self, outcomes=outcomes),
        )

    def bind(self, found: kube.Pod, *, seen: bool = True, device: str = "d1", name: str = "") -> None:
        self.there[found.uid] = found
        if seen:
            self.seen[found.uid] = found
        self.held.append((found.uid, device, name or f"cdi-{found.uid}"))

    def cached(self, uid: str) -> kube.Pod | None:
        return self.seen.get(uid)

    def all_cached(self) -> Iterable[kube.Pod]:
        return self.seen.values()

    async def read(self, uid: str) -> kube.Pod | None:
        self.reads += 1
        if self.api_away:
            raise Transient("the API server is away")
        return self.there.get(uid)

    async def read_all(self) -> Sequence[kube.Pod]:
        self.lists += 1
        if self.api_away:
            raise Transient("the API server is away")
        listed = list(self.there.values())
        await asyncio.sleep(0)
        return listed

    async def owner(self, resource: str, device_ids: frozenset[str]) -> tuple[str, str, str] | None:  # noqa: ARG002
        return self.second_opinion

    async def look(self, *, with_specs: bool) -> HostView:  # noqa: ARG002
        self.looks += 1
        return HostView(state=HostState(library="/l"), is_book_missing=self.is_book_missing)

    async def put(self, files: ContainerFiles | None, specification: OwnSpec | None) -> None:
        if files is not None:
            self.log.append(f"folder {files.pod_uid} {files.container}")
        if specification is not None:
            self.log.append(f"specification {specification.pod_uid} {specification.name}")
            edits = json.loads(specification.content)["devices"][0]["containerEdits"]
            self.written[specification.name] = dict(text.split("=", 1) for text in edits["env"])

    async def refresh_page(self, files: ContainerFiles) -> None:
        self.log.append(f"page {files.pod_uid} {files.container}")


class Checkpoint:
    def __init__(self, world: World) -> None:
        self._world = world

    async def read(self) -> CheckpointView:
        if self._world.checkpoint_fault:
            raise KubeletCheckpointUnreadable(self._world.checkpoint_fault)
        entries = [_entry(uid, device, name) for uid, device, name in self._world.held]
        return read_checkpoint(json.dumps({"Data": {"PodDeviceEntries": entries}, "Checksum": 0}).encode())


def _entry(uid: str, device: str, name: str) -> dict[str, Any]:
    by_lock = "/" in name
    answer = ContainerAllocateResponse(
        envs={REGION: name} if by_lock else {}, cdi_devices=[] if by_lock else [CDIDevice(name=f"hami.io/slice={name}")]
    )
    return {
        "PodUID": uid, "ContainerName": "main", "ResourceName": "nvidia.com/gpu",
        "DeviceIDs": {"-1": device.split(",")},
        "AllocResp": base64.b64encode(answer.SerializeToString()).decode(),
    }  # fmt: skip


class Own:
    def __init__(self, world: World) -> None:
        self._world = world

    async def write(self, book: HandedOut) -> None:
        await asyncio.sleep(0)
        if self._world.save_faults:
            self._world.save_faults -= 1
            raise Transient("disk full")
        self._world.saved = encode(book)
        self._world.log.append("saved")


class Outcomes:
    def __init__(self, world: World) -> None:
        self._world = world

    def write(self, pod: kube.Pod, annotations: Mapping[str, str]) -> None:
        self._world.log.append(f"phase {pod.uid} {annotations['hami.io/bind-phase']}")

    def announce_allocated(self, pod: kube.Pod, verification: str, held_by: object) -> None:  # noqa: ARG002
        self._world.log.append(f"allocated {pod.uid} {verification}")

    def announce_failed(self, pod: kube.Pod, reason: str, holders: Iterable[kube.Pod] = ()) -> None:
        self._world.failed.append(f"{pod.uid}: {reason} {[holder.uid for holder in holders]}")

    def warn(self, pod: kube.Pod, reason: str, message: str) -> None:
        self._world.log.append(f"{reason} {pod.uid} {message}")


@pytest.fixture
def world() -> World:
    return World()


async def test_saved_first_then_written_then_told(world: World) -> None:
    world.bind(pod("u"))

    await world.late_binding.pre_start(["d1"])

    assert world.log == [
        "saved", "folder u main", "specification u cdi-u", "phase u success", "allocated u verified",
    ]  # fmt: skip
    assert world.written["cdi-u"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1000m"
    assert (world.reads, world.lists, world.looks) == (0, 0, 1)


async def test_a_pod_that_the_watch_has_not_brought_is_read_and_its_neighbours_with_it(world: World) -> None:
    world.bind(pod("u"), seen=False)

    await world.late_binding.pre_start(["d1"])

    assert (world.reads, world.lists) == (1, 1)
    assert "specification u cdi-u" in world.log


async def test_a_mirror_is_not_taken_for_the_pod_whose_uid_it_claims(world: World) -> None:
    world.bind(pod("u"), seen=False)
    thief = pod("thief", memory=9999)
    world.seen["u"] = msgspec.structs.replace(
        thief,
        metadata=msgspec.structs.replace(thief.metadata, annotations={**thief.annotations, MIRROR_KEY: "u"}),
    )

    await world.late_binding.pre_start(["d1"])

    assert world.reads == 1
    assert world.written["cdi-u"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1000m"
    assert "allocated u verified" in world.log
    assert not world.failed


async def test_the_api_server_away_is_trouble_that_passes(world: World) -> None:
    world.bind(pod("u"), seen=False)
    world.api_away = True
    with pytest.raises(Transient, match="away"):
        await world.late_binding.pre_start(["d1"])
    assert not world.failed

    world.api_away = False
    await world.late_binding.pre_start(["d1"])

    assert "allocated u verified" in world.log


async def test_a_card_that_the_driver_cannot_tell_of_now_costs_no_pod_its_allocation(world: World) -> None:
    """As after a start of the agent while the card hangs: it is not known then, and comes when it answers."""
    world.bind(pod("u"))
    known = world.inventory
    world.inventory = Inventory(unread=frozenset({""}))
    with pytest.raises(Transient, match="cannot tell of all cards now"):
        await world.late_binding.pre_start(["d1"])
    assert not world.failed

    world.inventory = known
    await world.late_binding.pre_start(["d1"])
    assert "allocated u verified" in world.log


async def test_a_card_that_the_node_has_not_is_refused(world: World) -> None:
    world.bind(pod("u"))
    world.inventory = Inventory(unread=frozenset({"another"}))
    with pytest.raises(RefusedForGoodError, match="this node has no card A"):
        await world.late_binding.pre_start(["d1"])
    assert len(world.failed) == 1


async def test_what_cannot_be_saved_reaches_no_container(world: World) -> None:
    world.bind(pod("u"))
    world.save_faults = 1
    with pytest.raises(Transient, match="disk full"):
        await world.late_binding.pre_start(["d1"])
    assert world.log == []

    await world.late_binding.pre_start(["d1"])

    assert world.log[:3] == ["saved", "folder u main", "specification u cdi-u"]


async def test_a_book_that_somebody_removed_is_written_before_the_next_start(world: World) -> None:
    world.bind(pod("u"))
    await world.late_binding.pre_start(["d1"])
    world.log.clear()

    await world.late_binding.pre_start(["d1"])
    assert "saved" not in world.log
    world.is_book_missing = True
    world.log.clear()
    await world.late_binding.pre_start(["d1"])

    assert world.log[:2] == ["saved", "folder u main"]


async def test_hand_overs_of_one_moment_share_a_write_and_none_runs_ahead_of_it(world: World) -> None:
    for number in range(8):
        world.bind(pod(f"u{number}", memory=100), device=f"d{number}")

    await asyncio.gather(*(world.late_binding.pre_start([f"d{number}"]) for number in range(8)))

    assert world.log.count("saved") < 8
    first = world.log.index("saved")
    assert all(not line.startswith("specification") for line in world.log[:first])
    assert set(msgspec.json.decode(world.saved)["pods"]) == {f"u{number}" for number in range(8)}


async def test_a_specification_that_no_runtime_would_take_is_refused_before_it_is_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoilt(*_: object) -> Shown:
        return Shown(environment={}, edits=({"deviceNodes": [{"path": ""}]},))

    monkeypatch.setattr(cdi_spec, "shown_by_runtime", spoilt)
    world.bind(pod("a"))
    with pytest.raises(RefusedForGoodError, match=r"container main: the runtime would refuse.*set handoff\.shown_by"):
        await world.late_binding.pre_start(["d1"])
    assert world.written == {}
    monkeypatch.undo()
    await world.late_binding.pre_start(["d1"])
    assert list(world.written) == ["cdi-a"]


async def test_two_pods_never_both_take_the_last_share(world: World) -> None:
    for number in range(4):
        world.bind(pod(f"u{number}", memory=6000, bind_time=number), device=f"d{number}")

    results = await asyncio.gather(
        *(world.late_binding.pre_start([f"d{number}"]) for number in reversed(range(4))), return_exceptions=True
    )

    assert [isinstance(result, RefusedForGoodError) for result in reversed(results)] == [False, True, True, True]
    assert len(world.failed) == 3


async def test_a_pod_that_the_watch_has_not_brought_keeps_what_it_was_handed(world: World) -> None:
    world.bind(pod("early", memory=6000), device="d1", seen=False)
    await world.late_binding.pre_start(["d1"])
    world.bind(pod("late", memory=6000, bind_time=2), device="d2")

    with pytest.raises(RefusedForGoodError, match="10000 MiB of memory, but 12000"):
        await world.late_binding.pre_start(["d2"])
    assert [line.rpartition(" ")[2] for line in world.failed] == ["['early']"]


@pytest.mark.parametrize(("late_is_seen", "has_synced"), [(False, True), (False, False), (True, False)])
async def test_those_bound_earlier_come_first_though_the_watch_has_not_brought_them(
    world: World, late_is_seen: bool, has_synced: bool
) -> None:
    world.bind(pod("early", memory=6000), device="d1", seen=False)
    world.bind(pod("late", memory=6000, bind_time=2), device="d2", seen=late_is_seen)
    world.has_synced = has_synced

    with pytest.raises(RefusedForGoodError, match="10000 MiB of memory, but 12000"):
        await world.late_binding.pre_start(["d2"])
    await world.late_binding.pre_start(["d1"])


async def test_pods_read_at_the_same_moment_never_both_take_the_last_share(world: World) -> None:
    """Each was handed over after the other had asked who is there."""
    for number in range(4):
        world.bind(pod(f"u{number}", memory=6000, bind_time=number), device=f"d{number}", seen=False)
    world.has_synced = False

    results = await asyncio.gather(
        *(world.late_binding.pre_start([f"d{number}"]) for number in range(4)), return_exceptions=True
    )

    assert [isinstance(result, RefusedForGoodError) for result in results] == [False, True, True, True]


async def test_a_pod_that_is_gone_keeps_nothing_though_the_book_still_has_it(world: World) -> None:
    gone, told = pod("gone", memory=6000), pod("told", memory=3000)
    world.bind(gone, device="d1", seen=False)
    world.bind(told, device="d2")
    for device in ("d1", "d2"):
        await world.late_binding.pre_start([device])
    del world.there["gone"], world.there["told"], world.seen["told"]
    world.late_binding.pod_gone(told)
    world.lists = 0

    for number in range(3):
        world.bind(pod(f"new{number}", memory=3000, bind_time=2), device=f"n{number}")
        await world.late_binding.pre_start([f"n{number}"])

    assert world.lists == 1, "one list proves that the first is gone; of the second the watch told"


async def test_an_entry_of_a_pod_that_ended_does_not_stand_in_the_way_of_the_next(world: World) -> None:
    world.bind(pod("old", phase="Succeeded"))
    world.bind(pod("new"), seen=False)

    await world.late_binding.pre_start(["d1"])

    assert "specification new cdi-new" in world.log
    assert not any(" old" in line for line in world.log)


@pytest.mark.parametrize("gone", [True, False])
async def test_nor_does_one_whose_end_the_watch_has_not_brought(world: World, gone: bool) -> None:
    world.bind(pod("old", phase="Running"))
    if gone:
        del world.there["old"]
    else:
        world.there["old"] = pod("old", phase="Succeeded")
    world.bind(pod("new"))

    await world.late_binding.pre_start(["d1"])

    assert "specification new cdi-new" in world.log
    assert not any(" old" in line for line in world.log)


async def test_two_living_holders_are_a_contradiction(world: World) -> None:
    world.bind(pod("one"))
    world.bind(pod("two"))

    with pytest.raises(Transient, match="several living pods"):
        await world.late_binding.pre_start(["d1"])


async def test_a_second_opinion_that_differs_stops_the_container(world: World) -> None:
    world.bind(pod("u"))
    world.second_opinion = ("ns", "another", "main")
    with pytest.raises(Transient, match="ns/another"):
        await world.late_binding.pre_start(["d1"])

    world.second_opinion = ("ns", "pod-u", "main")
    await world.late_binding.pre_start(["d1"])


async def test_a_pod_that_nobody_knows_is_refused(world: World) -> None:
    world.held.append(("ghost", "d1", "cdi-ghost"))

    with pytest.raises(RefusedForGoodError, match="not known to the API server"):
        await world.late_binding.pre_start(["d1"])


async def test_more_cards_than_limits_can_be_held_on_are_refused_for_good(world: World) -> None:
    """The page has places for sixteen; who would be let through with fewer would have cards without a limit."""
    cards = [msgspec.structs.replace(CARD, id=CardId(f"A{number}"), index=number) for number in range(17)]
    world.inventory = Inventory(
        offered=tuple(OfferedCard(card=card, minor=0, numa_node=None, kubelet_ids=10) for card in cards)
    )
    for uid, count in (("u", 17), ("v", 16)):
        found = pod(uid)
        slot = "".join(f"{card.id},NVIDIA,100,5:" for card in cards[:count])
        given = {**found.annotations, **allocation_annotations(f"{slot};", "n1", 1)}
        metadata = msgspec.structs.replace(found.metadata, annotations=given)
        world.seen[uid] = world.there[uid] = msgspec.structs.replace(found, metadata=metadata)
        world.held.append((uid, ",".join(f"{uid}{number}" for number in range(count)), f"cdi-{uid}"))

    with pytest.raises(RefusedForGoodError, match=r"17 cards.*held on 16 in one container"):
        await world.late_binding.pre_start([f"u{number}" for number in range(17)])
    await world.late_binding.pre_start([f"v{number}" for number in range(16)])

    assert list(world.written) == ["cdi-v"]
    assert "phase u failed" in world.log


@pytest.mark.parametrize(
    ("phase", "ran", "told"),
    [
        ("Failed", False, "failed"),
        ("Failed", True, "success"),
        ("Succeeded", True, "success"),
        ("Running", True, "success"),
        ("Pending", False, "success"),
    ],
)
def test_after_a_start_a_pod_that_kubelet_rejected_is_not_told_to_have_its_cards(
    world: World, phase: str, *, ran: bool, told: str
) -> None:
    found = pod("u", phase=phase)
    if ran:
        status = msgspec.structs.replace(found.status, container_statuses=[kube.ContainerStatus(name="main")])
        found = msgspec.structs.replace(found, status=status)
    handed = HandedContainer(slices=(), region_name="r.cache", position=0)
    world.book.put("u", HandedPod(namespace="ns", name="pod-u", allocation_id="a", containers={"main": handed}))

    world.late_binding.news.announce_again(found)

    assert f"phase u {told}" in world.log
    assert ("allocated u verified" in world.log) is (told == "success")
    assert len(world.failed) == (told == "failed")


async def test_a_refusal_stands_when_the_annotation_is_mended(world: World) -> None:
    world.bind(pod("u", node="n2"))
    with pytest.raises(RefusedForGoodError, match="'n2'"):
        await world.late_binding.pre_start(["d1"])
    world.seen["u"] = world.there["u"] = pod("u")

    with pytest.raises(RefusedForGoodError, match="'n2'"):
        await world.late_binding.pre_start(["d1"])

    assert len(world.failed) == 1
    assert "phase u failed" in world.log


async def test_what_a_stale_cache_refuses_is_read_once_more(world: World) -> None:
    world.bind(pod("u"))
    world.seen["u"] = pod("u", node="n2")

    await world.late_binding.pre_start(["d1"])

    assert "allocated u verified" in world.log
    assert world.reads == 1


# ---- what the node lock gave -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [pytest.param("no permission", id="no checkpoint"), pytest.param("", id="nobody holds the ids")]
)
async def test_by_lock_what_cannot_be_verified_starts(world: World, fault: str) -> None:
    world.checkpoint_fault = fault

    await world.late_binding.verify(["d1"])


async def test_by_lock_another_s_limits_do_not_start(world: World) -> None:
    world.bind(pod("u"), name="/usr/local/vgpu/r.cache")
    given = HandedContainer(slices=(), region_name="r.cache", position=0)
    world.book.add_container("owner", HandedPod(namespace="ns", name="owner", allocation_id="x"), "main", given)

    with pytest.raises(RefusedForGoodError, match="another pod"):
        await world.late_binding.verify(["d1"])

    assert len(world.failed) == 1


async def test_a_late_bound_container_is_handed_over_also_under_the_lock(world: World) -> None:
    world.bind(pod("u"))

    await world.late_binding.verify(["d1"])

    assert "specification u cdi-u" in world.log
