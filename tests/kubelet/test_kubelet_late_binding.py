"""Late binding on a real kubelet with containerd."""

from __future__ import annotations

from world import HOLD, World, container


async def test_a_pod_gets_its_slice_in_a_real_container(world: World) -> None:
    await world.create_pod("train", container(HOLD, gpu=1, gpumem=3000, gpucores=30))
    await world.until_running("train")

    environment = await world.environment("train")
    assert environment["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    assert environment["CUDA_DEVICE_SM_LIMIT"] == "30"
    assert environment["HAMI_HANDOFF"] == "done"
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "void"
