"""What the ledger says that a container is to get, and why it may not have it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from hami_model import allocation_id, allocations, cards, keys, kube, usage
from hami_model.cards import Card, Slice, Slots
from hami_model.device_config import VendorSettings
from hami_model.ids import AllocationId, CardId
from hami_model.usage import CardUsage

from hami_node_agent.core.node_options import MIG

MIRROR_KEY = "kubernetes.io/config.mirror"
"""Annotation of the object that stands for a static pod; its value is the UID by which kubelet knows the pod."""


_SHOWN_MAX: Final = 80
_LISTED_MAX: Final = 3


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """The container will not start, now or later."""

    reason: str
    """One sentence: what to change."""
    holders: tuple[str, ...] = ()
    """UIDs of pods that hold the card, where the reason is that it is taken."""
    unknown_cards: tuple[str, ...] = ()
    """Where the reason is that they are not this node's."""


class Entitlement(msgspec.Struct, frozen=True, kw_only=True):
    """One container's part of its pod's allocation."""

    container: kube.Container
    slices: tuple[Slice, ...]
    """As annotated."""


def listed(ids: Sequence[str]) -> str:
    """For a message: an annotation may name thousands, each as long as it likes."""
    shown = ", ".join(found[:_SHOWN_MAX] for found in ids[:_LISTED_MAX])
    return shown if len(ids) <= _LISTED_MAX else f"{shown} and {len(ids) - _LISTED_MAX} others"


def kubelet_uid(pod: kube.Pod) -> str:
    """The UID by which kubelet knows a pod."""
    return pod.annotations.get(MIRROR_KEY, pod.uid)


def is_mirror(pod: kube.Pod) -> bool:
    """It says that it stands for a static pod, which whoever makes a pod may say."""
    return kubelet_uid(pod) != pod.uid


def by_kubelet_uid(pods: Iterable[kube.Pod]) -> dict[str, kube.Pod]:
    """Pods by the UID that kubelet uses, without impostors: a UID belongs to the pod that has it.

    Of several mirrors of one UID the first by namespace and name counts. Kubelet runs no container of an impostor.
    """
    ordered = sorted(pods, key=lambda pod: (pod.metadata.namespace, pod.metadata.name, pod.uid))
    own = {pod.uid for pod in ordered}
    found: dict[str, kube.Pod] = {}
    for pod in ordered:
        if not is_mirror(pod) or kubelet_uid(pod) not in own:
            found.setdefault(kubelet_uid(pod), pod)
    return found


def identity(pod: kube.Pod) -> AllocationId:
    """The allocation's id, also of a pod that another scheduler placed."""
    written = allocation_id.parse(pod.annotations.get(keys.ALLOCATION_ID, ""))
    return written or allocation_id.adopted(pod.uid, pod.annotations.get(keys.ASSIGNED_TIME, ""))


def has_allocation(pod: kube.Pod, settings: VendorSettings) -> bool:
    return settings.vendor.allocated_key in pod.annotations


def entitlement(
    pod: kube.Pod,
    container_name: str,
    device_count: int,
    *,
    node_name: str,
    settings: VendorSettings,
    known_cards: Mapping[CardId, Card],
) -> Entitlement | Refusal:
    """The slices of a container that holds `device_count` of kubelet's ids, or why it gets none."""
    where = f"container {container_name}"
    names = [container.name for container in pod.all_containers]
    if container_name not in names:
        return Refusal(reason=f"{where}: the pod has no such container")
    if not has_allocation(pod, settings):
        return Refusal(
            reason=f"{where}: the pod carries no allocation: it was not placed by the HAMi scheduler; create it anew "
            "with spec.schedulerName of that scheduler and no spec.nodeName"
        )
    assigned = pod.annotations.get(keys.ASSIGNED_NODE, "")
    if assigned != node_name:
        return Refusal(
            reason=f"{where}: the pod was allocated cards of node {assigned[:_SHOWN_MAX]!r}, not of this one"
        )
    if pod.annotations.get(keys.BIND_PHASE) == keys.BIND_PHASE_FAILED:
        return Refusal(reason=f"{where}: the pod's allocation is marked failed; delete the pod")
    read = allocations.read(pod, settings)
    if read.problem:
        return Refusal(reason=f"{where}: {read.problem}")
    position = names.index(container_name)
    return _checked(pod.all_containers[position], read.slots[position], device_count, node_name, known_cards)


def _checked(
    container: kube.Container,
    slices: tuple[Slice, ...],
    device_count: int,
    node_name: str,
    known_cards: Mapping[CardId, Card],
) -> Entitlement | Refusal:
    where = f"container {container.name}"
    if not slices:
        return Refusal(reason=f"{where}: the pod's allocation gives it no card, though it holds {device_count}")
    if len(slices) != device_count:
        return Refusal(reason=f"{where}: {len(slices)} cards are allocated, but kubelet gave it {device_count}")
    unknown = sorted({piece.card_id for piece in slices if piece.card_id not in known_cards})
    if unknown:
        reason = f"{where}: this node has no card {listed(unknown)} (node {node_name})"
        return Refusal(reason=reason, unknown_cards=tuple(unknown))
    if len({(piece.card_id, piece.placement) for piece in slices}) < len(slices):
        return Refusal(reason=f"{where}: one card is allocated to it twice")
    faults = [_fault(piece, known_cards[piece.card_id].mode) for piece in slices]
    if any(faults):
        return Refusal(reason=f"{where}: {next(filter(None, faults))}")
    return Entitlement(container=container, slices=slices)


def _fault(piece: Slice, mode: str) -> str:
    if (piece.placement is not None) is not (mode == MIG):
        has = "no" if piece.placement is None else "a"
        return (
            f"card {piece.card_id} is in mode {mode!r}, and its allocation has {has} MIG reservation; delete the pod, "
            "so that it is placed anew"
        )
    if piece.memory_mib == 0 and piece.placement is None:
        return (
            f"0 MiB of card {piece.card_id} are allocated to it, which would reserve nothing and limit nothing; delete "
            "the pod, so that it is placed anew"
        )
    return ""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What one pod uses of each card, and since when it may."""

    uid: str
    usage: dict[CardId, CardUsage]
    """Once its one-shot init containers have ended, without them."""
    handed_out: bool
    """It runs, or ran, with its slices: nobody bound earlier can take them back."""
    bound_at: int
    """Unix seconds."""
    with_init: dict[CardId, CardUsage] | None = None
    """While one-shot init containers that had ended run again; None for a pod that has not come so far."""

    @property
    def precedence(self) -> tuple[bool, int, str]:
        return (not self.handed_out, self.bound_at, self.uid)


def claim(
    pod: kube.Pod,
    settings: VendorSettings,
    handed_out: Mapping[int, tuple[Slice, ...]] | None,
    *,
    init_was_over: bool = False,
) -> Claim:
    """A pod's claim.

    `handed_out`: the slices it was given by position of the container, None if none was. `init_was_over`: its one-shot
    init containers had ended once, in whatever sandbox.
    """
    slots: Slots = allocations.read(pod, settings).slots
    if handed_out:
        slots = tuple(handed_out.get(position, slot) for position, slot in enumerate(slots))
    init_over = init_was_over or pod.one_shot_init_done
    shapes = cards.shapes(pod)
    return Claim(
        uid=kubelet_uid(pod),
        usage=usage.effective(slots, shapes, init_done=init_over),
        with_init=usage.effective(slots, shapes) if init_over else None,
        handed_out=handed_out is not None,
        bound_at=_seconds(pod.annotations.get(keys.BIND_TIME) or pod.annotations.get(keys.ASSIGNED_TIME) or ""),
    )


def overcommitted(own: Claim, others: Iterable[Claim], known_cards: Mapping[CardId, Card]) -> Refusal | None:
    """Whether a card cannot carry the pod beside those that come before it: the later bind loses."""
    before = [other for other in others if other.uid != own.uid and other.precedence < own.precedence]
    for card_id, wanted in own.usage.items():
        card = known_cards.get(card_id)
        if card is None:
            continue
        holders = [other for other in before if card_id in other.usage]
        total = sum((holder.usage[card_id] for holder in holders), start=wanted)
        if lacking := shortage(card, total):
            return Refusal(
                reason=f"card {card_id} has {lacking} would be in use together with the pods bound before this one; "
                "delete the pod, so that it is placed anew",
                holders=tuple(holder.uid for holder in holders),
            )
    return None


def shortage(card: Card, total: CardUsage) -> str:
    """`<there> <of what>, but <asked>` where a card cannot carry so much, else empty."""
    for what, asked, there in (
        ("MiB of memory", total.memory_mib, card.memory_mib),
        ("percent of cores", total.cores_percent, card.cores_percent),
        ("slots", total.slots, card.slots),
    ):
        # Each MIG instance's percentage is rounded up: seven of a seventh are 105.
        if asked > there and not (what == "percent of cores" and card.mode == MIG):
            return f"{there} {what}, but {asked}"
    return ""


def _seconds(text: str) -> int:
    return int(text) if text.isdecimal() and text.isascii() and len(text) <= 12 else 0
