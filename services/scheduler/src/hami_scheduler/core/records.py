"""What the ledger keeps of each pod, and what an observation changed."""

from __future__ import annotations

from datetime import datetime

import msgspec
from hami_model import cards, kube
from hami_model.ids import AllocationId
from hami_model.lifecycle import ExpiryCause

from hami_scheduler.core.holdings import Holding


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """A slice promised to a pod that is not bound yet."""

    uid: str
    namespace: str
    name: str
    node: str
    allocation_id: AllocationId
    reserved_at: datetime
    slots: cards.Slots
    shapes: tuple[cards.ContainerShape, ...]
    claims: tuple[cards.MigClaim, ...] = ()
    """Of an adopted one: MIG instances beyond the slices."""
    stale_keys: tuple[str, ...] = ()
    """MIG reservations that another writer left on the pod: emptied by the Binding where it writes none itself."""
    pod_version: int
    """resourceVersion of the pod that was filtered; 0 when unknown."""
    scheduled_condition: kube.PodCondition | None = None
    """PodScheduled as it stood then: another content later means that kube-scheduler gave the pod up."""
    soft_split_modes: dict[str, str] = {}
    """By vendor: the mode in which the pod wants its cards shared by software."""
    adopted: bool = False
    """Written to the pod by HAMi's scheduler, not by us."""


class BoundPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod on its node, as last booked."""

    uid: str
    namespace: str
    name: str
    node: str
    fingerprint: tuple[object, ...]
    """What the booking was made from; equal means nothing to do."""
    allocation_id: AllocationId | None = None
    problem: str | None = None
    """Why an annotation of the pod cannot be read (only kept here; `new_problem` of a change tells it once)."""
    held: Holding | None = None
    """What our own Binding gave it, while no informer told of it: the pod as last seen says less."""
    holds_cards: bool = True


class PodChange(msgspec.Struct, frozen=True, kw_only=True):
    """What an observation of a pod changed in the book."""

    bound: BoundPod | None = None
    """Newly booked or booked anew."""
    first_seen: bool = False
    """The pod was not known as bound before: somebody else bound it, or our Binding's answer is still on its way."""
    released: BoundPod | None = None
    """A bound pod that holds nothing any more."""
    expired: tuple[Reservation, ExpiryCause] | None = None
    init_finished: bool = False
    """The one-shot init containers ended: part of the booking came free without a change kube-scheduler watches."""
    new_problem: str | None = None
    """Why an annotation cannot be read, when that is new."""
    stale_annotations: bool = False
    """The pod is unbound, carries an allocation and has no live reservation: the annotations must be removed."""


class NodeChange(msgspec.Struct, frozen=True, kw_only=True):
    """What an observation of a node changed."""

    problems: dict[str, str] = {}
    """By vendor: why its register annotation cannot be read (only when that is new)."""
    capacity_changed: bool = False
    stamps: dict[str, str] = {}
    """Handshake annotations the leader should write."""
