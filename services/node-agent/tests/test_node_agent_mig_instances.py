"""Making and destroying MIG instances over a driver in memory: only our own ever go, and only when nobody has them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hami_chassis.errors import Transient
from hami_model import kube
from hami_model.cards import MigPlacement
from hami_model.mig_allocations import MigInstance
from hami_node_agent.adapters.mig_instances import MigInstances
from hami_node_agent.core.cdi_spec import ForeignSpec, shown_as_instances
from hami_node_agent.core.device_lists import VisibleDevice
from hami_node_agent.core.handed_out import HandedContainer, HandedOut, HandedPod, HandedSlice, decode, encode
from hami_node_agent.core.mig_instances import LiveInstance

CARD = "GPU-a"
ONE, THREE = MigPlacement(start=6, size=1), MigPlacement(start=4, size=4)
KINDS = {"1g.5gb": 0, "3g.20gb": 2}


class Driver:
    """A MigDriver that counts."""

    def __init__(self) -> None:
        self.live: list[LiveInstance] = []
        self.made = 0
        self.destroyed: list[LiveInstance] = []
        self.in_use: set[int] = set()
        self.breaks_after_creating = False
        self.refuses = False
        self.breaks_after_half = False

    async def kind_of(self, card_id: str, profile: str) -> int:  # noqa: ARG002
        return KINDS[profile]

    async def instances(self, card_id: str) -> Sequence[LiveInstance]:  # noqa: ARG002
        return tuple(self.live)

    async def create(self, card_id: str, kind: int, placement: MigPlacement) -> LiveInstance:  # noqa: ARG002
        if self.refuses:
            raise Transient("no resources")
        self.made += 1
        bare = LiveInstance(gpu_instance=self.made, kind=kind, placement=placement)
        self.live.append(bare)
        if self.breaks_after_creating:
            raise Transient("the driver broke")
        return await self.complete(CARD, bare)

    async def complete(self, card_id: str, instance: LiveInstance) -> LiveInstance:  # noqa: ARG002
        number = instance.gpu_instance
        made = MigInstance(uuid=f"MIG-{number}", gpu_instance=number, compute_instance=0)
        whole = msgspec.structs.replace(instance, made=made)
        self.live[self.live.index(instance)] = whole
        return whole

    async def destroy(self, card_id: str, instance: LiveInstance) -> None:  # noqa: ARG002
        if instance.gpu_instance in self.in_use:
            raise Transient("in use")
        if self.breaks_after_half:
            self.live[self.live.index(instance)] = msgspec.structs.replace(instance, made=None)
            raise Transient("the driver broke")
        self.live.remove(instance)
        self.destroyed.append(instance)

    async def capability_minors(self, card_id: str, instance: MigInstance) -> tuple[int, int]:  # noqa: ARG002
        return 1, 2


class World:
    """`saved` is the book as the last save left it."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.book = HandedOut()
        self.pods: dict[str, kube.Pod] = {}
        self.saved = b""
        self.mig = MigInstances(self.driver, self.book, ledger=self)  # type: ignore[arg-type]

    async def save(self) -> None:
        self.saved = encode(self.book)

    def restart(self) -> None:
        """The agent starts anew with what it saved."""
        self.book = decode(self.saved)
        self.mig = MigInstances(self.driver, self.book, ledger=self)  # type: ignore[arg-type]

    def reserve(
        self, uid: str, profile: str, placement: MigPlacement, phase: str = "Running", container: str = "main"
    ) -> None:
        metadata = {"name": uid, "namespace": "ns", "uid": uid}
        self.pods[uid] = msgspec.convert({"metadata": metadata, "spec": {}, "status": {"phase": phase}}, kube.Pod)
        piece = HandedSlice(card_id=CARD, memory_mib=1, cores_percent=1, profile=profile, placement=placement)
        self.book.add_container(
            uid,
            HandedPod(namespace="ns", name=uid, allocation_id=uid),
            container,
            HandedContainer(slices=(piece,), region_name="", position=0),
        )

    async def make(self, uid: str, container: str = "main", *, one_after_the_other: bool = True) -> str:
        made = await self.mig.make(uid, container, self.save, one_after_the_other=one_after_the_other)
        (piece,) = made.slices
        assert piece.instance is not None
        return piece.instance.uuid

    def cached(self, uid: str) -> kube.Pod | None:
        return self.pods.get(uid)

    async def read(self, uid: str) -> kube.Pod | None:
        return self.pods.get(uid)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.case("MIG-09")
async def test_no_instance_of_a_living_pod_goes_for_another_s_reservation(world: World) -> None:
    world.reserve("runs", "1g.5gb", ONE)
    await world.make("runs")
    world.reserve("waits", "3g.20gb", THREE)

    with pytest.raises(Transient, match="that of pod ns/runs"):
        await world.make("waits")

    assert world.driver.destroyed == []
    assert [found.placement for found in world.driver.live] == [ONE]


@pytest.mark.case("MIG-09")
async def test_after_a_restart_a_pod_keeps_its_instance_by_uuid(world: World) -> None:
    world.reserve("runs", "1g.5gb", ONE)
    uuid = await world.make("runs")

    world.restart()

    assert await world.make("runs") == uuid
    assert (world.driver.made, world.driver.destroyed) == (1, [])


async def test_an_instance_of_somebody_else_is_neither_taken_nor_destroyed(world: World) -> None:
    foreign = await world.driver.create(CARD, KINDS["1g.5gb"], ONE)
    world.reserve("u", "1g.5gb", ONE)

    for _ in range(2):
        with pytest.raises(Transient, match="not HAMi's"):
            await world.make("u")
        await world.save()
        world.restart()
    await world.mig.release("u", world.save)

    assert world.driver.live == [foreign]


async def test_what_a_finished_pod_left_makes_room(world: World) -> None:
    world.reserve("over", "1g.5gb", ONE)
    await world.make("over")
    world.reserve("over", "1g.5gb", ONE, phase="Succeeded")
    world.reserve("next", "3g.20gb", THREE)

    await world.make("next")

    assert [found.placement for found in world.driver.live] == [THREE]


async def test_an_instance_in_use_stays_ours_until_it_can_go(world: World) -> None:
    world.reserve("gone", "1g.5gb", ONE)
    await world.make("gone")
    world.driver.in_use = {1}

    with pytest.raises(Transient, match="in use"):
        await world.mig.release("gone", world.save)
    world.restart()
    world.driver.in_use = set()
    await world.mig.release("gone", world.save)

    assert world.driver.live == []


@pytest.mark.parametrize("does", ["make", "release"])
async def test_an_instance_made_just_before_a_crash_is_known(world: World, does: str) -> None:
    world.reserve("u", "1g.5gb", ONE)
    world.driver.breaks_after_creating = True
    with pytest.raises(Transient, match="broke"):
        await world.make("u")
    world.driver.breaks_after_creating = False
    world.restart()

    if does == "make":
        assert await world.make("u") == "MIG-1"
        assert world.driver.made == 1
    else:
        await world.mig.release("u", world.save)
        assert world.driver.live == []


async def test_what_another_makes_after_we_could_not_is_not_ours(world: World) -> None:
    world.reserve("u", "1g.5gb", ONE)
    world.driver.refuses = True
    with pytest.raises(Transient, match="no resources"):
        await world.make("u")
    world.driver.refuses = False
    foreign = await world.driver.create(CARD, KINDS["1g.5gb"], ONE)

    with pytest.raises(Transient, match="not HAMi's"):
        await world.make("u")
    await world.mig.release("u", world.save)

    assert world.driver.live == [foreign]


def test_edits_open_the_instances_of_a_card() -> None:
    card_edits = {"deviceNodes": [{"path": "/dev/nvidia0"}]}
    spec = ForeignSpec(kind="nvidia.com/gpu", devices={CARD: card_edits}, general={})

    shown = shown_as_instances([VisibleDevice(uuid=CARD, index="0")], [21, 22], [spec])

    paths = [node["path"] for edits in shown.edits for node in edits.get("deviceNodes", [])]
    assert paths == ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22"]
    assert shown.environment == {"NVIDIA_VISIBLE_DEVICES": "void"}


async def test_an_instance_that_is_gone_is_made_anew(world: World) -> None:
    world.reserve("u", "1g.5gb", ONE)
    first = await world.make("u")
    world.driver.live.clear()  # the machine was started anew

    assert await world.make("u") != first


async def test_an_app_container_may_lie_where_an_init_container_lay(world: World) -> None:
    world.reserve("u", "1g.5gb", ONE, container="fetch")
    world.reserve("u", "3g.20gb", THREE)
    await world.make("u", "fetch")

    await world.make("u")

    assert [found.placement for found in world.driver.live] == [THREE]


async def test_containers_of_a_pod_share_an_instance_of_one_place_and_kind(world: World) -> None:
    world.reserve("u", "1g.5gb", ONE, container="fetch")
    world.reserve("u", "1g.5gb", ONE)
    first = await world.make("u", "fetch", one_after_the_other=False)

    assert await world.make("u", one_after_the_other=False) == first
    await world.mig.release("u", world.save)

    assert (world.driver.made, world.driver.live) == (1, [])


async def test_containers_that_are_asked_for_at_once_cannot_have_one_place_in_turn(world: World) -> None:
    world.reserve("u", "1g.5gb", ONE, container="fetch")
    world.reserve("u", "3g.20gb", THREE)
    await world.make("u", "fetch", one_after_the_other=False)

    with pytest.raises(Transient, match="is that of pod ns/u"):
        await world.make("u", one_after_the_other=False)

    assert [found.placement for found in world.driver.live] == [ONE]


async def test_half_of_a_destroyed_instance_is_still_ours(world: World) -> None:
    world.reserve("gone", "1g.5gb", ONE)
    await world.make("gone")
    world.driver.breaks_after_half = True
    with pytest.raises(Transient, match="broke"):
        await world.mig.release("gone", world.save)
    assert [found.made for found in world.driver.live] == [None]
    world.driver.breaks_after_half = False
    world.restart()

    await world.mig.release("gone", world.save)

    assert world.driver.live == []


async def test_nothing_is_done_on_a_card_that_is_filtered_out(world: World) -> None:
    world.reserve("gone", "1g.5gb", ONE)
    await world.make("gone")
    world.mig = MigInstances(world.driver, world.book, ledger=world, is_hidden=lambda card: card == CARD)  # type: ignore[arg-type]

    await world.mig.release("gone", world.save)

    assert (world.driver.destroyed, [found.placement for found in world.driver.live]) == ([], [ONE])


async def test_one_instance_in_use_does_not_keep_the_pod_s_others(world: World) -> None:
    world.reserve("gone", "1g.5gb", ONE, container="a")
    world.reserve("gone", "3g.20gb", MigPlacement(start=0, size=4), container="b")
    await world.make("gone", "a")
    await world.make("gone", "b")
    world.driver.in_use = {1}

    with pytest.raises(Transient, match="in use"):
        await world.mig.release("gone", world.save)

    assert [found.gpu_instance for found in world.driver.live] == [1]
