"""A node-agent that binds late: real kubelet protocols, simulated driver, pods as processes."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from hami_model import limits_page
from hami_model.limits_page import CardLimits, LimitsPage, Policy

sys.path.insert(0, str(Path(__file__).parents[2] / "services" / "node-agent" / "tests"))

from node_agent_world import (
    ALLOCATED_KEY,
    FOREVER,
    LOCK_KEY,
    NODE,
    TO_ALLOCATE_KEY,
    World,
    card_id,
    container,
    new_world,
    slot,
    until,
)

LIMIT = "CUDA_DEVICE_MEMORY_LIMIT_0"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with new_world() as found:
        yield found


@pytest.fixture
async def serving(world: World) -> AsyncIterator[World]:
    """Agent and kubelet run, and kubelet knows 20 devices."""
    world.start_agent()
    async with world.kubelet(allocatable=20):
        yield world


def specifications(world: World) -> list[Path]:
    return sorted((world.root / "cdi").glob("*.json"))


async def test_a_node_registers_and_a_pod_gets_its_slice(serving: World) -> None:
    assert [(card["id"], card.get("index", 0), card["handoff"], card["health"]) for card in serving.register()] == [
        (card_id(0), 0, "late-binding", True),
        (card_id(1), 1, "late-binding", True),
    ]

    uid = serving.bind_pod("train", slot((1, 3000, 30)), container(gpus=1))
    environment = await serving.environment("train")

    assert environment["NVIDIA_VISIBLE_DEVICES"] == card_id(1)
    assert environment[LIMIT] == "3000m"
    assert environment["CUDA_DEVICE_SM_LIMIT"] == "30"
    assert environment["HAMI_HANDOFF"] == "done"
    region = Path(environment["CUDA_DEVICE_MEMORY_SHARED_CACHE"])
    assert region.parent == serving.root / "hook" / "vgpu" / "containers" / f"{uid}_main"
    assert region.parent.is_dir()
    assert environment["LD_PRELOAD"].split(":")[0] == f"{region.parent}/libvgpu.so"
    assert limits_page.decode((region.parent / "limits" / "page").read_bytes()) == LimitsPage(
        region_file=f"{serving.root}/hook/vgpu/{region.name}",
        cards=(CardLimits(uuid=card_id(1), memory_limit_bytes=3000 << 20, cores_percent=30),),
        policy=Policy.FORCE,
    )
    await until(lambda: serving.phase("train") == "success", "the phase")
    assert serving.annotation("train", TO_ALLOCATE_KEY) == ";"
    assert serving.pod("train")["metadata"]["labels"]["hami.io/vgpu-node"] == NODE


async def test_pages_follow_the_agent_s_settings_while_containers_run(serving: World) -> None:
    uid = serving.bind_pod("train", slot((1, 3000, 30)), container(gpus=1))
    await serving.runs("train")
    path = serving.root / "hook" / "vgpu" / "limits" / f"{uid}_main" / "page"
    inode = path.stat().st_ino
    assert limits_page.decode(path.read_bytes()).policy == Policy.FORCE

    await serving.kill_agent()
    serving.configuration["enforcement"] = {"compute": "contended", "context_mib": 300, "opt_out": "forbidden"}
    serving.start_agent()

    await until(lambda: serving.agent_lines("limits-page-changed"), "the change")
    found = limits_page.decode(path.read_bytes())
    assert (found.policy, found.cards[0].context_bytes, path.stat().st_ino) == (Policy.DEFAULT, 300 << 20, inode)


async def test_the_driver_as_back_end_is_refused_at_the_start(world: World) -> None:
    world.configuration["enforcement"] = {"cards": "driver"}
    world.start_agent()
    await until(lambda: "enforcement.cards says driver" in world.agent_log().read_text(), "the refusal")
    assert "set preload" in world.agent_log().read_text()


async def test_a_node_without_enforcement_needs_no_library_and_gives_the_card_alone(world: World) -> None:
    world.configuration["enforcement"] = {"cards": "none"}
    world.configuration["files"]["library_file"] = ""
    world.start_agent()
    async with world.kubelet(allocatable=20):
        uid = world.bind_pod("train", slot((1, 3000, 30)), container(gpus=1))
        environment = await world.environment("train")
    assert environment["NVIDIA_VISIBLE_DEVICES"] == card_id(1)
    assert not {LIMIT, "LD_PRELOAD", "CUDA_DEVICE_MEMORY_SHARED_CACHE"} & environment.keys()
    assert not (world.root / "hook" / "vgpu" / "limits" / f"{uid}_main").exists()


async def test_twenty_pods_at_once_each_get_their_own(serving: World) -> None:
    gate = serving.root / "gate"
    waiting = container("wait", script=f"until [ -e {gate} ]; do sleep 0.2; done")
    for number in range(20):
        allocation = ";" + slot((number % 2, 1000 + number, 5))
        serving.bind_pod(f"p{number}", allocation, container(gpus=1), initContainers=[waiting])
    await serving.agent_knows_pods(20)
    gate.touch()

    for number in range(20):
        environment = await serving.environment(f"p{number}")
        assert (environment[LIMIT], environment["NVIDIA_VISIBLE_DEVICES"]) == (
            f"{1000 + number}m",
            card_id(number % 2),
        )
        await until(lambda number=number: serving.phase(f"p{number}") == "success", f"the phase of p{number}")
    # One patch a pod; nothing was read, since the watch had brought every pod.
    assert serving.fake.count("patch", "pods") == 20
    assert serving.fake.count("get", "pods") == 0


@pytest.mark.case("MUL-01")
async def test_init_container_and_app_container_get_their_own_although_kubelet_gives_ids_again(
    serving: World,
) -> None:
    uid = serving.bind_pod(
        "train",
        slot((0, 5000, 0)) + ";" + slot((1, 3000, 10)) + slot((0, 1000, 0), (1, 2000, 0)),
        container("none"),
        container("c0", gpus=1),
        container("c1", gpus=2),
        initContainers=[container("i0", gpus=1, script="env")],
    )

    limits = {
        name: {
            key: value
            for key, value in (await serving.environment("train", name)).items()
            if key.startswith("CUDA_DEVICE_MEMORY_LIMIT")
        }
        for name in ("i0", "none", "c0", "c1")
    }

    assert limits == {
        "i0": {LIMIT: "5000m"},
        "none": {},
        "c0": {LIMIT: "3000m"},
        "c1": {LIMIT: "1000m", "CUDA_DEVICE_MEMORY_LIMIT_1": "2000m"},
    }
    folders = {path.name for path in (serving.root / "hook" / "vgpu" / "containers").iterdir()}
    assert folders == {f"{uid}_i0", f"{uid}_c0", f"{uid}_c1"}


@pytest.mark.case("MUL-04")
async def test_a_container_without_cards_between_two_with_some(serving: World) -> None:
    serving.bind_pod(
        "train",
        slot((0, 12288, 0)) + ";" + slot((0, 2000, 0)),
        container("c0", gpus=1),
        container("c1"),
        container("c2", gpus=1),
    )

    assert (await serving.environment("train", "c0"))[LIMIT] == "12288m"
    assert (await serving.environment("train", "c2"))[LIMIT] == "2000m"
    assert "HAMI_HANDOFF" not in await serving.environment("train", "c1")


@pytest.mark.case("LCK-12")
@pytest.mark.case("MUL-06")
async def test_a_pod_that_the_scheduler_did_not_place_is_refused_with_the_reason(serving: World) -> None:
    serving.bind_pod("stray", None, container(gpus=1))

    message = await serving.waits_with("stray", "not placed by the HAMi scheduler")

    assert "schedulerName" in message
    await until(lambda: serving.phase("stray") == "failed", "the phase")
    await until(lambda: serving.events("AllocationFailed"), "the event")
    assert LOCK_KEY not in serving.node()["metadata"]["annotations"]
    serving.bind_pod("train", slot((0, 3000, 30)), container(gpus=1))
    await serving.runs("train")


@pytest.mark.parametrize(
    ("allocation", "more", "reason"),
    [
        pytest.param(
            slot((0, 1, 1), (1, 1, 1)), {}, "2 cards are allocated, but kubelet gave it 1", id="another count"
        ),
        pytest.param(slot((7, 1, 1)), {}, "this node has no card", id="an unknown card"),
        pytest.param("GPU-x,NVIDIA,1;", {}, "expected id,vendor,memory,cores", id="a malformed annotation"),
        pytest.param(slot((0, -1, 1)), {}, "negative", id="a negative amount"),
        pytest.param(slot((0, 1, 1)), {"hami.io/vgpu-node": "n2"}, "allocated cards of node 'n2'", id="another node's"),
    ],
)
async def test_an_allocation_that_cannot_be_right_is_refused_for_good(
    serving: World, allocation: str, more: dict[str, str], reason: str
) -> None:
    serving.bind_pod("odd", allocation, container(gpus=1), annotations=more)

    await serving.waits_with("odd", reason)
    await until(lambda: serving.phase("odd") == "failed", "the phase")


async def test_the_later_bind_loses_when_a_card_cannot_carry_both(serving: World) -> None:
    serving.bind_pod("early", slot((0, 30000, 0)), container(gpus=1), annotations={"hami.io/bind-time": "1772600000"})
    serving.bind_pod("late", slot((0, 20000, 0)), container(gpus=1), annotations={"hami.io/bind-time": "1772600001"})

    await serving.runs("early")
    message = await serving.waits_with("late", "40960 MiB of memory")

    assert "50000 would be in use" in message
    await until(lambda: serving.phase("late") == "failed", "the phase")
    # It stays refused, also when there is room: what was announced holds until the pod is gone.
    serving.fake.remove("pods", "early", "default")
    await until(lambda: len(specifications(serving)) == 0, "the specification's removal")
    await serving.waits_with("late", "40960 MiB of memory")


async def test_what_was_handed_out_first_holds_when_the_annotation_changes(serving: World) -> None:
    seen, go = serving.root / "seen", serving.root / "go"
    script = f"env >> {seen}; until [ -e {go} ]; do sleep 0.05; done; rm {go}; exit 1"
    serving.bind_pod("train", slot((0, 3000, 30)), container(gpus=1, script=script), restartPolicy="Always")

    def lines() -> list[str]:
        """Whole ones: it may be written while it is read."""
        whole = seen.read_text().rpartition("\n")[0].splitlines()
        return [line for line in whole if line.startswith((LIMIT, "CUDA_DEVICE_MEMORY_SHARED"))]

    await until(lambda: len(lines()) == 2, "the first start")
    pod = serving.pod("train")
    pod["metadata"]["annotations"][ALLOCATED_KEY] = slot((0, 40000, 100))
    serving.fake.put("pods", pod)

    starts = 1
    while starts < 3 or not serving.events("AllocationChanged"):  # told of at a start after the agent heard of it
        go.touch()
        starts += 1
        await until(lambda: len(lines()) == 2 * starts, f"start {starts}")  # noqa: B023  # it is waited for here

    assert len(set(lines())) == 2
    assert f"{LIMIT}=3000m" in lines()


async def test_an_agent_that_was_away_between_admission_and_start_hands_over_afterwards(serving: World) -> None:
    """Allocate is answered, then the agent is killed; the container cannot start until another one is there."""
    gate = serving.root / "gate"
    waiting = container("wait", script=f"while [ ! -e {gate} ]; do sleep 0.05; done")
    serving.bind_pod("first", slot((0, 1000, 1)), container(gpus=1))
    serving.bind_pod("second", ";" + slot((1, 2000, 2)), container(gpus=1), initContainers=[waiting])
    await until(lambda: serving.phase("first") == "success", "the first pod's phase")
    await serving.runs("second", "wait")

    await serving.kill_agent()
    gate.touch()
    await serving.waits_with("second", "stopped")
    serving.start_agent()

    assert (await serving.environment("second"))[LIMIT] == "2000m"
    await until(lambda: serving.phase("second") == "success", "the second pod's phase")
    assert json.loads((serving.root / "state" / "handed-out.json").read_text())["pods"].keys() == {
        serving.pod(name)["metadata"]["uid"] for name in ("first", "second")
    }


async def test_a_container_restarts_with_the_same_slice_after_a_restart_of_agent_and_kubelet(world: World) -> None:
    seen = world.root / "seen"
    world.start_agent()
    async with world.kubelet(allocatable=20):
        script = f"env >> {seen}; {FOREVER}"
        uid = world.bind_pod("train", slot((1, 3000, 30)), container(gpus=1, script=script), restartPolicy="Always")
        await until(lambda: "PWD=" in seen.read_text(), "the first start")
        await world.runs("train")
        await world.stop_agent()
    world.start_agent()
    async with world.kubelet():
        await world.agent_serves()
        state = json.loads((world.root / "kl" / "containers" / uid / "main" / "0" / "state.json").read_text())
        os.kill(state["pid"], signal.SIGKILL)

        await until(lambda: seen.read_text().count("PWD=") == 2, "the second start")

        keys = (LIMIT, "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_MEMORY_SHARED_CACHE")
        lines = [line for line in seen.read_text().splitlines() if line.startswith(keys)]
        assert len(lines) == 6
        assert len(set(lines)) == 3


async def test_without_the_api_server_a_pod_waits_and_then_starts(serving: World) -> None:
    serving.fake.pause_watches("pods")
    serving.fake.fail("list", "pods", 503, times=1000)
    serving.bind_pod("train", slot((0, 3000, 30)), container(gpus=1))
    # Kubelet's own watch is paused as well, so it learns of the pod when the agent's does.
    serving.fake.clear_faults()
    serving.fake.resume_watches("pods")

    await serving.runs("train")


async def test_the_outcome_is_written_when_the_api_server_is_back(serving: World) -> None:
    serving.fake.fail("patch", "pods", 503, times=3)

    serving.bind_pod("train", slot((0, 3000, 30)), container(gpus=1))

    await serving.runs("train")
    await until(lambda: serving.phase("train") == "success", "the phase")


async def test_specifications_and_folders_go_with_the_pod(serving: World) -> None:
    uid = serving.bind_pod("train", slot((0, 3000, 30)), container(gpus=1))
    await serving.runs("train")
    await until(lambda: serving.phase("train") == "success", "the phase")
    assert [path.name.split("_")[1] for path in specifications(serving)] == [uid]

    serving.fake.remove("pods", "train", "default")

    await until(lambda: not specifications(serving), "the specification's removal")
    await until(
        lambda: json.loads((serving.root / "state" / "handed-out.json").read_text())["pods"] == {},
        "the book to forget",
    )


async def test_a_lock_that_hami_took_is_freed_as_soon_as_its_pod_is_bound(serving: World) -> None:
    serving.lock_node("train")
    serving.bind_pod("train", slot((0, 3000, 30)), container(gpus=1))

    await until(lambda: LOCK_KEY not in serving.node()["metadata"]["annotations"], "the lock's release")
    await serving.runs("train")


@pytest.mark.case("LCK-04")
async def test_a_lock_of_another_pod_stays(serving: World) -> None:
    serving.lock_node("train-123")
    serving.bind_pod("train", slot((0, 3000, 30)), container(gpus=1))

    await until(lambda: serving.phase("train") == "success", "the phase")

    assert serving.node()["metadata"]["annotations"][LOCK_KEY].endswith("default,train-123")


async def test_nvidia_s_own_edits_are_merged_where_there_is_a_specification(world: World) -> None:
    folder = world.root / "nvidia-cdi"
    folder.mkdir()
    (folder / "nvidia.yaml").write_text(
        json.dumps(
            {
                "cdiVersion": "0.6.0",
                "kind": "nvidia.com/gpu",
                "devices": [
                    {"name": str(number), "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{number}"}]}}
                    for number in range(2)
                ],
                "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void", "FROM_NVIDIA=yes"]},
            }
        )
    )
    world.start_agent()
    async with world.kubelet(allocatable=20):
        world.bind_pod("train", slot((1, 3000, 30)), container(gpus=1))

        environment = await world.environment("train")

        assert environment["NVIDIA_VISIBLE_DEVICES"] == "void"
        assert environment["FROM_NVIDIA"] == "yes"
        # The stand-in shows the cards whose nodes it finds.
        assert environment["HAMI_SIM_VISIBLE_DEVICES"] == "1"


async def test_the_library_stays_out_where_the_pod_says_so(serving: World) -> None:
    off = [{"name": "CUDA_DISABLE_CONTROL", "value": "true"}]
    serving.bind_pod("train", slot((0, 3000, 30)), container(gpus=1, env=off))

    environment = await serving.environment("train")

    assert environment[LIMIT] == "3000m"
    assert str(serving.root) not in environment.get("LD_PRELOAD", "")


@pytest.mark.parametrize(
    ("runtime", "reason"),
    [
        pytest.param("containerd://1.7.24", "enable_cdi", id="a runtime that must be configured to"),
        pytest.param("docker://27.0", "not known whether", id="a runtime that is not known"),
    ],
)
async def test_late_binding_refuses_to_start_where_the_runtime_resolves_no_names(
    world: World, runtime: str, reason: str
) -> None:
    world.kubelet_settings = msgspec.structs.replace(world.kubelet_settings, runtime_version=runtime)
    agent = world.start_agent()
    async with world.kubelet():
        await until(lambda: not agent.is_alive(), "the agent's end")
        assert reason in world.agent_lines("root-task-failed")[0]["error"]
        assert world.annotation_of_node() is None

        world.configuration["handoff"] = {"mode": "auto"}
        world.start_agent()
        await world.allocatable(20)
        assert world.agent_lines("handoff-chosen")[0]["handoff"] == "lock"
        assert "handoff" not in world.register()[0]


async def test_a_checkpoint_of_unknown_shape_stops_late_binding(world: World) -> None:
    folder = world.root / "kl" / "device-plugins"
    agent = None
    async with world.kubelet():
        (folder / "kubelet_internal_checkpoint").write_text("not a checkpoint")
        agent = world.start_agent()
        await until(lambda: not agent.is_alive(), "the agent's end")

    assert "checkpoint cannot be read" in world.agent_lines("root-task-failed")[0]["error"]
