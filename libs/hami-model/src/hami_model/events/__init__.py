"""What the services tell each other and everyone else: one module a family, one struct an event.

`envelope` holds what all events have, `subjects` where they go, `codec` their bytes, `streams` what keeps them.
How to add one is in the README beside this file.
"""

from hami_model.events.admission import AdmissionAdmitted, AdmissionEvent, AdmissionRejected, PatchChange
from hami_model.events.allocation import (
    AllocationAllocated,
    AllocationAllocating,
    AllocationEvent,
    AllocationExpired,
    AllocationFailed,
    AllocationReleased,
    AllocationReserved,
)
from hami_model.events.catalogue import ALL_EVENTS
from hami_model.events.codec import MalformedEvent, UnknownEvent, decode, encode
from hami_model.events.envelope import Event, headers, source
from hami_model.events.health import CardHealthChanged
from hami_model.events.inventory import InventoryReported
from hami_model.events.parts import CardShare, ContainerShare, PodRef, container_shares
from hami_model.events.placement import NodeReasons, NodeScore, PlacementPlaced, PlacementUnschedulable, best_scores
from hami_model.events.usage import (
    CardMemory,
    CardProcess,
    CardTelemetry,
    CardUsage,
    ContainerUsage,
    OutOfBandUser,
    SliceNotEnforced,
    UsageNodeSampled,
    UsageSampled,
)

__all__ = [
    "ALL_EVENTS",
    "AdmissionAdmitted",
    "AdmissionEvent",
    "AdmissionRejected",
    "AllocationAllocated",
    "AllocationAllocating",
    "AllocationEvent",
    "AllocationExpired",
    "AllocationFailed",
    "AllocationReleased",
    "AllocationReserved",
    "CardHealthChanged",
    "CardMemory",
    "CardProcess",
    "CardShare",
    "CardTelemetry",
    "CardUsage",
    "ContainerShare",
    "ContainerUsage",
    "Event",
    "InventoryReported",
    "MalformedEvent",
    "NodeReasons",
    "NodeScore",
    "OutOfBandUser",
    "PatchChange",
    "PlacementPlaced",
    "PlacementUnschedulable",
    "PodRef",
    "SliceNotEnforced",
    "UnknownEvent",
    "UsageNodeSampled",
    "UsageSampled",
    "best_scores",
    "container_shares",
    "decode",
    "encode",
    "headers",
    "source",
]
