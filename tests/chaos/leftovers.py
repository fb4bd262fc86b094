"""What must be gone when the last pod is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import aiohttp
import nats.errors
from hami_model.events import subjects
from hami_sim.cluster import LocalCluster
from hami_sim.cluster.observe import observe
from hami_sim.cluster.usage_samples import connect
from hami_sim.controlplane import ApiError

LOCK = "hami.io/mutex.lock"
LIMIT_SECONDS = 300


async def until_nothing_is_left(cluster: LocalCluster, say: Callable[[str], None]) -> list[str]:
    """What is left after a long time; empty as soon as nothing is."""
    deadline = asyncio.get_running_loop().time() + LIMIT_SECONDS
    said: list[str] = []
    while True:
        try:
            left = [line async for line in _left(cluster)]
        except (ApiError, aiohttp.ClientError, nats.errors.Error, OSError, TimeoutError) as error:
            left = [f"not known: {error or type(error).__name__}"]
        if not left or asyncio.get_running_loop().time() > deadline:
            return left
        if left != said:
            say(f"still left: {'; '.join(left)}")
            said = left
        await asyncio.sleep(1)


async def _left(cluster: LocalCluster) -> AsyncIterator[str]:
    async with cluster.client() as kube:
        for node in (await kube.get("/api/v1/nodes"))["items"]:
            if LOCK in node["metadata"].get("annotations", {}):
                yield f"lock of {node['metadata']['name']}: {node['metadata']['annotations'][LOCK]}"
    status = await observe(cluster)
    for service in status.services:
        if service.state != "ready":
            yield f"{service.name} is {service.state}: {service.problem}"
    for card in status.cards:
        if card.slots_used or not card.healthy:
            yield f"card {card.id}: {card.slots_used} slots in use, healthy {card.healthy}"
    for line in await _booked(cluster):
        yield line
    for plan in cluster.plans:
        for line in _files(cluster, plan.name):
            yield line


async def _booked(cluster: LocalCluster) -> list[str]:
    """What the leading scheduler has in its book, reservations among it."""
    client = await connect(cluster.nats_url)
    try:
        reply = await client.request(subjects.query("state"), b"{}", timeout=30)
    finally:
        await client.close()
    book = json.loads(reply.data)
    left = [
        f"{count} {what} in the scheduler's book" for what in ("reservations", "bound_pods") if (count := book[what])
    ]
    held = [card["card_id"] for node in book["nodes"] for card in node["cards"] if card["used_slots"]]
    return left + [f"card {card_id} is held in the scheduler's book" for card_id in held]


def _files(cluster: LocalCluster, node: str) -> Iterator[str]:
    place = cluster.node_layout(node)
    for what, folder, pattern in (
        ("CDI specification", place.cdi, "*"),
        ("container folder", place.hook / "vgpu" / "containers", "*"),
        ("limits folder", place.hook / "vgpu" / "limits", "*"),
        ("process", place.kubelet / "containers", "*/*/*"),
    ):
        for path in sorted(folder.glob(pattern)):
            yield f"{node} {what} {path.name}"
    for uid in _book(place.agent_state / "handed-out.json"):
        yield f"{node} book of {uid}"


def _book(file: Path) -> list[str]:
    return sorted(json.loads(file.read_bytes())["pods"]) if file.exists() else []
