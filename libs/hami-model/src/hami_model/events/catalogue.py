"""The list of all events; codec, schemas and documents derive from it."""

from __future__ import annotations

from typing import Final

from hami_model.events.admission import AdmissionAdmitted, AdmissionRejected
from hami_model.events.allocation import (
    AllocationAllocated,
    AllocationAllocating,
    AllocationExpired,
    AllocationFailed,
    AllocationReleased,
    AllocationReserved,
)
from hami_model.events.envelope import Event
from hami_model.events.health import CardHealthChanged
from hami_model.events.inventory import InventoryReported
from hami_model.events.placement import PlacementPlaced, PlacementUnschedulable
from hami_model.events.usage import OutOfBandUser, SliceNotEnforced, UsageNodeSampled, UsageSampled

ALL_EVENTS: Final[tuple[type[Event], ...]] = (
    InventoryReported,
    CardHealthChanged,
    AdmissionAdmitted,
    AdmissionRejected,
    PlacementPlaced,
    PlacementUnschedulable,
    AllocationReserved,
    AllocationAllocating,
    AllocationAllocated,
    AllocationFailed,
    AllocationReleased,
    AllocationExpired,
    UsageSampled,
    UsageNodeSampled,
    SliceNotEnforced,
    OutOfBandUser,
)


def type_of(event: type[Event]) -> str:
    """The type on the wire, such as `io.hami.allocation.reserved.v1`."""
    return str(event.__struct_config__.tag)
