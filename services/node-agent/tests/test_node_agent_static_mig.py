"""MIG devices that were made beforehand: what is offered of them, and what containers get."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hami_node_agent.core import nvidia_config, static_mig
from hami_node_agent.core.inventory import CardFacts, kubelet_devices, take_inventory, visible_cards
from hami_node_agent.core.node_options import NodeOptions
from hami_node_agent.core.nvidia_config import NvidiaConfigError
from hami_node_agent.core.static_mig import StaticInstance, StaticOffer
from node_agent_world import LOCK_KEY, World, card_id, container, new_world, until

MODEL = "NVIDIA A100-SXM4-40GB"
CAPABILITIES = {"gpu0/gi7/access": 66, "gpu0/gi7/ci0/access": 67}


def card(number: int = 0) -> CardFacts:
    return CardFacts(uuid=f"GPU-{number}", index=number, name=MODEL, minor=number, memory_bytes=40 << 30, numa_text="1")


def instance(
    number: int, profile: str = "1g.5gb", *, of: CardFacts | None = None, gpu_instance: int = 7
) -> StaticInstance:
    return StaticInstance(
        uuid=f"MIG-{number}",
        name=f"{MODEL} MIG {profile}",
        number=number,
        gpu_instance=gpu_instance,
        compute_instance=0,
        memory_bytes=4864 << 20,
        card=of or card(),
    )


def offer(strategy: Any, instances: list[StaticInstance], *, cards: int = 1, in_mig_mode: int = 1) -> StaticOffer:
    found = [card(number) for number in range(cards)]
    on = frozenset(one.uuid for one in found[:in_mig_mode])
    return static_mig.static_offer(found, on, instances, strategy, CAPABILITIES)


def test_none_leaves_the_cards_as_they_are() -> None:
    assert offer("none", [instance(0)]) == StaticOffer(cards=(card(),))


def test_single_offers_each_instance_as_a_card_that_cannot_be_shared() -> None:
    found = offer("single", [instance(1), instance(0)])

    options = NodeOptions(split_count=10, memory_scaling=2, core_scaling=3, numa_topology=True)
    inventory = take_inventory(found.cards, options)
    shown = [(one.id, one.slots, one.memory_mib, one.cores_percent, one.model, one.numa) for one in inventory.cards]
    assert shown == [("MIG-0", 1, 4864, 100, MODEL, 1), ("MIG-1", 1, 4864, 100, MODEL, 1)]
    assert [device.id for device in kubelet_devices(inventory, numa_topology=True)] == ["MIG-0", "MIG-1"]
    device = visible_cards(inventory, ["MIG-0"])[0]
    assert (device.index, device.nodes) == (
        "0:0", ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap66", "/dev/nvidia-caps/nvidia-cap67"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("instances", "cards", "said"),
    [
        pytest.param([instance(0)], 2, "GPU-1 is not in MIG mode", id="a card is not in MIG mode"),
        pytest.param([instance(0), instance(1, "2g.10gb")], 1, "1g.5gb, 2g.10gb", id="profiles differ"),
        pytest.param([], 1, "has no MIG device", id="there is none"),
        pytest.param([instance(0, "1c.2g.10gb"), instance(1)], 1, "not all of its GPU instance", id="a part of one"),
    ],
)
def test_single_offers_nothing_where_not_all_are_alike(instances: list[StaticInstance], cards: int, said: str) -> None:
    found = offer("single", instances, cards=cards)

    assert found.cards == ()
    assert said in " ".join(found.problems)


def test_mixed_has_a_resource_for_each_profile_and_keeps_whole_cards() -> None:
    found = offer("mixed", [instance(0), instance(1, "1g.5gb+me"), instance(2, "1c.3g.20gb")], cards=2)

    assert found.cards == (card(1),)
    names = {resource: [one.uuid for one in each] for resource, each in found.by_resource.items()}
    assert names == {"nvidia.com/mig-1g.5gb": ["MIG-0"], "nvidia.com/mig-1g.5gb.me": ["MIG-1"]}
    assert len(found.problems) == 1


def test_shares_in_time_have_ids_of_their_own_and_faults_of_the_card_are_theirs() -> None:
    devices = static_mig.instance_devices([instance(0)], frozenset({"GPU-0"}), replicas=2)

    assert [(device.id, device.healthy, device.numa_node) for device in devices] == [
        ("MIG-0::0", False, 1), ("MIG-0::1", False, 1),
    ]  # fmt: skip


def test_a_hidden_card_s_instances_are_hidden() -> None:
    found = offer("single", [instance(0)])

    assert take_inventory(found.cards, NodeOptions(hidden_indexes=frozenset({0}))).cards == ()
    assert take_inventory(found.cards, NodeOptions(hidden_uuids=frozenset({"GPU-0"}))).cards == ()
    assert take_inventory(found.cards, NodeOptions(hidden_indexes=frozenset({1}))).cards != ()


def test_the_kernel_s_list_of_capabilities_is_read() -> None:
    text = "config 1\nmonitor 2\ngpu0/gi7/access 66\ngpu0/gi7/ci0/access 67\nodd\ngpu0/gi8/access x\n"

    assert static_mig.capability_minors(text) == CAPABILITIES


def test_ids_that_kubelet_chose_are_what_is_given() -> None:
    known = {"MIG-0": static_mig.visible_instance(instance(0), CAPABILITIES)}

    given = static_mig.chosen_instances(["MIG-0::1"], known, one_at_most=True)
    assert given == (known["MIG-0"],)
    assert "no MIG device MIG-9" in static_mig.chosen_instances(["MIG-9"], known, one_at_most=False)
    assert "one at a time" in static_mig.chosen_instances(["MIG-0::0", "MIG-0::1"], known, one_at_most=True)


# ---- NVIDIA's part of the device configuration -----------------------------------------------------------------------


def test_nvidia_s_flags_and_sharing_are_read() -> None:
    found = nvidia_config.parse(
        """
        version: v1
        flags:
          migStrategy: mixed
          failOnInitError: false
          plugin: {deviceListStrategy: [cdi-cri, envvar], passDeviceSpecs: true, colour: red}
        resources: {gpus: [{pattern: "*", name: x}]}
        sharing:
          timeSlicing:
            failRequestsGreaterThanOne: true
            resources: [{name: nvidia.com/mig-1g.5gb, replicas: 4, rename: y}]
        imex: {channelIDs: [0], required: true}
        nvidia: {anything: 1}
        """
    )

    assert {path: text for path, text, _ in found.values} == {
        "devices.mig_strategy": "mixed",
        "nvml.required": "false",
        "devices.list_strategies": "cdi-cri,envvar",
        "devices.pass_nodes": "true",
        "devices.imex_channels": "0",
        "devices.imex_required": "true",
    }
    assert (found.replicas, found.one_at_most) == ({"nvidia.com/mig-1g.5gb": 4}, True)
    assert [note.partition(":")[0] for note in found.notes] == [
        "flags.plugin.colour", "resources", "sharing.timeSlicing.resources[0].rename",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "version: v2",
        "flags: 3",
        "sharing: {timeSlicing: {resources: [{name: a}]}}",
        "sharing: {timeSlicing: {resources: 1}}",
        "a: [",
    ],
)
def test_what_nvidia_would_refuse_is_refused(text: str) -> None:
    with pytest.raises(NvidiaConfigError):
        nvidia_config.parse(text)


# ---- a whole node ----------------------------------------------------------------------------------------------------


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with new_world(cards=1) as made:
        one = {"uuid": card_id(0), "name": MODEL, "memory_mib": 40960, "mig_capable": True, "mig_enabled": True}
        made.description.write_text(json.dumps({"cards": [one]}))
        yield made


MAKE = """
import asyncio, json, sys
from hami_model.cards import MigPlacement
from hami_node_agent.adapters.nvml import Nvml
from hami_node_agent.adapters.nvml_mig_driver import NvmlMigDriver

async def make():
    nvml = Nvml(lambda: sys.argv[1], with_mig=True)
    await nvml.start()
    driver = NvmlMigDriver(nvml)
    for kind, start, size in json.loads(sys.argv[3]):
        made = await driver.create(sys.argv[2], kind, MigPlacement(start=start, size=size))
        print(made.made.uuid)
    await nvml.close()

asyncio.run(make())
"""
UNKNOWN = "999"
PROBES = 5
"""So many looks at the cards go by, each with probes beside it."""
ONE_SLICE, TWO_SLICES = (0, 1), (1, 2)
"""NVML's kind and the size of a profile's place."""


def make_instances(world: World, *places: tuple[tuple[int, int], int]) -> list[str]:
    """As an operator would, in a process of its own: profiles, each with where it begins. Returns UUIDs."""
    wanted = [[kind, start, size] for (kind, size), start in places]
    library = world.configuration["nvml"]["library_file"]
    done = subprocess.run(
        [sys.executable, "-c", MAKE, library, card_id(0), json.dumps(wanted)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "HAMI_SIM_DRIVER": str(world.description)},
    )
    return done.stdout.split()


def mig_container(resource: str) -> dict[str, Any]:
    return {**container(), "resources": {"limits": {resource: "1"}}}


@pytest.mark.parametrize("handoff", ["late-binding", "lock"])
async def test_under_single_a_container_gets_one_instance_and_no_lock_is_left(world: World, handoff: str) -> None:
    made = make_instances(world, (ONE_SLICE, 0), (ONE_SLICE, 2))
    world.configuration["devices"] = {"mig_strategy": "single"}
    world.configuration["handoff"] = {"mode": handoff}
    async with world.kubelet():
        world.start_agent()
        await world.allocatable(2)
        registered = {one["id"]: (one["count"], one["devmem"]) for one in world.register()}
        assert registered == dict.fromkeys(made, (1, 4864))
        if handoff == "lock":
            world.lock_node("p")

        world.bind_pod("p", f"{made[1]},NVIDIA,4864,100:;", container(gpus=1))
        await world.runs("p")

        variables = await world.environment("p")
        assert variables["NVIDIA_VISIBLE_DEVICES"] == made[1]
        assert not [name for name in variables if name.startswith("CUDA_DEVICE")]
        await until(lambda: world.phase("p") == "success", "the pod's success")
        await until(lambda: world.annotation_of_node(LOCK_KEY) is None, "the lock to be freed")


async def test_what_is_not_offered_and_what_waits_for_a_restart_are_events_of_the_node(world: World) -> None:
    make_instances(world, (ONE_SLICE, 0), (TWO_SLICES, 2))
    world.configuration["devices"] = {"mig_strategy": "single"}
    world.configuration["enforcement"] = {"by_card": {"GPU-of-another-node": "none"}}
    world.start_agent()
    await until(lambda: world.events("MigDeviceNotOffered"), "the event of the devices")
    await until(lambda: world.events("EnforcementNamesNoCard"), "the event of the setting")
    assert "1g.5gb, 2g.10gb" in world.events("MigDeviceNotOffered")[0]["message"]
    assert "GPU-of-another-node" in world.events("EnforcementNamesNoCard")[0]["message"]


async def test_a_profile_that_appears_is_told_of_until_the_agent_is_started_anew(world: World) -> None:
    make_instances(world, (ONE_SLICE, 0))
    world.configuration["devices"] = {"mig_strategy": "mixed"}
    world.start_agent()
    async with world.kubelet():
        await until(lambda: world.agent_lines("registered"), "the registration with kubelet")
        make_instances(world, (TWO_SLICES, 2))
        await until(lambda: world.events("MigResourceNeedsRestart"), "the event of the resource")
    (event,) = world.events("MigResourceNeedsRestart")
    assert "nvidia.com/mig-2g.10gb" in event["message"]
    assert event["involvedObject"]["kind"] == "Node"


async def test_under_mixed_each_profile_is_a_resource_that_needs_no_scheduler_of_ours(world: World) -> None:
    made = make_instances(world, (ONE_SLICE, 0), (TWO_SLICES, 2))
    world.configuration["devices"] = {"mig_strategy": "mixed"}
    async with world.kubelet():
        world.start_agent()

        def offered() -> dict[str, str]:
            found = world.node()["status"].get("allocatable", {})
            return {name: count for name, count in found.items() if "mig-" in name and count != "0"}

        await until(lambda: offered() == {"nvidia.com/mig-1g.5gb": "1", "nvidia.com/mig-2g.10gb": "1"}, "resources")
        world.bind_pod("p", None, mig_container("nvidia.com/mig-2g.10gb"))
        await world.runs("p")

        variables = await world.environment("p")
        assert variables["NVIDIA_VISIBLE_DEVICES"] == made[1]
        world.sim_driver("lose", "0")
        await until(lambda: offered() == {}, "the card's instances to be unhealthy")


def ever_broken(world: World) -> list[str]:
    lines = world.agent_lines("node-event")
    return [line["message"] for line in lines if line["reason"] in ("CardUnhealthy", "MigDeviceNotOffered")]


async def test_under_single_mig_devices_that_the_driver_does_not_list_now_are_not_gone(world: World) -> None:
    made = make_instances(world, (ONE_SLICE, 0), (ONE_SLICE, 2))
    world.configuration["devices"] = {"mig_strategy": "single"}
    async with world.kubelet():
        world.start_agent()
        await world.allocatable(2)
        world.sim_driver("fail", "nvmlDeviceGetMaxMigDeviceCount", "--code", UNKNOWN)
        await until(lambda: len(world.agent_lines("mig-devices-unreadable")) > PROBES, "some looks at the cards")
        world.bind_pod("p", f"{made[1]},NVIDIA,4864,100:;", container(gpus=1))
        await world.runs("p")
        world.sim_driver("fail", "nvmlDeviceGetName", "--code", UNKNOWN)  # nor the card itself
        await until(lambda: len(world.agent_lines("mig-devices-unreadable")) > 2 * PROBES, "more of them")
        world.bind_pod("q", f"{made[0]},NVIDIA,4864,100:;", container(gpus=1))
        await world.runs("q")
    assert ever_broken(world) == []


async def test_under_mixed_a_resource_stays_while_the_driver_does_not_list_its_devices(world: World) -> None:
    make_instances(world, (ONE_SLICE, 0))
    world.configuration["devices"] = {"mig_strategy": "mixed"}
    async with world.kubelet():
        world.start_agent()

        def offered() -> str | None:
            count: str | None = world.node()["status"].get("allocatable", {}).get("nvidia.com/mig-1g.5gb")
            return count

        await until(lambda: offered() == "1", "the resource")
        world.sim_driver("fail", "nvmlDeviceGetMaxMigDeviceCount", "--code", UNKNOWN)
        await until(lambda: len(world.agent_lines("mig-devices-unreadable")) > PROBES, "some looks at the cards")
        world.bind_pod("p", None, mig_container("nvidia.com/mig-1g.5gb"))
        await world.runs("p")
        assert offered() == "1"


async def test_under_single_a_pod_waits_for_mig_devices_that_were_never_listed(world: World) -> None:
    made = make_instances(world, (ONE_SLICE, 0))
    world.configuration["devices"] = {"mig_strategy": "single"}
    world.start_agent()
    async with world.kubelet(allocatable=1):
        await world.kill_agent()
        world.sim_driver("fail", "nvmlDeviceGetMaxMigDeviceCount", "--code", UNKNOWN)
        world.start_agent()
        await until(lambda: world.events("CardNotOffered"), "the event")
        assert "does not tell its MIG devices" in world.events("CardNotOffered")[0]["message"]
        world.sim_driver("heal")
        await world.allocatable(1)
        world.bind_pod("p", f"{made[0]},NVIDIA,4864,100:;", container(gpus=1))
        await world.runs("p")
