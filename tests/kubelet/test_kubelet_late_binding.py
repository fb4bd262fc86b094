"""Late binding on a real kubelet with containerd: what containers get, and that nobody waits for a lock."""

from __future__ import annotations

import asyncio

from kubelet_world import GROW, HOLD, LOCK, WORKLOAD, World, container
from real_node import CARDS, SPLIT_COUNT


async def test_the_kubelet_offers_what_the_agent_registered(world: World) -> None:
    node = await world.node_object()
    assert node["status"]["capacity"]["nvidia.com/gpu"] == str(CARDS * SPLIT_COUNT)
    assert {(card["id"], card["handoff"], card["health"]) for card in world.register(node)} == {
        (card_id, "late-binding", True) for card_id in world.node.cards
    }


async def test_a_pod_gets_its_slice_in_a_real_container(world: World) -> None:
    await world.create_pod("train", container(HOLD, gpu=1, gpumem=3000, gpucores=30))
    (pod,) = await world.until_running("train")

    environment = await world.environment("train")
    assert environment["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    assert environment["CUDA_DEVICE_SM_LIMIT"] == "30"
    assert environment["HAMI_HANDOFF"] == "done"
    ((_, card_id, memory_mib, cores),) = world.allocated(pod)
    assert (memory_mib, cores) == (3000, 30)
    # NVIDIA's own edits are merged into ours: the card's device node, no other card's, and the driver.
    index = world.node.cards.index(card_id)
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert (await world.execute("train", "sh", "-c", "ls /dev/nvidia*")).split() == [
        f"/dev/nvidia{index}",
        "/dev/nvidiactl",
    ]
    (device,) = await world.devices("train")
    assert device["uuid"] == card_id
    assert device["memory_total_bytes"] == device["total_bytes"] == device["nvml_total_bytes"] == 3000 << 20


async def test_no_more_than_the_slice_is_granted_however_the_process_was_started(world: World) -> None:
    await world.create_pod("grows", container(("sleep", "3600"), gpu=1, gpumem=2000))
    await world.until_running("grows")
    unset = ("env", "-u", "LD_PRELOAD", "-u", "CUDA_DEVICE_MEMORY_LIMIT_0", "-u", "CUDA_DEVICE_MEMORY_SHARED_CACHE")
    for before in ((), unset, ("env", "CUDA_DEVICE_MEMORY_LIMIT_0=9000m", "CUDA_DISABLE_CONTROL=true")):
        (said,) = await world.said("grows", *before, *GROW)
        assert (said["event"], said["code"], said["granted_mib"]) == ("refused", 2, 2000), before


async def test_twenty_pods_at_once_each_get_their_own_and_no_lock_is_written(world: World) -> None:
    sizes = {f"p{number}": 1000 + 137 * number for number in range(20)}
    async with world.node_annotations() as seen:
        await asyncio.gather(
            *(world.create_pod(name, container(GROW, gpu=1, gpumem=size)) for name, size in sizes.items())
        )
        granted = {name: await world.granted_mib(name) for name in sizes}
    assert granted == sizes
    assert seen
    assert not any(LOCK in keys for keys in seen)


async def test_each_container_of_a_pod_has_its_own_slice(world: World) -> None:
    first = container(GROW, "first", gpu=1, gpumem=700)
    sidecar = container(HOLD, "sidecar", gpu=1, gpumem=500) | {"restartPolicy": "Always"}
    await world.create_pod(
        "many",
        container(GROW, "a", gpu=1, gpumem=1100),
        container(("true",), "none"),
        container((WORKLOAD, "info"), "b", gpu=2, gpumem=1300),
        init=(first, sidecar),
    )
    await world.until_phase("many", "Succeeded")
    assert [line["granted_mib"] for line in await world.output("many", container="first")] == [700]
    assert [line["granted_mib"] for line in await world.output("many", container="a")] == [1100]
    devices = [line for line in await world.output("many", container="b") if line["event"] == "device"]
    assert [device["memory_total_bytes"] for device in devices] == [1300 << 20] * 2
    assert len({device["uuid"] for device in devices}) == 2


async def test_a_container_without_a_slice_sees_no_card(world: World) -> None:
    await world.create_pod("blind", container((WORKLOAD, "info")))
    await world.until_phase("blind", "Failed")


async def test_a_container_that_is_restarted_keeps_its_slice(world: World) -> None:
    await world.create_pod("again", container(HOLD, gpu=1, gpumem=900), restart="Always")
    await world.until_holding("again")
    await world.end_process("again")
    await world.until_restarted("again", 1)
    (said,) = await world.said("again", *GROW)
    assert said["granted_mib"] == 900 - 100  # the container itself holds 100


async def test_nothing_is_left_of_pods_that_are_gone(world: World) -> None:
    uids = []
    for name in ("first", "second"):
        created = await world.create_pod(name, container(HOLD, gpu=1, gpumem=900))
        uids.append(created["metadata"]["uid"])
        await world.until_holding(name)
        assert {path.parent.name for path in world.left_of(uids[-1])} == {"cdi", "containers", "limits"}
        await world.delete_pod(name)
        await world.until_left_of(uids[-1], without="cdi")
    # Kubelet's checkpoint names a pod until another one asks for devices: its folders stay so long.
    await world.until_nothing_left_of(uids[0])


async def test_the_monitor_shows_what_a_container_uses(world: World) -> None:
    await world.create_pod("train", container(HOLD, gpu=1, gpumem=3000, gpucores=30))
    await world.until_running("train")
    shown = await world.until_slice("train", "hami_slice_memory_used_bytes", lambda value: value >= 100 << 20)
    assert shown["hami_slice_memory_promised_bytes"] == 3000 << 20
    assert shown["hami_slice_memory_limit_bytes"] == 3000 << 20
    assert shown["hami_slice_cores_promised_ratio"] == 0.3
    assert shown["hami_slice_processes"] == 1


async def test_the_monitor_tells_the_library_the_hosts_pid_of_its_process(world: World) -> None:
    created = await world.create_pod("train", container(HOLD, gpu=1, gpumem=3000))
    await world.until_holding("train")
    host_pid = world.host_pid_of(created["metadata"]["uid"], WORKLOAD)
    assert host_pid != 1
    assert await world.until_host_pids(created["metadata"]["uid"]) == [(1, host_pid)]
