"""Programs of a real node end and start again, and change their settings, while pods run."""

from __future__ import annotations

from contextlib import suppress

import pytest
from kubelet_world import ENDS, GROW, HOLD, World, container

UNTIL_TOLD = ("sh", "-c", "while ! test -e /state/go; do sleep 0.1; done")


async def restart(world: World, program: str) -> None:
    """A crash, and a new start."""
    spec = {"kubelet": world.node.kubelet, "node-agent": world.node.agent}[program]
    await world.node.kill(spec)
    await world.node.launch(spec)
    await world.node.until_offered()


@pytest.mark.parametrize("program", ["kubelet", "node-agent"])
async def test_running_containers_live_on_and_new_ones_get_their_own(world: World, program: str) -> None:
    await world.create_pod("before", container(HOLD, gpu=1, gpumem=900), restart="Always")
    before = await world.until_holding("before")

    await restart(world, program)

    assert (await world.pod("before"))["status"]["containerStatuses"][0]["restartCount"] == 0
    await world.create_pod("after", container(GROW, gpu=1, gpumem=1700))
    assert await world.granted_mib("after") == 1700
    await world.end_process("before")
    await world.until_restarted("before", 1)
    (said,) = await world.said("before", *GROW)
    assert said["granted_mib"] == 900 - 100  # the container itself holds 100
    assert world.allocated(await world.pod("before")) == world.allocated(before)


async def start_slowly(world: World) -> None:
    """A pod whose app container has its devices, as kubelet admits whole pods, and does not start yet."""
    waits, counts = container(UNTIL_TOLD, "waits"), container(GROW, gpu=1, gpumem=1300)
    for one in (waits, counts):
        one["volumeMounts"] = [{"name": "state", "mountPath": "/state"}]
    await world.create_pod("slow", counts, init=(waits,), volumes=[{"name": "state", "emptyDir": {}}])
    await world.until_init_running("slow")
    await world.create_pod("other", container(HOLD, gpu=1, gpumem=1500))
    await world.until_holding("other")


async def test_the_agent_is_restarted_between_allocate_and_pre_start(world: World) -> None:
    await start_slowly(world)
    await restart(world, "node-agent")
    await world.touch("slow", "state", "go")
    assert await world.granted_mib("slow") == 1300


async def test_the_kubelet_is_restarted_between_allocate_and_pre_start(world: World) -> None:
    """It admits anew what does not run yet, and refuses that itself where the agent has not registered again."""
    await start_slowly(world)
    await restart(world, "kubelet")
    with suppress(FileNotFoundError):  # where it is refused, its volumes go
        await world.touch("slow", "state", "go")
    slow = await world.until_pod("slow", lambda pod: pod["status"]["phase"] in ENDS)
    if slow["status"]["phase"] == "Failed":
        assert slow["status"]["reason"] == "UnexpectedAdmissionError"
        await world.delete_pod("slow")
        await world.create_pod("slow", container(GROW, gpu=1, gpumem=1300))
        await world.until_nothing_left_of(slow["metadata"]["uid"])
    assert await world.granted_mib("slow") == 1300
    (said,) = await world.said("other", *GROW)
    assert said["granted_mib"] == 1500 - 100  # the container itself holds 100


async def test_both_directions_of_a_change_while_pods_run(world: World) -> None:
    async def restarted_keeps(name: str, size: int, count: int) -> None:
        await world.end_process(name)
        await world.until_restarted(name, count)
        (said,) = await world.said(name, *GROW)
        assert said["granted_mib"] == size - 100

    world.driver_by_host_path = True
    await world.node.use_handoff("lock")
    try:
        await world.create_pod("locked", container(HOLD, gpu=1, gpumem=900), restart="Always")
        await world.until_holding("locked")
    finally:
        await world.node.use_handoff("late-binding")
    await restarted_keeps("locked", 900, 1)  # its hand-off, and what shows its cards, stay as they were
    await world.delete_pod("locked")

    world.driver_by_host_path = False
    await world.create_pod("late", container(HOLD, gpu=1, gpumem=1300), restart="Always")
    await world.until_holding("late")
    await world.node.use_handoff("lock")
    try:
        await restarted_keeps("late", 1300, 1)
    finally:
        await world.node.use_handoff("late-binding")
