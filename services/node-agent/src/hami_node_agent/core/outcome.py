"""What is told of a hand-over: the annotations that HAMi's programs expect, and our events."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec
from hami_model import allocations, cards, events, keys, kube
from hami_model.cards import Slots
from hami_model.device_config import VendorSettings
from hami_model.events.allocation import Verification

from hami_node_agent.core.backends import HeldBy
from hami_node_agent.core.entitlement import identity


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Who speaks."""

    source: str
    node: str
    prefix: str


def success_annotations(pod: kube.Pod, settings: VendorSettings) -> dict[str, str]:
    """All containers of the pod are served, or will be without another question: nothing is left to allocate."""
    written = {keys.BIND_PHASE: keys.BIND_PHASE_SUCCESS}
    left = pod.annotations.get(settings.vendor.to_allocate_key)
    if left is not None and left.strip(";"):
        empty: Slots = ((),) * len(pod.all_containers)
        written[settings.vendor.to_allocate_key] = allocations.encode(empty)
    return written


def failure_annotations() -> dict[str, str]:
    return {keys.BIND_PHASE: keys.BIND_PHASE_FAILED}


def pod_ref(pod: kube.Pod) -> events.PodRef:
    return events.PodRef(namespace=pod.metadata.namespace, name=pod.metadata.name, uid=pod.uid)


def allocated(
    pod: kube.Pod,
    settings: VendorSettings,
    origin: Origin,
    now: datetime,
    *,
    verification: Verification,
    held_by: HeldBy,
) -> events.AllocationAllocated:
    return events.AllocationAllocated(
        source=origin.source,
        time=now,
        allocation_id=identity(pod),
        pod=pod_ref(pod),
        node=origin.node,
        containers=_shares(pod, settings, held_by),
        enforced_by=next(iter(held_by.values())) if len(set(held_by.values())) == 1 else "",
        verification=verification,
    )


def failed(
    pod: kube.Pod, settings: VendorSettings, origin: Origin, now: datetime, *, reason: str, holders: Iterable[kube.Pod]
) -> events.AllocationFailed:
    return events.AllocationFailed(
        source=origin.source,
        time=now,
        allocation_id=identity(pod),
        pod=pod_ref(pod),
        node=origin.node,
        containers=_shares(pod, settings),
        reason=reason,
        used_by=tuple(pod_ref(holder) for holder in holders),
    )


def _shares(
    pod: kube.Pod, settings: VendorSettings, held_by: HeldBy | None = None
) -> tuple[events.ContainerShare, ...]:
    return events.container_shares(cards.shapes(pod), allocations.read(pod, settings).slots, held_by)
