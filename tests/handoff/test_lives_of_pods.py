"""Containers that restart, sidecars, one name for several pods: each start has the slice of its own container."""

from __future__ import annotations

import pytest
from handoff_world import (
    HOLD,
    LIMIT,
    book,
    container,
    folders,
    gate,
    has_recorded,
    kill_container,
    node,
    open_gate,
    recording,
    settled,
    slot,
    specifications,
    until,
)
from node_agent_world import new_world


async def test_a_container_that_restarts_has_the_same_slice_again() -> None:
    async with new_world() as world, node(world):
        world.bind_pod(
            "p",
            slot((0, 3000, 0)) + slot((1, 4000, 0)),
            container("a", gpus=1, script=recording(world, "a")),
            container("b", gpus=1, script=recording(world, "b")),
            restartPolicy="Always",
        )
        await world.runs("p", "a")
        await has_recorded(world, ["3000m"], "a")
        for starts in (2, 3):
            await kill_container(world, "p", "a")
            await has_recorded(world, ["3000m"] * starts, "a")
        await world.runs("p", "b")
        await has_recorded(world, ["4000m"], "b")


async def test_a_sidecar_and_an_init_container_that_crashes_keep_their_own() -> None:
    async with new_world() as world, node(world):
        first = f"[ -e {world.root}/once ] && exit 0; touch {world.root}/once; exit 1"
        world.bind_pod(
            "p",
            slot((0, 1000, 0)) + slot((0, 2000, 0)) + slot((1, 3000, 0)),
            container("app", gpus=1, script=recording(world, "app")),
            initContainers=[
                container("side", gpus=1, script=recording(world, "side"), restartPolicy="Always"),
                container("init", gpus=1, script=recording(world, "init", then=first)),
            ],
            restartPolicy="Always",
        )
        await world.runs("p", "app")
        await has_recorded(world, ["1000m"], "side")
        await kill_container(world, "p", "side")
        await has_recorded(world, ["1000m", "1000m"], "side")
        await has_recorded(world, ["2000m", "2000m"], "init")
        await has_recorded(world, ["3000m"], "app")


async def test_pods_of_one_name_in_succession_have_each_its_own() -> None:
    """A StatefulSet's pod comes again under its name, with another allocation."""
    async with new_world() as world, node(world):
        for size in (1000, 2000, 3000):
            world.bind_pod("db-0", slot((0, size, 0)), container(gpus=1))
            assert (await world.environment("db-0"))[LIMIT] == f"{size}m"
            await settled(world, "db-0")
            world.fake.remove("pods", "db-0", "default")
        await until(lambda: not specifications(world) and not book(world), "nothing to be left")


async def test_the_folders_of_a_pod_that_ended_in_order_go_though_kubelet_still_names_it() -> None:
    async with new_world() as world, node(world):
        uid = world.bind_pod("p", slot((0, 1000, 0)), container(gpus=1, script="exit 0"))
        await until(lambda: world.pod("p")["status"]["phase"] == "Succeeded", "the pod's end")
        assert folders(world) == [f"{uid}_main"]
        world.fake.remove("pods", "p", "default")
        await until(lambda: not folders(world), "the folder's removal")
        assert uid in (world.root / "kl/device-plugins/kubelet_internal_checkpoint").read_text()


async def test_the_folder_of_a_pod_that_was_deleted_under_its_processes_stays() -> None:
    async with new_world() as world, node(world):
        uid = world.bind_pod("p", slot((0, 1000, 0)), container(gpus=1), terminationGracePeriodSeconds=1)
        await settled(world, "p")
        world.fake.remove("pods", "p", "default")
        await until(lambda: not specifications(world) and not book(world), "the specification's removal")
        assert folders(world) == [f"{uid}_main"]
        await until(lambda: not (world.root / "kl" / "containers" / uid).exists(), "the end of its processes")
        # The next pod's admission makes kubelet forget the one that is gone.
        world.bind_pod("q", slot((0, 1000, 0)), container(gpus=1))
        await settled(world, "q")
        world.fake.remove("pods", "q", "default")
        await until(lambda: f"{uid}_main" not in folders(world), "the folder's removal")


@pytest.mark.case("ALC-05")
async def test_a_pod_that_is_being_deleted_keeps_its_devices_until_its_containers_ended() -> None:
    async with new_world(cards=1) as world, node(world, allocatable=10):
        slow = f"trap '{gate(world, 'end')}; exit 0' TERM; {HOLD}"
        world.bind_pod("old", slot((0, 1000, 0)), container(gpus=1, script=slow), terminationGracePeriodSeconds=600)
        await settled(world, "old")
        held = book(world)
        pod = world.pod("old")
        pod["metadata"] |= {"deletionTimestamp": "2026-03-04T05:06:07Z", "deletionGracePeriodSeconds": 600}
        world.fake.put("pods", pod)
        kill = world.bind_pod("other", slot((0, 2000, 0)), container(gpus=1))
        await settled(world, "other")
        assert set(book(world)) == {*held, kill}
        open_gate(world, "end")
        await until(lambda: set(book(world)) == {kill}, "the old pod to be forgotten")
