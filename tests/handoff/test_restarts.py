"""Kubelet, agent and node start again between admission and start, and later: containers get what was theirs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from handoff_world import (
    book,
    container,
    gate,
    has_recorded,
    node,
    open_gate,
    reboot,
    recorded,
    recording,
    settled,
    slot,
    until,
)
from node_agent_world import World, new_world


def bind_waiting(world: World, size: int = 2000) -> str:
    """A pod whose app container was admitted and waits for its init container, which waits for the gate."""
    waiting = container("wait", script=gate(world, "gate"))
    return world.bind_pod(
        "p", ";" + slot((1, size, 0)), container(gpus=1, script=recording(world)), initContainers=[waiting]
    )


@pytest.mark.parametrize("again", [("kubelet",), ("agent",), ("kubelet", "agent"), ("agent", "kubelet")])
async def test_restarts_between_allocate_and_start(again: tuple[str, ...]) -> None:
    """Kubelet's checkpoint says whose the devices are, and the ledger says what they stand for."""
    async with new_world() as world:
        world.start_agent()
        async with world.kubelet(allocatable=20):
            bind_waiting(world)
            await world.runs("p", "wait")
            if again[0] == "agent":
                await world.kill_agent()
        if again[0] == "agent" or "agent" in again:
            await world.kill_agent()
        if again[-1] == "kubelet" and "agent" in again:
            world.start_agent()
        async with world.kubelet():
            if world.agent is None:
                world.start_agent()
            await world.agent_serves()
            open_gate(world, "gate")
            await settled(world, "p")
        await has_recorded(world, ["2000m"])


async def test_after_a_reboot_pods_start_again_with_their_own() -> None:
    """Specifications lay in memory; kubelet's checkpoint and ours are on disk; one-shot init containers run again."""
    async with new_world() as world:
        async with node(world):
            world.bind_pod(
                "p",
                slot((0, 5000, 0)) + slot((0, 3000, 0)),
                container(gpus=1, script=recording(world, "app")),
                initContainers=[container("init", gpus=1, script=recording(world, "init", then="exit 0"))],
                restartPolicy="Always",
            )
            await settled(world, "p")
            await has_recorded(world, ["3000m"], "app")
        kept = book(world)
        await reboot(world)
        async with node(world, pods_wait=True):
            await has_recorded(world, ["3000m"] * 2, "app")
            await has_recorded(world, ["5000m"] * 2, "init")
        assert book(world) == kept


async def test_after_a_reboot_without_kubelet_s_checkpoint_pods_are_admitted_anew() -> None:
    """Allocate answers with other names, and the containers behind them are the same."""
    async with new_world() as world:
        async with node(world):
            world.bind_pod("p", slot((1, 3000, 0)), container(gpus=1, script=recording(world)), restartPolicy="Always")
            await settled(world, "p")
            await has_recorded(world, ["3000m"])
        await reboot(world)
        (world.root / "kl/device-plugins/kubelet_internal_checkpoint").unlink()
        async with node(world, pods_wait=True):
            await has_recorded(world, ["3000m"] * 2)


@pytest.mark.parametrize(
    "agent_lags", [False, True], ids=["the agent's watch is up to date", "the agent's watch has brought nothing yet"]
)
async def test_after_a_reboot_an_init_container_waits_while_what_it_held_is_another_s(agent_lags: bool) -> None:
    """`first` needed 30,000 MiB to begin and 10,000 since; `second` was given the rest meanwhile, and keeps it."""
    async with new_world(cards=1) as world:
        async with node(world, allocatable=10):
            first = world.bind_pod(
                "first",
                slot((0, 30000, 0)) + slot((0, 10000, 0)),
                container(gpus=1, script=recording(world, "first")),
                initContainers=[container("init", gpus=1, script=recording(world, "init", then="exit 0"))],
                restartPolicy="Always",
            )
            await settled(world, "first")
            await until(lambda: book(world)[first]["init_over"], "the book to know that its init container ended")
            world.bind_pod(
                "second",
                slot((0, 25000, 0)),
                container(gpus=1, script=recording(world, "second")),
                restartPolicy="Always",
                annotations={"hami.io/bind-time": "1772600999"},
            )
            await settled(world, "second")
            await has_recorded(world, ["10000m"], "first")
            await has_recorded(world, ["25000m"], "second")
        await reboot(world)
        async with node(world, allocatable=10, pods_wait=True, agent_lags=agent_lags):
            await world.waits_with("first", "init containers run again", "init")
            await has_recorded(world, ["25000m"] * 2, "second")
            assert world.phase("first") == "success"
            world.fake.remove("pods", "second", "default")
            await has_recorded(world, ["10000m"] * 2, "first")
        assert recorded(world, "init") == ["30000m"] * 2


def _half(text: str) -> str:
    return text[: len(text) // 2]


def _wrong_sum(text: str) -> str:
    document = json.loads(text)
    return json.dumps({**document, "Checksum": 1})


def _more_members(text: str) -> str:
    document = json.loads(text)
    entries = document["Data"]["PodDeviceEntries"]
    document["Data"] |= {"PodDeviceEntries": [{**entry, "Later": {"a": 1}} for entry in entries], "Epoch": 7}
    return json.dumps({**document, "Version": "v9"})


def _odd_entry(text: str) -> str:
    document = json.loads(text)
    document["Data"]["PodDeviceEntries"].insert(0, {"PodUID": ["?"], "DeviceIDs": 3})
    return json.dumps(document)


def _ids_in_one_list(text: str) -> str:
    """The form of kubelet 1.19 and before."""
    document = json.loads(text)
    for entry in document["Data"]["PodDeviceEntries"]:
        entry["DeviceIDs"] = [found for ids in entry["DeviceIDs"].values() for found in ids]
    return json.dumps(document)


@pytest.mark.parametrize(
    "written",
    [
        pytest.param(_wrong_sum, id="another checksum"),
        pytest.param(_more_members, id="members of a later kubelet"),
        pytest.param(_odd_entry, id="an entry of unknown shape beside"),
        pytest.param(_ids_in_one_list, id="ids in one list"),
    ],
)
async def test_a_checkpoint_in_another_form_is_read(written: Callable[[str], str]) -> None:
    async with new_world() as world, node(world):
        bind_waiting(world)
        await world.runs("p", "wait")
        _rewrite(world, written)
        open_gate(world, "gate")
        await settled(world, "p")
        await has_recorded(world, ["2000m"])


@pytest.mark.parametrize(
    "written",
    [
        pytest.param(_half, id="half of it"),
        pytest.param(lambda _: "", id="nothing"),
        pytest.param(lambda _: '{"Data": 7}', id="another shape"),
        pytest.param(lambda _: '{"Data": {"PodDeviceEntries": []}}', id="without the pod"),
    ],
)
async def test_a_container_waits_while_the_checkpoint_tells_nothing(written: Callable[[str], str]) -> None:
    async with new_world() as world, node(world):
        bind_waiting(world)
        await world.runs("p", "wait")
        whole = _rewrite(world, written)
        open_gate(world, "gate")
        await world.waits_with("p", "checkpoint")
        assert recorded(world) == []
        assert world.phase("p") == "allocating"
        _rewrite(world, lambda _: whole)
        await settled(world, "p")
        await has_recorded(world, ["2000m"])


def _rewrite(world: World, change: Callable[[str], str]) -> str:
    """As kubelet does: aside, then in its place. Returns what was there."""
    file: Path = world.root / "kl/device-plugins/kubelet_internal_checkpoint"
    before = file.read_text()
    aside = file.with_name("aside")
    aside.write_text(change(before))
    aside.replace(file)
    return before
