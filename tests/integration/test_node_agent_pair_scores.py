"""How cards are connected: from the driver over the agent to what a scheduler reads of the node."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hami_model import kube, vendors
from hami_model.device_config import VendorSettings, default_config
from hami_model.ids import AllocationId

sys.path.insert(0, str(Path(__file__).parents[2] / "services" / "node-agent" / "tests"))

from hami_chassis.clock import SystemClock
from hami_scheduler.core import inventory
from hami_scheduler.core.filter import filter_pod
from hami_scheduler.core.ledger import Ledger
from node_agent_world import NODE, World, card_id, new_world, until

NVIDIA = vendors.vendor(vendors.NVIDIA)
SCORE_KEY = NVIDIA.pair_scores_key


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with new_world(cards=4) as found:
        yield found


def connect(world: World, *links: dict[str, Any]) -> None:
    world.description.write_text(json.dumps({**json.loads(world.description.read_text()), "links": links}))


def scores(world: World) -> dict[str, dict[str, int]]:
    """As a scheduler sees them."""
    node = msgspec.convert(world.node(), kube.Node)
    view = inventory.observe(node, nvidia(), inventory.VendorView(), SystemClock().now())
    assert view.problem is None
    return {str(card): peers for card, peers in view.pair_scores.items()}


def chosen(world: World, count: int) -> set[str]:
    """Cards that a pod gets which asks for the best connected ones."""
    ledger = Ledger(default_config())
    ledger.upsert_node(msgspec.convert(world.node(), kube.Node), SystemClock().now())
    annotations = {"hami.io/gpu-scheduler-policy": "topology-aware"}
    limits = {"nvidia.com/gpu": str(count)}
    pod = {
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "annotations": annotations},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
    }
    asked = msgspec.convert(pod, kube.Pod)
    filter_pod(ledger, asked, [NODE], allocation_id=AllocationId("x"), now=SystemClock().now())
    return set(ledger.cluster.booked("u"))


def nvidia() -> VendorSettings:
    found = default_config().vendor(vendors.NVIDIA)
    assert found is not None
    return found


async def test_the_agent_publishes_how_cards_are_connected(world: World) -> None:
    connect(
        world,
        {"from": 0, "to": 1, "nvlinks": 4, "ancestor": "single"},
        {"from": 2, "nvlinks": 6},
        {"from": 3, "nvlinks": 8},
    )
    world.start_agent()
    async with world.kubelet(allocatable=40):
        found, pair = scores(world), chosen(world, count=2)

    assert pair == {card_id(2), card_id(3)}, "610, the best of all pairs"
    # Cards 0 and 2 lie on NUMA node 0, cards 1 and 3 on node 1.
    assert found[card_id(0)] == {card_id(1): 450, card_id(2): 20, card_id(3): 10}
    assert found[card_id(2)] == {card_id(0): 20, card_id(1): 10, card_id(3): 610}


@pytest.mark.case("PLC-06")
async def test_links_that_each_side_tells_otherwise_are_one_event_and_no_crash(world: World) -> None:
    connect(world, {"from": 0, "to": 1, "nvlinks": 4, "nvlinks_back": 2}, {"from": 0, "to": 2, "nvlinks": 1})
    world.start_agent()
    async with world.kubelet(allocatable=40):
        assert scores(world)[card_id(0)] == {card_id(1): 0, card_id(2): 120, card_id(3): 10}

        world.sim_driver("lose", "3")
        await until(lambda: not all(card.get("health", False) for card in world.register()), "the broken card")
        (event,) = await until(lambda: world.events("AsymmetricGPUP2PLink"), "the event")
        assert f"{card_id(0)} and {card_id(1)} (4 and 2)" in event["message"]
        assert event["involvedObject"]["kind"] == "Node"
        assert scores(world)[card_id(0)][card_id(1)] == 0


async def test_scores_that_are_turned_off_are_left_as_they_are(world: World) -> None:
    annotations = {SCORE_KEY: "[]"}
    world.fake.put(
        "nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "annotations": annotations}}
    )
    world.configuration["node"]["topology_scores"] = False
    world.start_agent()
    async with world.kubelet(allocatable=40):
        assert world.annotation_of_node(SCORE_KEY) == "[]"
