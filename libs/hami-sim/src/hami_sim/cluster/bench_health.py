"""How long a card that breaks can still be given to pods: from the XID to the scheduler's book without it."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from typing import Any

import msgspec
from hami_model.events import subjects
from nats.aio.client import Client

from hami_sim.cluster.artefacts import artefacts_in
from hami_sim.cluster.driver_description import card_ids
from hami_sim.cluster.local_cluster import LocalCluster
from hami_sim.cluster.profile import NodePlan
from hami_sim.cluster.usage_samples import connect
from hami_sim.controlplane import RestClient

XID = "79"
SAMPLES = 24
ANSWER_SECONDS = 5.0
POLL_SECONDS = 0.01
"""Asking more often costs the scheduler the time that is measured."""
LONGEST_SECONDS = 30.0
PATCHED_KEY = "bench.hami.io/annotation"

Json = dict[str, Any]


class _Card(msgspec.Struct, frozen=True):
    card_id: str
    healthy: bool


class _Node(msgspec.Struct, frozen=True):
    cards: list[_Card]


class _State(msgspec.Struct, frozen=True):
    nodes: list[_Node]


async def xid_to_out_of_placement(cluster: LocalCluster, client: RestClient) -> Json:
    """Milliseconds from the start of the program that raises the XID; of API writes, one of the annotation is in it."""
    waits: list[float] = []
    writes: list[float] = []
    bus = await connect(cluster.nats_url)
    try:
        for plan, card in _cards(cluster)[:SAMPLES]:
            writes.append(await _write(client, plan.name))
            waits.append(await _broken(cluster, bus, plan, card))
    finally:
        await bus.close()
    apart = [wait - write for wait, write in zip(waits, writes, strict=True)]
    waits.sort()
    return {
        "bench": "xid-to-out-of-placement",
        "cards": len(waits),
        "p50_ms": round(statistics.median(waits), 1),
        "max_ms": round(waits[-1], 1),
        "api_write_p50_ms": round(statistics.median(writes), 1),
        "without_api_write_p50_ms": round(statistics.median(apart), 1),
        "without_api_write_max_ms": round(max(apart), 1),
    }


def _cards(cluster: LocalCluster) -> list[tuple[NodePlan, str]]:
    """One card of each node, then the next of each: a card that broke needs a while to come back."""
    by_place = [(number, plan, card) for plan in cluster.plans for number, card in enumerate(card_ids(plan))]
    return [(plan, card) for _, plan, card in sorted(by_place, key=lambda found: found[0])]


async def _broken(cluster: LocalCluster, bus: Client, plan: NodePlan, card: str) -> float:
    place = cluster.node_layout(plan.name)
    environment = {**os.environ, "HAMI_SIM_DRIVER": str(place.driver), "HAMI_SIM_STATE": str(place.driver_state)}
    began = time.monotonic()
    tool = await asyncio.create_subprocess_exec(
        artefacts_in().programs / "sim-driver", "xid", card, XID, env=environment
    )
    while await _is_healthy(bus, plan.name, card):
        if time.monotonic() - began > LONGEST_SECONDS:
            raise TimeoutError(f"card {card} of node {plan.name} can still be given after {LONGEST_SECONDS:g} s")
        await asyncio.sleep(POLL_SECONDS)
    took = (time.monotonic() - began) * 1000
    await tool.wait()
    return took


async def _is_healthy(bus: Client, node: str, card: str) -> bool:
    reply = await bus.request(subjects.query("state"), msgspec.json.encode({"node": node}), timeout=ANSWER_SECONDS)
    state = msgspec.json.decode(reply.data, type=_State)
    return any(found.healthy for one in state.nodes for found in one.cards if found.card_id == card)


async def _write(client: RestClient, node: str) -> float:
    """Milliseconds of a patch like the agent's."""
    began = time.monotonic()
    await client.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": {PATCHED_KEY: str(began) * 100}}})
    return (time.monotonic() - began) * 1000
