"""Cards in MIG mode: which instances are taken, and which one a share gets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .values import Card, Profile, Share


class Instance(NamedTuple):
    profile: Profile
    start: int
    size: int


Interval = tuple[int, int]
"""Start and size in memory slices."""


def overlap(left: Interval, right: Interval) -> bool:
    return left[0] < right[0] + right[1] and right[0] < left[0] + left[1]


def choose_instance(card: Card, occupied: Sequence[Interval], memory_mib: int) -> Instance | None:
    """The smallest profile with that much memory that has a free place.

    Places are tried by their start: from the end for profiles whose names begin with `1g.` or `3g.`.
    """
    for profile in in_order(card):
        if profile.memory_mib < memory_mib:
            continue
        descending = profile.name.startswith(("1g.", "3g."))
        for start, size in sorted(profile.placements, key=lambda place: -place[0] if descending else place[0]):
            if not any(overlap((start, size), other) for other in occupied):
                return Instance(profile, start, size)
    return None


def whole_memory_mib(card: Card) -> int | None:
    """Memory of the instance that is the whole card; None where the card is only given in parts."""
    if not card.mig_profiles:
        return None
    largest = in_order(card)[-1]
    return largest.memory_mib if largest.cores_percent >= card.cores_percent else None


def in_order(card: Card) -> list[Profile]:
    """The smallest first."""
    return sorted(card.mig_profiles, key=lambda profile: (profile.memory_mib, profile.slice_count))


def intervals(shares: Iterable[Share], card_id: str) -> list[Interval]:
    """Of the instances that shares have of one card."""
    return [share.placement for share in shares if share.card_id == card_id and share.placement is not None]
