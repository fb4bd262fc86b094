"""Kubelets that come and go, an API server that is away: the agent has as many tasks and descriptors as before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from hami_node_agent.build import build
from hami_node_agent.config import NodeAgentSettings
from handoff_world import LIMIT, container, settled, slot, until
from node_agent_world import World, new_world


@asynccontextmanager
async def agent_in_this_process(world: World) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        roots = await build(msgspec.convert(world.configuration, NodeAgentSettings), stack)
        running = [asyncio.create_task(root.run(), name=root.name) for root in roots]
        try:
            yield
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def _serves(world: World, name: str, size: int) -> None:
    world.bind_pod(name, slot((0, size, 0)), container(gpus=1))
    assert (await world.environment(name))[LIMIT] == f"{size}m"
    await settled(world, name)
    world.fake.remove("pods", name, "default")
    await until(lambda: not list((world.root / "cdi").iterdir()), "nothing to be left")


@pytest.mark.timeout(900)
async def test_no_task_and_no_descriptor_is_left_by_what_came_and_went(monkeypatch: pytest.MonkeyPatch) -> None:
    async with new_world() as world:
        monkeypatch.setenv("HAMI_SIM_DRIVER", str(world.description))
        async with agent_in_this_process(world):
            async with world.kubelet(allocatable=20):
                await _serves(world, "first", 1000)
            await _quiet()
            tasks, files = len(asyncio.all_tasks()), descriptors()
            for number in range(4):
                async with world.kubelet(allocatable=20):
                    world.fake.drop_watches()
                    await _serves(world, f"p{number}", 2000 + number)
            world.fake.fail("*", "*", 503, times=10**6)
            world.fake.drop_watches()
            asked = len(world.fake.requests)
            await until(lambda: len(world.fake.requests) > asked + 5, "some requests in vain")
            world.fake.clear_faults()
            async with world.kubelet(allocatable=20):
                await _serves(world, "last", 3000)
            await _quiet()
            await until(lambda: len(asyncio.all_tasks()) <= tasks, f"the tasks to be {tasks} again")
            await until(lambda: descriptors() <= files, f"the descriptors to be {files} again")


async def _quiet() -> None:
    """What kubelet's end left in the loop is done."""
    await until(lambda: not [task for task in asyncio.all_tasks() if "kubelet n1" in task.get_name()], "its tasks' end")
