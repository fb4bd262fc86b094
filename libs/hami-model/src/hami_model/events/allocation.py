"""allocation: the phases in the life of a pod's slices (`hami_model.lifecycle`).

Id: `<allocation_id>.<phase>`, so every publisher of a phase gives it the same id.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from hami_model.events import subjects
from hami_model.events.envelope import Event
from hami_model.events.parts import ContainerShare, Enforcement, PodRef
from hami_model.lifecycle import ExpiryCause, Phase, rank

Verification = Literal["", "verified", "unverified"]


class AllocationEvent(Event, frozen=True, kw_only=True):
    """What all phases say. `sequence` is filled in at construction."""

    phase: ClassVar[Phase]

    allocation_id: str
    """The pod's `hami.io/allocation-id`; where another scheduler placed it, a UUIDv5 of its UID and vgpu-time."""
    sequence: int = 0
    """Rank of the phase, from 1: of two events of one allocation the greater is the later."""
    pod: PodRef
    node: str
    containers: tuple[ContainerShare, ...] = ()
    """Containers that hold slices."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sequence:
            msgspec.structs.force_setattr(self, "sequence", rank(self.phase))

    @property
    def about(self) -> str:
        return self.pod.path

    def subject(self, prefix: str = subjects.DEFAULT_PREFIX) -> str:
        return subjects.allocation(self.pod.namespace, self.node, self.pod.uid, self.phase, prefix=prefix)

    def _identity(self) -> str:
        return f"{self.allocation_id}.{self.phase}"


class AllocationReserved(AllocationEvent, frozen=True, kw_only=True, tag="io.hami.allocation.reserved.v1"):
    """The scheduler chose node and cards and charged them."""

    phase: ClassVar[Phase] = Phase.RESERVED


class AllocationAllocating(AllocationEvent, frozen=True, kw_only=True, tag="io.hami.allocation.allocating.v1"):
    """The pod is bound and carries its slices."""

    phase: ClassVar[Phase] = Phase.ALLOCATING


class AllocationAllocated(AllocationEvent, frozen=True, kw_only=True, tag="io.hami.allocation.allocated.v1"):
    """The first container was handed its slice."""

    phase: ClassVar[Phase] = Phase.ALLOCATED

    enforced_by: Enforcement = ""
    """The back end that holds all of it; empty where several do: then each card of `containers` says its own."""
    verification: Verification = ""
    """Whether the node-agent could make sure that the slices went to this pod."""


class AllocationFailed(AllocationEvent, frozen=True, kw_only=True, tag="io.hami.allocation.failed.v1"):
    """The hand-over was refused for good."""

    phase: ClassVar[Phase] = Phase.FAILED

    reason: str
    """One sentence that says what to change."""
    used_by: tuple[PodRef, ...] = ()
    """Pods that hold the card, where the reason is that it is taken."""


class AllocationReleased(AllocationEvent, frozen=True, kw_only=True, tag="io.hami.allocation.released.v1"):
    """The pod is gone or ended."""

    phase: ClassVar[Phase] = Phase.RELEASED

    reason: str = ""
    """How the pod ended, such as Succeeded, Failed or deleted."""


class AllocationExpired(AllocationEvent, frozen=True, kw_only=True, tag="io.hami.allocation.expired.v1"):
    """The reservation ended without a bind."""

    phase: ClassVar[Phase] = Phase.EXPIRED

    cause: ExpiryCause
    reason: str = ""
    """More about the cause, such as the error of the bind."""
