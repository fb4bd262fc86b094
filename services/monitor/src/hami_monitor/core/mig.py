"""Which MIG instances a pod's containers hold, by the annotation that the hand-over writes."""

from __future__ import annotations

from collections.abc import Iterator

from hami_model import mig_allocations
from hami_model.errors import MalformedError
from hami_model.mig_allocations import MigAllocation
from hami_model.vendors import vendor

from hami_monitor.core.host import HostCard
from hami_monitor.core.pods import MonitoredContainer, MonitoredPod


def allocations_by_container(pod: MonitoredPod) -> Iterator[tuple[MonitoredContainer, MigAllocation]]:
    """Those whose instance has been made. Of a malformed annotation, which the node-agent tells of, none."""
    key = vendor("NVIDIA").mig_allocations_key
    try:
        found = mig_allocations.decode(pod.annotations.get(key, ""))
    except MalformedError:
        return
    for allocation in found:
        if allocation.instance is not None and allocation.slot < len(pod.containers):
            yield pod.containers[allocation.slot], allocation


def instance_memory_used(pod: MonitoredPod, container: MonitoredContainer, card: HostCard) -> int | None:
    """Bytes in use on the container's instances of the card; None where the driver does not tell of one of them."""
    used = {instance.id: instance.memory_used_bytes for instance in card.instances}
    held = [
        used.get(allocation.instance.uuid)
        for holder, allocation in allocations_by_container(pod)
        if holder is container and allocation.card_id == card.id and allocation.instance is not None
    ]
    known = [found for found in held if found is not None]
    return sum(known) if held and len(known) == len(held) else None
