"""What a pod holds of its cards over its life.

One-shot init containers run one after the other, each beside the sidecars declared before it; then the app
containers run beside all sidecars. The pod holds the most of what is needed at any time, of memory, cores and slots
apart. Several shares that one container has of one card add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .values import Share

Shares = Iterable[tuple[str, Iterable[Share]]]
"""Each container's kind with its shares, containers in their order."""


class Amount(NamedTuple):
    memory_mib: int = 0
    cores_percent: int = 0
    slots: int = 0


def plus(left: Amount, right: Amount) -> Amount:
    return Amount(left[0] + right[0], left[1] + right[1], left[2] + right[2])


def total(amounts: Iterable[Amount]) -> Amount:
    memory = cores = slots = 0
    for amount in amounts:
        memory += amount[0]
        cores += amount[1]
        slots += amount[2]
    return Amount(memory, cores, slots)


def effective_usage(containers: Shares, *, init_done: bool) -> dict[tuple[str, str], Amount]:
    """By card and vendor. Cards that only finished init containers used are left out."""
    sidecars: dict[tuple[str, str], Amount] = {}
    apps: dict[tuple[str, str], Amount] = {}
    moments: dict[tuple[str, str], list[Amount]] = {}
    for kind, shares in containers:
        own: dict[tuple[str, str], Amount] = {}
        for share in shares:
            key = (share.card_id, share.vendor)
            own[key] = plus(own.get(key, Amount()), Amount(share.memory_mib, share.cores_percent, 1))
        for key, amount in own.items():
            beside = plus(sidecars.get(key, Amount()), amount)
            if kind == "sidecar":
                sidecars[key] = beside
            elif kind == "app":
                apps[key] = plus(apps.get(key, Amount()), amount)
            elif not init_done:
                moments.setdefault(key, []).append(beside)
    for key in {*sidecars, *apps}:
        moments.setdefault(key, []).append(plus(sidecars.get(key, Amount()), apps.get(key, Amount())))
    return {
        key: Amount(max(a[0] for a in found), max(a[1] for a in found), max(a[2] for a in found))
        for key, found in moments.items()
    }


def running_beside(containers: Sequence[tuple[str, Sequence[Share]]]) -> dict[str, Amount]:
    """By card, what the last container finds taken by its own pod: what runs beside it, and what it has already."""
    last_kind, own = containers[-1]
    running = [own]
    for kind, shares in containers[:-1]:
        if kind == "sidecar" or (kind == "app" and last_kind == "app"):
            running.append(shares)
    found: dict[str, Amount] = {}
    for shares in running:
        for share in shares:
            amount = Amount(share.memory_mib, share.cores_percent, 1)
            found[share.card_id] = plus(found.get(share.card_id, Amount()), amount)
    return found
