"""A whole node in MIG mode: a container gets the instance that was reserved, just there, and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from hami_sim.kubelet import end_containers
from node_agent_world import (
    LOCK_KEY,
    NODE,
    PHASE_KEY,
    PRINT_ENVIRONMENT,
    SIM_DRIVER_TOOL,
    SIMULATED_DRIVER,
    World,
    card_id,
    container,
    new_world,
    until,
)

WORKLOAD = SIM_DRIVER_TOOL.with_name("vgpu-workload")
RESET_REQUIRED = "16"
MIG_KEY = "hami.io/vgpu-mig-allocations"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with new_world(cards=1) as made:
        card = {"uuid": card_id(0), "name": "NVIDIA A100-SXM4-40GB", "memory_mib": 40960, "mig_capable": True}
        made.description.write_text(json.dumps({"cards": [{**card, "mig_enabled": True}]}))
        overrides, configuration = made.root / "config.json", made.root / "device-config.yaml"
        overrides.write_text(json.dumps({"nodeconfig": [{"name": NODE, "operatingmode": "mig"}]}))
        allowed = [{"models": ["A100-SXM4-40GB"], "profiles": ["1g.5gb", "3g.20gb"]}]
        section = {"resourceCountName": "nvidia.com/gpu", "migProfileAllowlist": allowed}
        configuration.write_text(yaml.safe_dump({"nvidia": section}))
        made.configuration["node"] |= {
            "overrides_file": str(overrides),
            "device_config_file": str(configuration),
        }
        yield made


def instances(world: World) -> list[tuple[int, int, int]]:
    """Start, size and running number of the card's instances."""
    command = [str(SIM_DRIVER_TOOL), "--description", str(world.description), "books"]
    books = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return [(found["start"], found["size"], found["number"]) for found in books["cards"][0]["mig_instances"]]


def bind(world: World, name: str, profile: str, placement: tuple[int, int], script: str = PRINT_ENVIRONMENT) -> str:
    memory, cores = {"1g.5gb": (4864, 15), "3g.20gb": (19968, 43)}[profile]
    reserved = {
        "containerIndex": 0, "deviceIndex": 0, "gpuUUID": card_id(0), "profile": profile,
        "placement": {"start": placement[0], "size": placement[1]},
    }  # fmt: skip
    return world.bind_pod(
        name,
        f"{card_id(0)},NVIDIA,{memory},{cores}:;",
        container(gpus=1, script=script),
        annotations={MIG_KEY: json.dumps([reserved])},
    )


def written_for(world: World, uid: str) -> list[str]:
    return [path.read_text() for path in Path(world.root, "cdi").glob(f"hami.io-slice_{uid}_*.json")]


def reservation(world: World, name: str) -> dict[str, Any]:
    (found,) = json.loads(world.annotation(name, MIG_KEY) or "[]")
    return dict(found)


@pytest.mark.case("MIG-04")
async def test_a_container_gets_its_instance_before_it_starts(world: World) -> None:
    world.start_agent()
    async with world.kubelet(allocatable=10):
        uid = bind(world, "p1", "1g.5gb", (6, 1))
        await world.runs("p1")
        environment = await world.environment("p1")
        await until(lambda: "migUUID" in reservation(world, "p1"), "the instance in the annotation")

    found = reservation(world, "p1")
    specifications = written_for(world, uid)
    assert environment["NVIDIA_VISIBLE_DEVICES"] == found["migUUID"]
    assert [found["migUUID"] in text for text in specifications] == [True]
    assert not [name for name in environment if name.startswith("CUDA_DEVICE")]
    assert "ld.so.preload" not in specifications[0]
    assert (found["gpuInstanceID"], found["computeInstanceID"]) == (1, 0)
    assert instances(world) == [(6, 1, 1)]
    assert world.register()[0]["count"] == 7


@pytest.mark.case("MIG-09")
async def test_running_pods_keep_their_instances_and_gone_ones_do_not(world: World) -> None:
    world.start_agent()
    async with world.kubelet(allocatable=10):
        bind(world, "runs", "1g.5gb", (6, 1))
        await world.runs("runs")
        bind(world, "waits", "3g.20gb", (4, 4))
        await world.waits_with("waits", "is that of pod default/runs")
        world.fake.remove("pods", "waits", "default")
        await world.kill_agent()
        await world.allocatable(0)
        world.start_agent()
        await world.allocatable(10)
        bind(world, "beside", "3g.20gb", (0, 4))
        await world.runs("beside")
        assert instances(world) == [(6, 1, 1), (0, 4, 2)]
        world.fake.remove("pods", "beside", "default")
        await until(lambda: instances(world) == [(6, 1, 1)], "the instance of the deleted pod to go")


async def test_what_a_pod_that_ended_had_is_taken_down_once_nobody_uses_it(world: World) -> None:
    world.start_agent()
    async with world.kubelet(allocatable=10):
        bind(world, "done", "1g.5gb", (6, 1), script="exit 0")
        await until(lambda: world.pod("done")["status"]["phase"] == "Succeeded", "the pod's end")
        await until(lambda: instances(world) == [], "its instance to go")

        world.sim_driver(
            "kill", "nvmlGpuInstanceCreateComputeInstance", "--times", "1"
        )  # of the agent, at half an instance
        bind(world, "next", "1g.5gb", (6, 1))
        assert world.agent is not None
        await until(lambda: instances(world) == [(6, 1, 2)], "the half instance")
        await world.stop_agent()
        world.start_agent()
        await world.runs("next")
        world.sim_driver("mig-hold", "0", "1")
        world.fake.remove("pods", "next", "default")
        await until(lambda: world.agent_lines("mig-instances-left"), "the refusal")
        assert instances(world) == [(6, 1, 2)]
        world.sim_driver("mig-release", "0", "1")
        await until(lambda: instances(world) == [], "the instance to go")


async def test_under_the_node_lock_allocate_makes_the_instance(world: World) -> None:
    world.configuration["handoff"] = {"mode": "lock"}
    world.start_agent()
    async with world.kubelet(allocatable=10):
        world.lock_node("p1")
        bind(world, "p1", "1g.5gb", (6, 1))
        await world.runs("p1")
        environment = await world.environment("p1")
        await until(lambda: world.annotation("p1", PHASE_KEY) == "success", "the phase")
        assert environment["NVIDIA_VISIBLE_DEVICES"] == reservation(world, "p1")["migUUID"]
        assert instances(world) == [(6, 1, 1)]
        await until(lambda: not world.annotation_of_node(LOCK_KEY), "the lock to go")

        world.lock_node("foreign")
        bind(world, "foreign", "1g.5gb", (6, 1))
        await until(lambda: world.annotation("foreign", PHASE_KEY) == "failed", "the refusal")
        await until(lambda: not world.annotation_of_node(LOCK_KEY), "the lock to go")
        world.fake.remove("pods", "p1", "default")
        await until(lambda: instances(world) == [], "the instance of the deleted pod to go")


async def test_by_the_lock_instances_are_made_again_after_a_reboot_or_refused_by_their_names(world: World) -> None:
    """The simulated driver numbers instances anew then: the first has the name it had, the second has the first's."""
    world.configuration["handoff"] = {"mode": "lock"}
    world.start_agent()
    async with world.kubelet(allocatable=10):
        for name, start in (("gone", 4), ("other", 5)):
            world.lock_node(name)
            bind(world, name, "1g.5gb", (start, 1))
            await world.runs(name)
            await until(lambda name=name: world.phase(name) == "success", "the phase")
            await until(lambda: not world.annotation_of_node(LOCK_KEY), "the lock to go")
        world.fake.remove("pods", "gone", "default")
        await until(lambda: instances(world) == [(5, 1, 2)], "the first instance to go")
    await reboot(world)
    assert instances(world) == []
    async with booted(world):
        said = await world.waits_with("other", "its MIG instances are gone")
        assert "delete the pod" in said
        assert world.phase("other") == "failed"
        world.fake.remove("pods", "other", "default")
        await until(lambda: instances(world) == [], "the instance made in its place to go")


async def test_by_the_lock_a_pod_whose_instance_has_its_name_again_goes_on_after_a_reboot(world: World) -> None:
    world.configuration["handoff"] = {"mode": "lock"}
    world.start_agent()
    async with world.kubelet(allocatable=10):
        world.lock_node("p1")
        bind(world, "p1", "1g.5gb", (6, 1))
        await world.runs("p1")
        await until(lambda: world.phase("p1") == "success", "the phase")
        given = await world.environment("p1")
    await reboot(world)
    async with booted(world):
        await until(lambda: instances(world) == [(6, 1, 1)], "the instance to be made again")
        again = await world.environment("p1")
        assert again["NVIDIA_VISIBLE_DEVICES"] == given["NVIDIA_VISIBLE_DEVICES"]
        assert reservation(world, "p1")["migUUID"] == given["NVIDIA_VISIBLE_DEVICES"]


@asynccontextmanager
async def booted(world: World) -> AsyncIterator[None]:
    """Kubelet hears of pods once it knows the agent's devices: it would refuse them for good else."""
    world.fake.fail("list", "pods", 503, times=10**6)
    world.start_agent()

    async def tell_of_pods() -> None:
        await world.agent_serves()
        await world.allocatable(10)
        world.fake.clear_faults()

    telling = asyncio.create_task(tell_of_pods())
    async with world.kubelet():
        await telling
        yield


async def reboot(world: World) -> None:
    """Kubelet is down already: then the agent goes too, every container, and whatever the driver held."""
    await world.kill_agent()
    await end_containers(world.root / "kl")
    shutil.rmtree(world.root / "kl" / "containers")
    shutil.rmtree(world.root / "driver.json.state")


async def test_mig_mode_is_switched_on_only_where_nobody_uses_the_card(world: World) -> None:
    plain = {"name": "NVIDIA A100-SXM4-40GB", "memory_mib": 40960, "mig_capable": True}
    cards = [{**plain, "uuid": card_id(number)} for number in range(4)]
    world.description.write_text(json.dumps({"cards": cards}))
    overrides = {"name": NODE, "operatingmode": "mig", "filterdevices": {"index": [2]}}
    (world.root / "config.json").write_text(json.dumps({"nodeconfig": [overrides]}))
    world.sim_driver("fail", "nvmlDeviceSetMigMode", "--code", RESET_REQUIRED, "--times", "1")
    environment = {**os.environ, "HAMI_SIM_DRIVER": str(world.description), "LD_LIBRARY_PATH": str(SIMULATED_DRIVER)}
    command = [WORKLOAD, "alloc", "--device", "1", "--mib", "10", "--hold-until-signal"]
    user = await asyncio.create_subprocess_exec(*command, env=environment, stdout=subprocess.PIPE)
    assert user.stdout is not None
    while b"allocated" not in await user.stdout.readline():
        assert user.returncode is None
    world.start_agent()
    async with world.kubelet():
        await until(lambda: "1 processes use the card" in str(world.events("CardNotOffered")), "the card in use")
        offered = {card_id(0), card_id(3)}
        await until(lambda: {card["id"] for card in world.register()} == offered, "those that nobody uses")

        user.terminate()
        await user.wait()
        await until(lambda: len(world.register()) == 3, "the third")

    switched = [line["card"] for line in world.agent_lines("mig-mode-switched-on")]
    assert sorted(switched) == [card_id(0), card_id(1), card_id(3)]
    await until(lambda: "cannot be switched on" in str(world.events("CardNotOffered")), "the card that refused")
