"""HAMi's hand-off, by a node lock, on a real kubelet with containerd."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hami_sim.testing import run_outside_loop
from kubelet_world import GROW, HOLD, LOCK, World, container
from real_node import Node


@pytest.fixture(scope="module")
def locking_node(node: Node) -> Iterator[Node]:
    """The agent hands over by lock."""
    run_outside_loop(node.use_handoff("lock"))
    yield node
    run_outside_loop(node.use_handoff("late-binding"))


@pytest.fixture
async def locking(locking_node: Node, world: World) -> World:  # noqa: ARG001
    """Volumes show the driver, as no NVIDIA runtime does here."""
    world.driver_by_host_path = True
    return world


async def test_a_pod_gets_its_slice_and_the_lock_is_free_again(locking: World) -> None:
    async with locking.node_annotations() as seen:
        await locking.create_pod("train", container(HOLD, gpu=1, gpumem=3000, gpucores=30))
        pod = await locking.until_holding("train")
    assert any(LOCK in keys for keys in seen)

    ((_, card_id, memory_mib, cores),) = locking.allocated(pod)
    assert (memory_mib, cores) == (3000, 30)
    environment = await locking.environment("train")
    assert environment["NVIDIA_VISIBLE_DEVICES"] == card_id
    assert environment["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    assert environment["CUDA_DEVICE_SM_LIMIT"] == "30"
    (said,) = await locking.said("train", "env", "-u", "LD_PRELOAD", *GROW)
    assert (said["event"], said["code"], said["granted_mib"]) == ("refused", 2, 3000 - 100)
    await locking.until_unlocked()


async def test_pods_at_once_each_get_their_own(locking: World) -> None:
    sizes = {f"p{number}": 1000 + 137 * number for number in range(6)}
    await asyncio.gather(
        *(locking.create_pod(name, container(GROW, gpu=1, gpumem=size)) for name, size in sizes.items())
    )
    assert {name: await locking.granted_mib(name) for name in sizes} == sizes
    await locking.until_unlocked()
