"""What a pod holds of its cards over its life.

One-shot init containers run one after the other, each beside the sidecars declared before it; then the app
containers run beside all sidecars. The pod holds the most of what is needed at any time, of memory, cores and slots
apart. Several shares that one one-shot init container has of one card count as the largest of them.
"""

from __future__ import annotations

from collections.abc import Iterable
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
        for share in shares:
            key = (share.card_id, share.vendor)
            amount = Amount(share.memory_mib, share.cores_percent, 1)
            if kind == "init":
                if not init_done:
                    moments.setdefault(key, []).append(plus(sidecars.get(key, Amount()), amount))
            elif kind == "sidecar":
                sidecars[key] = plus(sidecars.get(key, Amount()), amount)
            else:
                apps[key] = plus(apps.get(key, Amount()), amount)
    for key in {*sidecars, *apps}:
        moments.setdefault(key, []).append(plus(sidecars.get(key, Amount()), apps.get(key, Amount())))
    return {
        key: Amount(max(a[0] for a in found), max(a[1] for a in found), max(a[2] for a in found))
        for key, found in moments.items()
    }


def seen_by(kind: str, containers: Shares) -> dict[str, Amount]:
    """By card, what a container of this kind finds running of its own pod's earlier containers."""
    running: dict[str, Amount] = {}
    for other, shares in containers:
        if other == "sidecar" or (other == "app" and kind == "app"):
            for share in shares:
                amount = Amount(share.memory_mib, share.cores_percent, 1)
                running[share.card_id] = plus(running.get(share.card_id, Amount()), amount)
    return running
