"""Containers get what they were promised, and not one MiB more."""

from __future__ import annotations

import asyncio
import os

import pytest
from hami_sim.cluster.driver_description import card_ids
from world import LOCK, WORKLOAD, World, container, held_cards

GROW = (WORKLOAD, "over-alloc")
needs_own_mounts = pytest.mark.skipif(
    os.environ.get("HAMI_E2E_CONTAINER_MODE") == "prefix",
    reason="nothing that the kernel knows tells the pod of a process without mounts and control group of its own",
)


async def test_a_process_is_refused_its_4001st_mib(world: World):
    await world.create_pod("grows", GROW, gpu=1, gpumem=4000)
    assert await world.granted_mib("grows") == 4000


@pytest.mark.parametrize("reach", ["link", "dlsym", "getproc"])
async def test_whichever_way_it_reaches_the_driver(world: World, reach: str):
    await world.create_pod("grows", (*GROW, "--reach", reach), gpu=1, gpumem=2000)
    assert await world.granted_mib("grows") == 2000


async def test_without_the_library_the_same_process_gets_more(world: World):
    """The control run: it is the library that refuses, not the driver."""
    env = {"CUDA_DISABLE_CONTROL": "true"}
    await world.create_pod("grows", (*GROW, "--max-mib", "4500"), env=env, gpu=1, gpumem=4000)
    await world.until_phase("grows", "Failed")
    assert [line["granted_mib"] for line in await world.output("grows")] == [4500]


@needs_own_mounts
@pytest.mark.parametrize(
    ("script", "env", "reason"),
    [
        pytest.param("umount /etc/ld.so.preload", {}, "no-region", id="the preload taken out of the way"),
        pytest.param("true", {"CUDA_DISABLE_CONTROL": "true"}, "opted-out", id="switched off by the specification"),
        pytest.param(
            f"{WORKLOAD} info && umount /etc/ld.so.preload", {}, "no-slot", id="after another that the library held"
        ),
    ],
)
async def test_a_process_that_the_library_does_not_hold_is_told_of(
    world: World, script: str, env: dict[str, str], reason: str
):
    command = ("sh", "-c", f"{script} && exec {WORKLOAD} alloc --mib 5000 --hold-until-signal")
    pod = await world.create_pod("slips", command, env=env, gpu=1, gpumem=1000)
    event = await world.until_not_enforced(pod["metadata"]["uid"])
    assert (event.pod.name, event.container, event.process, event.reason) == ("slips", "main", WORKLOAD, reason)
    (card,) = event.cards
    # Told at its second sample. On a very busy machine that may be before it has allocated, once it is on the card.
    assert card.memory_used_bytes in (0, 5000 << 20)


@needs_own_mounts
async def test_of_a_process_that_the_library_holds_nothing_is_told(world: World):
    for name in ("a", "b"):
        await world.create_pod(name, node="sim-0", gpu=1, gpumem=1000)
        await world.until_phase(name, "Running")
    other = ("sh", "-c", f"umount /etc/ld.so.preload && exec {WORKLOAD} alloc --mib 5 --hold-until-signal")
    pod = await world.create_pod("slips", other, node="sim-0", gpu=1, gpumem=1000)
    await world.until_not_enforced(pod["metadata"]["uid"])  # a sample that both were in has been taken
    assert await world.not_enforced() == {"slips"}


async def test_two_pods_share_a_card(world: World):
    card = card_ids(world.cluster.plan("sim-0"))[1]
    for name, used_mib, limit_mib in (("small", 3000, 4000), ("large", 9000, 10000)):
        command = (WORKLOAD, "alloc", "--mib", str(used_mib), "--hold-until-signal")
        await world.create_pod(name, command, card=card, gpu=1, gpumem=limit_mib)
    for name in ("small", "large"):
        await world.until_phase(name, "Running")
        assert held_cards(await world.pod_status(name)) == {card}
    await world.until_booked("sim-0", card, at_least_mib=12000)


async def test_a_container_sees_its_slice_as_the_whole_card(world: World):
    await world.create_pod("looks", (WORKLOAD, "info"), gpu=1, gpumem=3000)
    await world.until_phase("looks", "Succeeded")
    (device,) = [line for line in await world.output("looks") if line["event"] == "device"]
    assert device["memory_total_bytes"] == 3000 << 20


async def test_a_container_without_a_slice_sees_no_card(world: World):
    await world.create_pod("blind", (WORKLOAD, "info"))
    await world.until_phase("blind", "Failed")


async def test_ten_pods_bound_to_one_node_at_once_each_with_its_own_limit_and_no_lock(world: World):
    sizes = {f"p{number}": 1000 + 137 * number for number in range(10)}
    async with world.node_annotations() as seen:
        await asyncio.gather(
            *(world.create_pod(name, GROW, node="sim-1", gpu=1, gpumem=size) for name, size in sizes.items())
        )
        granted = {name: await world.granted_mib(name) for name in sizes}
    assert granted == sizes
    assert seen
    assert not any(LOCK in keys for keys in seen)


async def test_each_container_of_a_pod_has_its_own_slice(world: World):
    spec = {
        "restartPolicy": "Never",
        "initContainers": [container(GROW, "first", gpu=1, gpumem=700)],
        "containers": [container(GROW, "a", gpu=1, gpumem=1100), container(GROW, "b", gpu=1, gpumem=1300)],
    }
    await world.kube.post(world.pods_path, {"metadata": {"name": "many"}, "spec": spec})
    await world.until_phase("many", "Succeeded")
    outputs = {name: await world.output("many", container=name) for name in ("first", "a", "b")}
    assert {name: lines[0]["granted_mib"] for name, lines in outputs.items()} == {"first": 700, "a": 1100, "b": 1300}


async def test_two_cards_are_two_devices_with_a_limit_each(world: World):
    await world.create_pod("two", (WORKLOAD, "info"), gpu=2, gpumem=5000)
    await world.until_phase("two", "Succeeded")
    devices = [line for line in await world.output("two") if line["event"] == "device"]
    assert [device["memory_total_bytes"] for device in devices] == [5000 << 20] * 2
    assert len({device["uuid"] for device in devices}) == 2


async def test_a_container_that_is_restarted_keeps_its_slice(world: World):
    script = f"{' '.join(GROW)}; test -e /state/seen && exit 0; touch /state/seen; exit 1"
    main = container(("sh", "-c", script), gpu=1, gpumem=900)
    main["volumeMounts"] = [{"name": "state", "mountPath": "/state"}]
    spec = {"restartPolicy": "OnFailure", "containers": [main], "volumes": [{"name": "state", "emptyDir": {}}]}
    await world.kube.post(world.pods_path, {"metadata": {"name": "again"}, "spec": spec})
    pod = await world.until_phase("again", "Succeeded")
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 1
    assert [line["granted_mib"] for line in await world.output("again")] == [900]
