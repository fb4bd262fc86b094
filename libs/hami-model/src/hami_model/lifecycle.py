"""The one life cycle of an allocation: phases, legal steps, ranks, and why a reservation expires.

    (no allocation) ──▶ reserved ──bind──▶ allocating ──first container starts──▶ allocated
           │               │                 ▲   │  │                               │  │
           └─ bound by another scheduler ────┘   │  └───────────▶ failed ◀──────────┘  │
                           │                     │                  │                  │
                           ▼                     └──────────────────┴──▶ released ◀────┘
                        expired

`expired` and `released` are terminal. Rank grows along every edge, so a reader that keeps the highest rank it has
seen is right whatever the order in which events reach it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from hami_model.errors import HamiError


class Phase(StrEnum):
    """A phase that an allocation reaches and that is announced."""

    RESERVED = "reserved"
    """Charged in the scheduler's book; nothing is written to the pod yet."""
    ALLOCATING = "allocating"
    """Bound: the pod carries node and slices."""
    ALLOCATED = "allocated"
    """The first container was handed its slice."""
    FAILED = "failed"
    """The hand-over was refused for good; the cards stay charged until the pod is gone."""
    RELEASED = "released"
    """The pod is gone or ended; its cards are free."""
    EXPIRED = "expired"
    """The reservation ended without a bind."""


class ExpiryCause(StrEnum):
    """Why a reservation expired."""

    SUPERSEDED = "superseded"
    """A newer reservation of the pod, or the book of a new leader, took its place."""
    BIND_FAILED = "bind-failed"
    TIMEOUT = "timeout"
    POD_GONE = "pod-gone"


EDGES: Final[dict[Phase | None, frozenset[Phase]]] = {
    None: frozenset({Phase.RESERVED, Phase.ALLOCATING}),
    Phase.RESERVED: frozenset({Phase.ALLOCATING, Phase.EXPIRED}),
    Phase.ALLOCATING: frozenset({Phase.ALLOCATED, Phase.FAILED, Phase.RELEASED}),
    Phase.ALLOCATED: frozenset({Phase.FAILED, Phase.RELEASED}),
    Phase.FAILED: frozenset({Phase.RELEASED}),
    Phase.RELEASED: frozenset(),
    Phase.EXPIRED: frozenset(),
}
"""Phases that may follow a phase. From None (nothing yet) `allocating` starts what another scheduler bound."""

_RANKS: Final[dict[Phase, int]] = {
    Phase.RESERVED: 1,
    Phase.ALLOCATING: 2,
    Phase.ALLOCATED: 3,
    Phase.FAILED: 4,
    Phase.RELEASED: 5,
    Phase.EXPIRED: 6,
}


class IllegalStepError(HamiError):
    """The life cycle has no such step. `current` is None where there was no allocation yet."""

    def __init__(self, current: Phase | None, to: Phase) -> None:
        allowed = ", ".join(sorted(EDGES[current])) or "nothing, it is terminal"
        super().__init__(f"an allocation cannot go from {current or 'nothing'} to {to}; it may go to: {allowed}")
        self.current = current
        self.to = to


def rank(phase: Phase) -> int:
    """Position in the life of an allocation, from 1; the `sequence` of its event."""
    return _RANKS[phase]


def step(current: Phase | None, to: Phase) -> Phase:
    """The phase after the step. Raises IllegalStepError."""
    if to not in EDGES[current]:
        raise IllegalStepError(current, to)
    return to


def is_terminal(phase: Phase) -> bool:
    return not EDGES[phase]


def is_news(known: Phase | None, seen: Phase) -> bool:
    """For readers of events: whether `seen` goes beyond what is known, steps in between missed or not."""
    return known is None or rank(seen) > rank(known)
