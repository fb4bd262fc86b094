"""The agent is killed at every single step of making and destroying MIG instances; what was reserved then exists, once.

A pod comes, goes, and another is given its place, or one that overlaps it. Each step is a call of the driver, half of
one, or a save of the book; the agent is killed before it or after it, twice in a life.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import msgspec
import pytest
from hami_chassis.errors import Transient
from hami_model import kube
from hami_model.cards import MigPlacement
from hami_model.mig_allocations import MigInstance
from hami_node_agent.adapters.mig_instances import MigInstances
from hami_node_agent.core.handed_out import HandedContainer, HandedOut, HandedPod, HandedSlice, decode, encode
from hami_node_agent.core.mig_instances import LiveInstance, overlap

CARD = "GPU-a"
KINDS = {"1g.5gb": 0, "3g.20gb": 2}
Reserved = tuple[str, MigPlacement]
SMALL: Reserved = ("1g.5gb", MigPlacement(start=6, size=1))
LARGE: Reserved = ("3g.20gb", MigPlacement(start=4, size=4))
NEVER = 10**6


class Killed(BaseException):
    """Nothing in the agent catches it, as nothing in it learns of SIGKILL."""


class Life:
    """Ends at the step of that number."""

    def __init__(self) -> None:
        self.steps_left = NEVER

    def step(self) -> None:
        if self.steps_left == 0:
            raise Killed
        self.steps_left -= 1


class Driver:
    """A MigDriver whose instances outlive the agent. A number, and so a UUID, is given again once it is free."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self.live: dict[int, LiveInstance] = {}
        self.in_use: set[str] = set()

    async def kind_of(self, card_id: str, profile: str) -> int:  # noqa: ARG002
        self._life.step()
        return KINDS[profile]

    async def instances(self, card_id: str) -> Sequence[LiveInstance]:  # noqa: ARG002
        self._life.step()
        return tuple(self.live.values())

    async def create(self, card_id: str, kind: int, placement: MigPlacement) -> LiveInstance:
        self._life.step()
        assert not any(overlap(found.placement, placement) for found in self.live.values())
        number = next(number for number in count(1) if number not in self.live)
        bare = self.live[number] = LiveInstance(gpu_instance=number, kind=kind, placement=placement)
        return await self.complete(card_id, bare)

    async def complete(self, card_id: str, instance: LiveInstance) -> LiveInstance:  # noqa: ARG002
        self._life.step()
        number = instance.gpu_instance
        made = MigInstance(uuid=f"MIG-{number}", gpu_instance=number, compute_instance=0)
        self.live[number] = msgspec.structs.replace(instance, made=made)
        self._life.step()
        return self.live[number]

    async def destroy(self, card_id: str, instance: LiveInstance) -> None:  # noqa: ARG002
        self._life.step()
        there = self.live[instance.gpu_instance]
        if there.made is not None and there.made.uuid in self.in_use:
            raise Transient("in use")
        self.live[instance.gpu_instance] = msgspec.structs.replace(there, made=None)
        self._life.step()
        del self.live[instance.gpu_instance]
        self._life.step()

    async def capability_minors(self, card_id: str, instance: MigInstance) -> tuple[int, int]:  # noqa: ARG002
        return 1, 2


class Node:
    """The card, what is saved, the pods that the API server has, and the agent that works on them."""

    def __init__(self) -> None:
        self.life = Life()
        self.driver = Driver(self.life)
        self.saved = encode(HandedOut())
        self.pods: dict[str, kube.Pod] = {}
        self.restart()

    def restart(self) -> None:
        self.life.steps_left = NEVER
        self.book = decode(self.saved)
        self.mig = MigInstances(self.driver, self.book, ledger=self)  # type: ignore[arg-type]

    async def save(self) -> None:
        self.life.step()
        self.saved = encode(self.book)
        self.life.step()

    def cached(self, uid: str) -> kube.Pod | None:
        return self.pods.get(uid)

    async def read(self, uid: str) -> kube.Pod | None:
        return self.pods.get(uid)

    async def start(self, uid: str, reserved: Reserved) -> str:
        """As kubelet asks, the first time and again. The UUID that the container starts with."""
        metadata = {"name": uid, "namespace": "ns", "uid": uid}
        self.pods[uid] = msgspec.convert({"metadata": metadata, "spec": {}, "status": {}}, kube.Pod)
        piece = HandedSlice(card_id=CARD, memory_mib=1, cores_percent=1, profile=reserved[0], placement=reserved[1])
        pod = HandedPod(namespace="ns", name=uid, allocation_id=uid)
        self.book.add_container(uid, pod, "main", HandedContainer(slices=(piece,), region_name="", position=0))
        made = (await self.mig.make(uid, "main", self.save)).slices[0].instance
        assert made is not None
        return made.uuid

    async def collect(self, uid: str) -> None:
        """As for a pod that is gone."""
        if self.book.get(uid) is not None:
            await self.mig.release(uid, self.save)
            self.book.drop(uid)
            await self.save()

    def standing(self) -> list[tuple[MigPlacement, str]]:
        return [(found.placement, found.made.uuid if found.made else "half") for found in self.driver.live.values()]


async def life_until(node: Node, step: int, *works: tuple[str, Reserved | None]) -> bool:
    """Starts (with what is reserved) and collects (without) pods; whether it was killed meanwhile."""
    node.life.steps_left = step
    try:
        for uid, reserved in works:
            await (node.start(uid, reserved) if reserved is not None else node.collect(uid))
    except Killed:
        node.restart()
        return True
    node.life.steps_left = NEVER
    return False


async def outcome(first_kill: int, second_kill: int, following: Reserved, *, collected_first: bool) -> bool:
    """Whether both kills came before the works were done."""
    node = Node()
    first_killed = await life_until(node, first_kill, ("old", SMALL))
    del node.pods["old"]
    works: list[tuple[str, Reserved | None]] = [("old", None), ("new", following)]
    second_killed = await life_until(node, second_kill, *(works if collected_first else reversed(works)))

    uuid = await node.start("new", following)
    assert node.standing() == [(following[1], uuid)]
    await node.collect("old")  # before the container has opened what it was given

    assert node.standing() == [(following[1], uuid)]
    assert node.book.uids() == {"new"}
    node.driver.in_use = {uuid}
    with pytest.raises(Transient, match="in use"):
        await node.mig.release("new", node.save)
    assert node.standing() == [(following[1], uuid)]
    return first_killed and second_killed


@pytest.mark.parametrize("collected_first", [True, False], ids=["collected first", "asked for first"])
@pytest.mark.parametrize("following", [SMALL, LARGE], ids=["same place", "overlapping place"])
async def test_after_any_two_kills_exactly_the_reserved_instance_stands(
    following: Reserved, *, collected_first: bool
) -> None:
    kills = 0
    for first in count():
        before = kills
        for second in count():
            if not await outcome(first, second, following, collected_first=collected_first):
                break
            kills += 1
        if kills == before:
            break
    assert kills > 50


async def test_a_uuid_that_the_driver_gives_again_elsewhere_makes_nobody_its_owner() -> None:
    node = Node()
    uuid = await node.start("old", SMALL)
    node.driver.live.clear()  # the machine was started anew
    del node.pods["old"]

    assert await node.start("new", ("1g.5gb", MigPlacement(start=0, size=1))) == uuid
    await node.collect("old")

    assert node.standing() == [(MigPlacement(start=0, size=1), uuid)]
