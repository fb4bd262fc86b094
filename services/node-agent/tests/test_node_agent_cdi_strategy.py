"""A whole node whose containers are shown cards by specifications that the agent wrote from the driver's files."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from node_agent_world import World, card_id, container, new_world, slot, until

SCHEMA = json.loads((Path(__file__).parents[3] / "tests" / "data" / "cdi" / "schema.json").read_text())
SPEC = "k8s.device-plugin.nvidia.com-gpu.json"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with new_world() as made:
        library = made.root / "driver" / "usr" / "lib64" / "libcuda.so.999.0.0"
        library.parent.mkdir(parents=True)
        library.touch()
        made.configuration["nvml"] |= dict.fromkeys(("driver_root", "host_driver_root"), str(made.root / "driver"))
        made.configuration["files"]["nvidia_cdi_dirs"] = [str(made.root / "cdi")]
        made.configuration["devices"] = {"list_strategies": ["cdi-cri"], "cdi_hook_file": "/usr/bin/nvidia-cdi-hook"}
        yield made


def written(world: World, pattern: str) -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in sorted((world.root / "cdi").glob(pattern))]
    for document in found:
        jsonschema.validate(document, SCHEMA)
    return found


async def test_bound_late_the_card_s_edits_stand_in_the_container_s_own_specification(world: World) -> None:
    async with world.kubelet():
        world.start_agent()
        await world.allocatable(20)
        uid = world.bind_pod("p", slot((1, 2000, 0)), container(gpus=1))
        # The stand-in's containers share the machine's folders, so none can be started with these mounts.
        found = await until(lambda: written(world, f"hami.io-slice_{uid}_*.json"), "the container's specification")

        assert [device["name"] for device in written(world, SPEC)[0]["devices"]] == [card_id(0), card_id(1)]
        edits = found[0]["devices"][0]["containerEdits"]
        nodes = {node["path"]: node["hostPath"] for node in edits["deviceNodes"]}
        assert nodes["/dev/nvidia1"] == f"{world.root}/driver/dev/nvidia1"
        assert "/dev/nvidia0" not in nodes
        sources = {mount["containerPath"]: mount["hostPath"] for mount in edits["mounts"]}
        assert sources["/usr/lib64/libcuda.so.999.0.0"] == f"{world.root}/driver/usr/lib64/libcuda.so.999.0.0"
        assert "NVIDIA_VISIBLE_DEVICES=void" in edits["env"]
        assert "CUDA_DEVICE_MEMORY_LIMIT_0=2000m" in edits["env"]


async def test_without_the_driver_s_library_it_does_not_start(world: World) -> None:
    world.configuration["nvml"]["driver_root"] = str(world.root / "elsewhere")
    world.start_agent()

    await until(lambda: "no libcuda.so.<version> below" in world.agent_log().read_text(), "the refusal")
