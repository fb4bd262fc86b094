"""What a Binding carries, and how long it may take.

The Binding is the ledger's write: node, slices, ids and times become true in the pod together, or not at all.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from hami_model import allocations, cards, keys, kube
from hami_model.device_config import DeviceConfig
from hami_model.ids import NodeName

from hami_scheduler.core.ledger import Ledger
from hami_scheduler.core.records import Reservation

LEAST_BIND_SECONDS: Final = 0.2
"""A Binding with less time than this is not begun: it would most likely end without an answer."""


def binding_map(reservation: Reservation, config: DeviceConfig, now: datetime) -> allocations.AssignmentMap:
    """Annotations and labels of the Binding: what `annotate_at=filter` writes earlier, and that the bind has begun."""
    assigned = allocations.assignment(
        NodeName(reservation.node),
        cards.by_vendor(reservation.slots),
        config,
        allocation_id=reservation.allocation_id,
        now_seconds=int(reservation.reserved_at.timestamp()),
        soft_split_modes=reservation.soft_split_modes,
    )
    begun = {keys.BIND_TIME: str(int(now.timestamp())), keys.BIND_PHASE: keys.BIND_PHASE_ALLOCATING}
    emptied = dict.fromkeys(reservation.stale_keys, "")
    return allocations.AssignmentMap(annotations={**emptied, **assigned.annotations, **begun}, labels=assigned.labels)


def bind_timeout_seconds(*, lease_seconds: float, call_seconds: float, limit_seconds: float) -> float | None:
    """Time for the Binding: it ends before the lease can pass on and before kube-scheduler gives the call up.

    None when there is too little left to begin.
    """
    left = min(lease_seconds, call_seconds, limit_seconds)
    return left if left >= LEAST_BIND_SECONDS else None


def needs_lock(ledger: Ledger, reservation: Reservation) -> bool:
    """Whether the node learns whose slices they are by its lock: true where any family of the pod's cards says so."""
    vendors = {held.vendor for slot in reservation.slots for held in slot}
    return any(ledger.view(reservation.node, vendor).handoff == "lock" for vendor in vendors)


def is_bound_by(pod: kube.Pod, reservation: Reservation) -> bool:
    """Whether the pod, as read from the server, is what our Binding of this reservation makes of it."""
    return (
        pod.assigned_node == reservation.node and pod.annotations.get(keys.ALLOCATION_ID) == reservation.allocation_id
    )
