"""Who holds slices of a card, for those who must hear of what happens to it."""

from __future__ import annotations

from collections.abc import Iterable

from hami_model import allocations, events, kube
from hami_model.device_config import VendorSettings

from hami_node_agent.core.entitlement import kubelet_uid
from hami_node_agent.core.handed_out import HandedOut


def holders_of(
    card_id: str, pods: Iterable[kube.Pod], settings: VendorSettings, book: HandedOut
) -> tuple[events.PodRef, ...]:
    """Living pods, with those that were handed slices and that the watch has not brought, as just after a start."""
    known = {kubelet_uid(pod): pod for pod in pods}
    allocated = [
        events.PodRef(namespace=pod.metadata.namespace, name=pod.metadata.name, uid=pod.uid)
        for pod in known.values()
        if not pod.is_finished
        and any(piece.card_id == card_id for slot in allocations.read(pod, settings).slots for piece in slot)
    ]
    handed = [
        events.PodRef(namespace=pod.namespace, name=pod.name, uid=uid)
        for uid, pod in book.items()
        if uid not in known
        and any(piece.card_id == card_id for found in pod.containers.values() for piece in found.slices)
    ]
    return (*allocated, *handed)
