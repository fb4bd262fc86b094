"""A node-agent that binds late: real kubelet protocols, simulated driver, pods as processes."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "services" / "node-agent" / "tests"))

from node_agent_world import (
    NODE,
    TO_ALLOCATE_KEY,
    World,
    card_id,
    container,
    new_world,
    slot,
    until,
)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with new_world() as found:
        yield found


async def test_a_node_registers_and_a_pod_gets_its_slice(world: World) -> None:
    world.start_agent()
    async with world.kubelet(allocatable=20):
        cards = world.register()
        assert [(card["id"], card.get("index", 0), card["handoff"], card["health"]) for card in cards] == [
            (card_id(0), 0, "late-binding", True),
            (card_id(1), 1, "late-binding", True),
        ]

        uid = world.bind_pod("train", slot((1, 3000, 30)), container(gpus=1))
        environment = await world.environment("train")

        assert environment["NVIDIA_VISIBLE_DEVICES"] == card_id(1)
        assert environment["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
        assert environment["CUDA_DEVICE_SM_LIMIT"] == "30"
        assert environment["HAMI_HANDOFF"] == "done"
        region = Path(environment["CUDA_DEVICE_MEMORY_SHARED_CACHE"])
        assert region.parent == world.root / "hook" / "vgpu" / "containers" / f"{uid}_main"
        assert region.parent.is_dir()
        assert environment["LD_PRELOAD"].split(":")[0].startswith(f"{world.root}/hook/vgpu/libvgpu.so.")
        await until(lambda: world.phase("train") == "success", "the phase")
        assert world.annotation("train", TO_ALLOCATE_KEY) == ";"
        assert world.pod("train")["metadata"]["labels"]["hami.io/vgpu-node"] == NODE
