"""HAMi's scheduler over our node agent, in either hand-off: what it reads, its lock, the phases it waits for."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from node_agent_world import LOCK_KEY, NODE, World, card_id, container, new_world, until
from their_agent import PHASE, TO_ALLOCATE, VENDOR_WORDS
from their_scheduler import HANDSHAKE, REGISTER, BindError, Device, TheirScheduler, devices

LIMIT = "CUDA_DEVICE_MEMORY_LIMIT_0"
HANDOFFS = ("late-binding", "lock")
Json = dict[str, Any]


@pytest.fixture(params=HANDOFFS)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with new_world() as found:
        found.configuration["handoff"] = {"mode": request.param}
        found.start_agent()
        async with found.kubelet(allocatable=20):
            yield found


@pytest.fixture
def scheduler(world: World) -> TheirScheduler:
    return TheirScheduler(world.fake)


def create(world: World, name: str, *containers: Json, **more: Any) -> None:
    """A pod that nobody has placed yet."""
    world.fake.put(
        "pods",
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": str(uuid.uuid4()),
            },
            "spec": {"restartPolicy": "Never", "containers": list(containers), **more},
            "status": {"phase": "Pending"},
        },
    )


async def bind(scheduler: TheirScheduler, name: str) -> None:
    """As kube-scheduler does: again, until the lock is free."""

    def bound() -> bool:
        try:
            scheduler.bind(name, NODE)
        except BindError:
            return False
        return True

    await until(bound, f"the bind of {name}")


def unlocked(world: World) -> bool:
    return LOCK_KEY not in world.node()["metadata"]["annotations"]


async def test_it_reads_our_registration_and_skips_what_is_ours(world: World) -> None:
    text = world.annotation_of_node(REGISTER)
    assert text is not None
    cards = [
        Device(card_id(number), number, 10, 40960, 100, "NVIDIA A100-SXM4-40GB", number % 2, "hami-core", True)
        for number in range(2)
    ]
    assert devices(text) == cards
    assert "Deleted" not in text
    without = [{key: value for key, value in each.items() if key != "handoff"} for each in json.loads(text)]
    assert devices(json.dumps(without)) == cards


async def test_pods_that_it_binds_one_after_the_other_each_get_their_own_limit(
    world: World, scheduler: TheirScheduler
) -> None:
    sizes = {f"p{number}": 1000 + 137 * number for number in range(5)}
    for name, size in sizes.items():
        create(world, name, container(gpus=1))
        scheduler.filter(name, NODE, [(size, 10)])
        await bind(scheduler, name)
    given = {name: (await world.environment(name))[LIMIT] for name in sizes}
    assert given == {name: f"{size}m" for name, size in sizes.items()}
    await until(lambda: unlocked(world), "the lock's release")
    for name in sizes:
        await until(lambda name=name: world.phase(name) == "success", f"the phase of {name}")
        left = world.annotation(name, TO_ALLOCATE) or ""
        assert not any(word in left for word in VENDOR_WORDS), "it would wait for the rest to be allocated"


async def test_containers_get_their_slots_in_its_order(world: World, scheduler: TheirScheduler) -> None:
    create(
        world,
        "many",
        container("a", gpus=1),
        container("b", gpus=1),
        initContainers=[container("first", gpus=1, script="env")],
    )
    scheduler.filter("many", NODE, [(700, 0), (1100, 20), (1300, 30)])
    await bind(scheduler, "many")
    given = {name: (await world.environment("many", name))[LIMIT] for name in ("first", "a", "b")}
    assert given == {"first": "700m", "a": "1100m", "b": "1300m"}
    await until(lambda: unlocked(world) and world.phase("many") == "success", "the end of the hand-over")


async def test_its_lock_is_free_though_the_container_cannot_start(world: World, scheduler: TheirScheduler) -> None:
    """Of a pod that kubelet does not get to ask for: late binding needs no lock once the pod is bound."""
    create(world, "waits", {"name": "main", "image": "any"})
    scheduler.filter("waits", NODE, [(1000, 0)])
    await bind(scheduler, "waits")
    await until(lambda: len(world.pod("waits")["status"]) > 1, "kubelet to see it")
    if world.configuration["handoff"]["mode"] == "lock":
        # Its Allocate is to come: without the lock another's call could be taken for it.
        assert not unlocked(world)
        return
    await until(lambda: unlocked(world), "the lock's release")
    assert world.phase("waits") == "allocating"


async def test_a_pod_that_cannot_be_served_is_failed_and_holds_no_lock(world: World, scheduler: TheirScheduler) -> None:
    create(world, "wrong", container(gpus=2))
    scheduler.filter("wrong", NODE, [(1000, 0)])
    await bind(scheduler, "wrong")
    await until(lambda: world.phase("wrong") == "failed", "the phase")
    await until(lambda: unlocked(world), "the lock's release")
    create(world, "next", container(gpus=1))
    scheduler.filter("next", NODE, [(2000, 0)])
    await bind(scheduler, "next")
    assert (await world.environment("next"))[LIMIT] == "2000m"


async def test_its_handshake_is_left_alone(world: World, scheduler: TheirScheduler) -> None:
    """HAMi takes a node whose handshake grows old for alive while kubelet has allocatable cards."""
    scheduler.shake_hands(NODE)
    said = world.node()["metadata"]["annotations"][HANDSHAKE]
    create(world, "p", container(gpus=1))
    scheduler.filter("p", NODE, [(1000, 0)])
    await bind(scheduler, "p")
    await world.environment("p")
    assert world.node()["metadata"]["annotations"][HANDSHAKE] == said
    assert world.node()["status"]["allocatable"]["nvidia.com/gpu"] == "20"
    assert world.phase("p") is not None
    await until(lambda: world.annotation("p", PHASE) == "success", "the phase")
