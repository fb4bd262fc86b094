"""A node-agent whose hand-off is the node lock, and changes from one hand-off to the other."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "services" / "node-agent" / "tests"))

from node_agent_world import LOCK_KEY, TO_ALLOCATE_KEY, World, card_id, container, new_world, slot, until

LIMIT = "CUDA_DEVICE_MEMORY_LIMIT_0"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with new_world() as found:
        found.configuration["handoff"] = {"mode": "lock"}
        yield found


@pytest.fixture
async def serving(world: World) -> AsyncIterator[World]:
    world.start_agent()
    async with world.kubelet(allocatable=20):
        yield world


def unlocked(world: World) -> bool:
    return LOCK_KEY not in world.node()["metadata"]["annotations"]


@pytest.mark.case("MUL-01")
async def test_the_lock_s_owner_is_served_container_by_container_and_the_lock_freed(serving: World) -> None:
    assert "handoff" not in serving.register()[0]
    serving.lock_node("train")
    uid = serving.bind_pod(
        "train",
        slot((0, 5000, 0)) + slot((1, 3000, 10)),
        container("c0", gpus=1),
        initContainers=[container("i0", gpus=1, script="env")],
    )

    first, second = await serving.environment("train", "i0"), await serving.environment("train", "c0")

    assert (first[LIMIT], second[LIMIT]) == ("5000m", "3000m")
    assert second["NVIDIA_VISIBLE_DEVICES"] == card_id(1)
    assert f"/containers/{uid}_c0/" in second["CUDA_DEVICE_MEMORY_SHARED_CACHE"]
    await until(lambda: unlocked(serving), "the lock's release")
    await until(lambda: serving.phase("train") == "success", "the phase")
    assert (serving.annotation("train", TO_ALLOCATE_KEY) or "").strip(";") == ""


@pytest.mark.case("LCK-12")
@pytest.mark.case("MUL-06")
async def test_without_a_pod_that_waits_allocate_fails_and_the_agent_lives(serving: World) -> None:
    serving.bind_pod("stray", None, container(gpus=1))

    await until(lambda: serving.pod("stray")["status"]["phase"] == "Failed", "the pod's failure")

    assert "not placed by the HAMi scheduler" in serving.pod("stray")["status"]["message"]
    assert serving.agent is not None
    assert serving.agent.is_alive()


@pytest.mark.case("LCK-06")
async def test_a_refused_allocate_leaves_no_lock_and_a_failed_phase(serving: World) -> None:
    serving.lock_node("train")
    serving.bind_pod("train", slot((0, 1, 1), (1, 1, 1)), container(gpus=1))

    await until(lambda: serving.phase("train") == "failed", "the phase")
    await until(lambda: unlocked(serving), "the lock's release")


@pytest.mark.case("LCK-05")
async def test_a_failing_pod_does_not_free_another_s_lock(serving: World) -> None:
    serving.lock_node("someone-else")
    serving.bind_pod("train", slot((0, 1, 1), (1, 1, 1)), container(gpus=1))

    await until(lambda: serving.phase("train") == "failed", "the phase")

    assert not unlocked(serving)


async def test_a_container_with_another_s_limits_does_not_start(serving: World) -> None:
    """The lock names one pod while kubelet admits another that asks the same: the limits would be swapped."""
    # Kubelet never asks for this one, and without a command it stays pending.
    serving.bind_pod("owner", slot((0, 1000, 1)), {"name": "main", "image": "any"})
    serving.lock_node("owner")
    serving.bind_pod("bypass", slot((1, 2000, 2)), container(gpus=1))

    await serving.waits_with("bypass", "while the node lock named another pod")
    await until(lambda: serving.phase("bypass") == "failed", "the phase")


async def test_a_pod_given_by_lock_restarts_under_a_late_binding_agent_and_back(world: World) -> None:
    seen = world.root / "seen"
    world.start_agent()
    async with world.kubelet(allocatable=20):
        world.lock_node("old")
        script = f"env >> {seen}; sleep 0.1; [ $(grep -c PWD= {seen}) -lt 99 ]; exit 1"
        world.bind_pod("old", slot((0, 1000, 1)), container(gpus=1, script=script), restartPolicy="Always")
        await until(lambda: seen.read_text().count("PWD=") >= 1, "the first start")

        await world.stop_agent()
        await world.allocatable(0)
        world.configuration["handoff"] = {"mode": "late-binding"}
        world.start_agent()
        await world.agent_serves()
        await world.allocatable(20)
        await until(lambda: world.register()[0].get("handoff") == "late-binding", "the announcement")
        starts = seen.read_text().count("PWD=")
        await until(lambda: seen.read_text().count("PWD=") > starts, "a start under the second agent")
        world.bind_pod("new", slot((1, 2000, 2)), container(gpus=1))
        assert (await world.environment("new"))[LIMIT] == "2000m"

        await world.stop_agent()
        await world.allocatable(0)
        world.configuration["handoff"] = {"mode": "lock"}
        world.start_agent()
        await world.agent_serves()
        await world.allocatable(20)
        await until(lambda: "handoff" not in world.register()[0], "the announcement of the third agent")
        starts = seen.read_text().count("PWD=")
        await until(lambda: seen.read_text().count("PWD=") > starts, "a start under the third agent")
        assert {line for line in seen.read_text().splitlines() if line.startswith(LIMIT)} == {f"{LIMIT}=1000m"}
