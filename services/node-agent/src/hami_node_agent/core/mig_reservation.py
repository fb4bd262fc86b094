"""Which MIG instances were reserved for a container, where an annotation names them apart from its slices."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from hami_model import kube, mig_allocations
from hami_model.cards import Card, Slice
from hami_model.device_config import VendorSettings
from hami_model.ids import CardId

from hami_node_agent.core.entitlement import Refusal
from hami_node_agent.core.node_options import MIG


def reserved(
    pod: kube.Pod,
    settings: VendorSettings,
    position: int,
    slices: tuple[Slice, ...],
    known_cards: Mapping[CardId, Card],
) -> tuple[Slice, ...] | Refusal:
    """The slices of the container at `position` with their profiles and places; as they are on cards without MIG.

    Only this pod's annotation is read: what is wrong with another's costs this one nothing.
    """
    if not any(piece.card_id in known_cards and known_cards[piece.card_id].mode == MIG for piece in slices):
        return slices
    where = f"pod {pod.key} container {pod.all_containers[position].name}"
    reading = mig_allocations.read(pod.annotations.get(settings.vendor.mig_allocations_key, ""))
    if reading.problem:
        return Refusal(reason=f"{where}: annotation {settings.vendor.mig_allocations_key}: {reading.problem}")
    own = sorted((one for one in reading.allocations if one.slot == position), key=lambda one: one.position)
    if len(own) != len(slices):
        return Refusal(
            reason=f"{where}: {len(slices)} cards are allocated, and {len(own)} MIG instances are reserved; delete the "
            "pod, so that it is placed anew"
        )
    for piece, reservation in zip(slices, own, strict=True):
        if piece.card_id != reservation.card_id:
            return Refusal(
                reason=f"{where}: card {piece.card_id} is allocated, and the MIG instance is reserved on card "
                f"{reservation.card_id}; delete the pod, so that it is placed anew"
            )
    return tuple(
        msgspec.structs.replace(piece, profile=reservation.profile, placement=reservation.placement)
        for piece, reservation in zip(slices, own, strict=True)
    )
