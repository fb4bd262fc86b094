"""The placement engine: cluster state, fit, score and reasons.

The same state and the same pod give the same answer, in any order of arrival. "Does not fit" is a value
(`Rejection`); `ValueError` means that a value cannot enter the engine and says what to change.
"""

from typing import Literal, TypeAlias

from ._engine import (
    Ask,
    Card,
    CardConstraint,
    CardUsage,
    CardVerdict,
    Ceiling,
    Change,
    Cluster,
    ContainerAsk,
    ContainerSlices,
    Explanation,
    Family,
    MigClaim,
    MigProfile,
    NodeVerdict,
    Placement,
    PodAsk,
    PodBooking,
    QuotaVerdict,
    ReasonInfo,
    Rejection,
    Slice,
    WorkloadShape,
    list_reasons,
    policy_names,
    reasons_text,
    run_command,
)

ContainerKind: TypeAlias = Literal["init", "sidecar", "app"]

__all__ = [
    "Ask",
    "Card",
    "CardConstraint",
    "CardUsage",
    "CardVerdict",
    "Ceiling",
    "Change",
    "Cluster",
    "ContainerAsk",
    "ContainerKind",
    "ContainerSlices",
    "Explanation",
    "Family",
    "MigClaim",
    "MigProfile",
    "NodeVerdict",
    "Placement",
    "PodAsk",
    "PodBooking",
    "QuotaVerdict",
    "ReasonInfo",
    "Rejection",
    "Slice",
    "WorkloadShape",
    "list_reasons",
    "policy_names",
    "reasons_text",
    "run_command",
]
