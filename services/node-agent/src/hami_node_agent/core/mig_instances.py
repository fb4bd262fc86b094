"""MIG instances of containers: which exist, whose they are, and what is to be done for a reservation.

An instance is ours when the book has its UUID and place, or says that it was about to be made just there. No other is
ever taken or destroyed. A UUID alone tells nothing: after a restart of the driver, or once an instance is gone, the
driver may give it again.

    reserved ──card is free there──▶ making (saved) ──made──▶ has its UUID (saved) ──pod is over──▶ destroyed

Containers of one pod may be given one place after the other, an app container that of an init container: where it is
the same place and kind they share the instance, else the earlier container's goes first.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hami_model import kube, mig_allocations
from hami_model.cards import MigPlacement
from hami_model.device_config import VendorSettings
from hami_model.mig_allocations import MigInstance

from hami_node_agent.core.handed_out import HandedPod, HandedSlice


class LiveInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance that a card has. `made` is None where it has no compute instance."""

    gpu_instance: int
    kind: int
    """NVML_GPU_INSTANCE_PROFILE_*."""
    placement: MigPlacement
    made: MigInstance | None = None


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A slice in the book."""

    uid: str
    container: str
    number: int
    """Of the slice among the container's."""


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """Instances that stand where one is wanted."""

    by: tuple[LiveInstance, ...]


def overlap(one: MigPlacement, other: MigPlacement) -> bool:
    return one.start < other.start + other.size and other.start < one.start + one.size


def collide(one: HandedSlice, other: HandedSlice) -> bool:
    """Whether instances of both cannot stand on a card at once."""
    return one.placement is not None and other.placement is not None and overlap(one.placement, other.placement)


def standing(wanted: HandedSlice, kind: int, live: Sequence[LiveInstance]) -> LiveInstance | Taken | None:
    """The slice's own instance, what stands in its place, or None where one is to be made."""
    if wanted.placement is None:
        return None
    own = (found for found in live if found.made == wanted.instance and found.placement == wanted.placement)
    if wanted.instance is not None and (found := next(own, None)) is not None:
        return found
    there = tuple(found for found in live if overlap(found.placement, wanted.placement))
    if not there:
        return None
    exact = [found for found in there if found.placement == wanted.placement and found.kind == kind]
    return exact[0] if wanted.making and len(there) == len(exact) == 1 else Taken(by=there)


def with_instances(pod: kube.Pod, settings: VendorSettings, handed: HandedPod) -> dict[str, str]:
    """The annotation with the instances that were made; empty where it shows them already or there are none."""
    key = settings.vendor.mig_allocations_key
    reading = mig_allocations.read(pod.annotations.get(key, "")) if key else mig_allocations.MigReading()
    made = {
        (container.position, piece.card_id, piece.placement): piece.instance
        for container in handed.containers.values()
        for piece in container.slices
        if piece.instance is not None
    }
    shown = tuple(
        msgspec.structs.replace(found, instance=made.get((found.slot, found.card_id, found.placement), found.instance))
        for found in reading.allocations
    )
    text = mig_allocations.encode(shown)
    return {key: text} if made and text is not None and shown != reading.allocations else {}
