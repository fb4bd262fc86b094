"""Waits until cards can be asked for: kubelet offers them, the node's annotation names them, the scheduler has them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from hami_model.errors import MalformedAnnotation
from hami_model.register import decode
from hami_model.vendors import vendor

from hami_sim.cluster.driver_description import card_ids
from hami_sim.cluster.profile import NodePlan
from hami_sim.cluster.scheduler_view import SchedulerSilentError, cards_in_book
from hami_sim.controlplane import RestClient

_POLL_SECONDS = 0.25
NVIDIA = vendor("NVIDIA")


async def wait_for_cards(
    client: RestClient, nats_url: str, plans: Sequence[NodePlan], *, timeout_seconds: float
) -> str | None:
    """None when all is there, else what is still missing after the time."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        nodes = (await client.get("/api/v1/nodes"))["items"]
        missing = first_missing(nodes, plans) or await _missing_in_book(nats_url, plans)
        if missing is None or time.monotonic() > deadline:
            return missing
        await asyncio.sleep(_POLL_SECONDS)


async def _missing_in_book(nats_url: str, plans: Sequence[NodePlan]) -> str | None:
    wanted = {card_id: plan.name for plan in plans for card_id in card_ids(plan)}
    if not wanted:
        return None
    try:
        known = await cards_in_book(nats_url)
    except SchedulerSilentError as error:
        return f"no scheduler answers at {error}"
    absent = [node for card_id, node in wanted.items() if card_id not in known]
    return f"the scheduler does not know {len(absent)} cards of {', '.join(dict.fromkeys(absent))}" if absent else None


def first_missing(nodes: Sequence[dict[str, Any]], plans: Sequence[NodePlan]) -> str | None:
    """What the first node that is not as planned still lacks."""
    by_name = {node["metadata"]["name"]: node for node in nodes}
    for plan in plans:
        if not plan.has_cards:
            continue
        node = by_name.get(plan.name)
        if node is None:
            return f"node {plan.name} is not there"
        annotation = node["metadata"].get("annotations", {}).get(NVIDIA.register_key)
        if annotation is None:
            return f"node {plan.name} has no annotation {NVIDIA.register_key}"
        try:
            registered = {card.id for card in decode(NVIDIA, annotation) if card.healthy}
        except MalformedAnnotation as error:
            return f"node {plan.name}: {error}"
        absent = [card_id for card_id in card_ids(plan) if card_id not in registered]
        if absent:
            return f"node {plan.name} does not offer {', '.join(absent)}"
        count = node.get("status", {}).get("allocatable", {}).get(NVIDIA.resources.count, "0")
        if int(count) == 0:
            return f"kubelet of node {plan.name} has no allocatable {NVIDIA.resources.count}"
    return None
