"""The simulated driver's description of a node's cards. Pure."""

from __future__ import annotations

import uuid
from typing import Any

from hami_sim.cluster.profile import NodePlan

_CARD_NAMES = uuid.UUID("6f0c9f0a-6a3e-4d0c-9f5b-1c2d3e4f5a6b")
"""Namespace of the ids, so that a node of a name has the same cards in every cluster."""
_FIRST_BUS = 0x07
_BUS_STEP = 4
_NUMA_NODES = 2


def card_ids(plan: NodePlan) -> tuple[str, ...]:
    """Ids of the node's cards by index."""
    count = sum(cards.count for cards in plan.group.cards)
    return tuple(f"GPU-{uuid.uuid5(_CARD_NAMES, f'{plan.name}/{index}')}" for index in range(count))


def description(plan: NodePlan) -> dict[str, Any]:
    """The document that the driver reads; the first half of the cards lies on NUMA node 0, the rest on 1."""
    ids = card_ids(plan)
    per_numa_node = -(-len(ids) // _NUMA_NODES)
    kinds = [cards for cards in plan.group.cards for _ in range(cards.count)]
    return {
        "driver_version": plan.group.driver_version,
        "cuda_version": plan.group.cuda_version,
        "links": list(plan.group.links),
        "cards": [
            {
                "uuid": card_id,
                "name": kind.model,
                "memory_mib": kind.memory_mib,
                "sm_count": kind.sm_count,
                "compute_capability": kind.compute_capability,
                "mig_capable": kind.mig_capable,
                "numa_node": index // per_numa_node,
                "pci_bus_id": f"00000000:{_FIRST_BUS + _BUS_STEP * index:02X}:00.0",
                **kind.driver,
            }
            for index, (card_id, kind) in enumerate(zip(ids, kinds, strict=True))
        ],
    }
