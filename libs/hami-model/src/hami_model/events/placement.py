"""placement: where a pod may run, or why nowhere.

Id: of `placed` `<allocation_id>.placed`; of `unschedulable` a function of the pod's UID and the time of the decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from hami_model.events import subjects
from hami_model.events.envelope import Event, identity, rfc3339
from hami_model.events.parts import ContainerShare, PodRef

NODES_NAMED_MAX: Final = 10
"""A placement event names so many nodes at most and counts the rest."""


class NodeScore(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    score: float


class NodeReasons(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    reasons: tuple[str, ...]


class PlacementPlaced(Event, frozen=True, kw_only=True, tag="io.hami.placement.placed.v1"):
    """A node and cards were chosen."""

    pod: PodRef
    allocation_id: str
    """The reservation that came of it."""
    node: str
    containers: tuple[ContainerShare, ...] = ()
    scores: tuple[NodeScore, ...] = ()
    """The best ten: see `best_scores`."""
    nodes_considered: int
    nodes_fitting: int
    reasons: dict[str, int]
    """Nodes that do not fit, counted by reason code."""
    notes: dict[str, str] = msgspec.field(default_factory=dict)
    """What is to be said about the choice of the cards, a sentence by code: a missing pair score, for example."""

    @property
    def about(self) -> str:
        return self.pod.path

    def subject(self, prefix: str = subjects.DEFAULT_PREFIX) -> str:
        return subjects.placement(self.pod.namespace, self.pod.uid, "placed", prefix=prefix)

    def _identity(self) -> str:
        return f"{self.allocation_id}.placed"


class PlacementUnschedulable(Event, frozen=True, kw_only=True, tag="io.hami.placement.unschedulable.v1"):
    """No node fits now."""

    pod: PodRef
    nodes_considered: int
    nodes_never_fitting: int = 0
    """Of these, nodes that could not take the pod even if they were empty."""
    reasons: dict[str, int]
    """Nodes counted by reason code; a node counts once under each of its reasons."""
    reason: str
    """The tally as one sentence."""
    examples: tuple[NodeReasons, ...] = ()
    """At most ten nodes with their reasons."""
    advice: str = ""
    """What is short, and the smallest change that would place the pod, as one sentence; empty: not looked for."""

    @property
    def about(self) -> str:
        return self.pod.path

    def subject(self, prefix: str = subjects.DEFAULT_PREFIX) -> str:
        return subjects.placement(self.pod.namespace, self.pod.uid, "unschedulable", prefix=prefix)

    def _identity(self) -> str:
        return identity("unschedulable", self.pod.uid, rfc3339(self.time))


def best_scores(scores: Mapping[str, float]) -> tuple[NodeScore, ...]:
    """The ten best of the scores by node; of equal ones the first by name."""
    best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:NODES_NAMED_MAX]
    return tuple(NodeScore(node=node, score=score) for node, score in best)
