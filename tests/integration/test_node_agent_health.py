"""Cards that break and mend: kubelet, the register annotation, events on a real bus."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
from hami_model import events
from hami_model.events import subjects

sys.path.insert(0, str(Path(__file__).parents[2] / "services" / "node-agent" / "tests"))

from node_agent_world import REGISTER_KEY, World, card_id, container, new_world, slot, until


class Heard:
    """Events as a plain subscriber sees them."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
async def world(nats_url: str) -> AsyncIterator[World]:
    async with new_world(nats_url=nats_url) as found:
        yield found


@pytest.fixture
async def heard(nats_url: str, world: World) -> AsyncIterator[Heard]:
    found = Heard()
    prefix = f"t{world.root.name}"
    world.configuration["events"] = {"prefix": prefix}

    async def hear(message: Any) -> None:
        found.events.append(events.decode(message.data))

    client = await nats.connect(nats_url)
    await client.subscribe(subjects.everything(prefix=prefix), cb=hear)
    await client.flush()
    yield found
    await client.close()


def health(world: World) -> list[bool]:
    return [card.get("health", False) for card in world.register()]


@pytest.mark.case("REG-07")
@pytest.mark.case("VEN-03")
async def test_a_fault_takes_the_card_out_and_clean_probes_bring_it_back(world: World, heard: Heard) -> None:
    world.start_agent()
    async with world.kubelet(allocatable=20):
        uid = world.bind_pod("train", slot((1, 3000, 30)), container(gpus=1))
        await until(lambda: heard.of(events.AllocationAllocated), "the allocated event")

        world.sim_driver("xid", "1", "43")  # a program's fault
        world.sim_driver("lose", "1")
        await until(lambda: health(world) == [True, False], "the annotation")
        await world.allocatable(10)
        # A probe may find it before the driver has said with what it broke.
        broken = await until(lambda: [e for e in heard.of(events.CardHealthChanged) if e.xid], "the driver's word")
        assert (broken[0].card_id, broken[0].healthy, broken[0].xid) == (card_id(1), False, 79)
        assert [pod.uid for pod in broken[0].used_by] == [uid]
        assert broken[0].resource_version

        world.sim_driver("restore", "1")
        await until(lambda: health(world) == [True, True], "the way back")
        await world.allocatable(20)
        mended = await until(lambda: [e for e in heard.of(events.CardHealthChanged) if e.healthy], "its event")
        assert mended[0].cause == "recovered"
        told = [(e.card_id, e.healthy, e.cause) for e in heard.of(events.CardHealthChanged)]
        assert [each for each in told if each != (card_id(1), False, "probe-failed")] == [
            (card_id(1), False, "xid"),
            (card_id(1), True, "recovered"),
        ]

    allocated = heard.of(events.AllocationAllocated)[0]
    assert (allocated.pod.uid, allocated.verification, allocated.enforced_by) == (uid, "verified", "preload")
    assert allocated.id == f"{allocated.allocation_id}.allocated"
    # Told apart from the annotation, so perhaps later.
    await until(
        lambda: [card.healthy for card in heard.of(events.InventoryReported)[-1].cards] == [True, True],
        "the inventory event",
    )
    assert heard.of(events.InventoryReported)[-1].handoff == "late-binding"


@pytest.mark.case("REG-05")
async def test_the_annotation_is_written_until_it_holds_and_again_when_it_is_removed(
    world: World, heard: Heard
) -> None:
    world.fake.fail("patch", "nodes", 500, times=3)
    world.start_agent()
    async with world.kubelet(allocatable=20):
        await until(world.register, "the annotation")
        await until(lambda: heard.of(events.InventoryReported), "the inventory event")

        node = world.node()
        del node["metadata"]["annotations"][REGISTER_KEY]
        world.fake.put("nodes", node)
        await until(world.register, "the annotation again")

        world.fake.put("nodes", world.node() | {"metadata": _with(world, "[]")})  # another program's hand
        await until(world.register, "the annotation once more")

        metrics = await world.metrics()
        assert 'hami_node_agent_node_patches_total{result="done"}' in metrics
        assert 'hami_node_agent_cards{health="healthy"} 2.0' in metrics


async def test_a_card_that_the_node_s_file_hides_is_not_offered(world: World) -> None:
    overrides = world.root / "config.json"
    overrides.write_text('{"nodeconfig": [{"name": "n1", "filterdevices": {"index": [0]}, "devicesplitcount": 3}]}')
    world.configuration["node"]["overrides_file"] = str(overrides)
    world.start_agent()
    async with world.kubelet(allocatable=3):
        assert [(card["id"], card["count"]) for card in world.register()] == [(card_id(1), 3)]


async def test_a_refusal_is_an_event_too(world: World, heard: Heard) -> None:
    world.start_agent()
    async with world.kubelet(allocatable=20):
        world.bind_pod("odd", slot((7, 1, 1)), container(gpus=1))

        failed = await until(lambda: heard.of(events.AllocationFailed), "the failed event")

        assert "this node has no card" in failed[0].reason
        # Kubelet goes on asking; the event is said once.
        await world.waits_with("odd", "this node has no card")
        await asyncio.sleep(0)
        assert len({event.id for event in heard.of(events.AllocationFailed)}) == 1


def _with(world: World, register: str) -> dict[str, Any]:
    metadata = dict(world.node()["metadata"])
    return {**metadata, "annotations": {**metadata["annotations"], REGISTER_KEY: register}}
