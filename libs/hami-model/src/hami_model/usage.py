"""What a pod's slices cost a card over the pod's life.

effective = max(peak of each one-shot init container + the sidecars declared before it, all sidecars + app containers),
for memory, cores and slots each on its own. Once the one-shot init containers have ended only the second part holds.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hami_model.cards import ContainerShape, Slice, Slots
from hami_model.ids import CardId


class CardUsage(msgspec.Struct, frozen=True, kw_only=True):
    memory_mib: int = 0
    cores_percent: int = 0
    slots: int = 0

    def __add__(self, other: CardUsage) -> CardUsage:
        return CardUsage(
            memory_mib=self.memory_mib + other.memory_mib,
            cores_percent=self.cores_percent + other.cores_percent,
            slots=self.slots + other.slots,
        )

    def peak(self, other: CardUsage) -> CardUsage:
        return CardUsage(
            memory_mib=max(self.memory_mib, other.memory_mib),
            cores_percent=max(self.cores_percent, other.cores_percent),
            slots=max(self.slots, other.slots),
        )


def effective(slots: Slots, shapes: Sequence[ContainerShape], *, init_done: bool = False) -> dict[CardId, CardUsage]:
    """Usage by card; `slots[i]` belongs to `shapes[i]`. `init_done`: every one-shot init container has ended."""
    running: dict[CardId, CardUsage] = {}
    peaks: dict[CardId, CardUsage] = {}
    for slot, shape in zip(slots, shapes, strict=True):
        own = _summed(slot)
        if shape.kind != "init":
            for card_id, usage in own.items():
                running[card_id] = running.get(card_id, CardUsage()) + usage
        elif not init_done:
            for card_id, usage in own.items():
                beside = running.get(card_id, CardUsage())
                peaks[card_id] = peaks.get(card_id, CardUsage()).peak(beside + usage)
    return {
        card_id: running.get(card_id, CardUsage()).peak(peaks.get(card_id, CardUsage()))
        for card_id in (*running, *(card_id for card_id in peaks if card_id not in running))
    }


def _summed(slices: Sequence[Slice]) -> dict[CardId, CardUsage]:
    usage: dict[CardId, CardUsage] = {}
    for piece in slices:
        own = CardUsage(memory_mib=piece.memory_mib, cores_percent=piece.cores_percent, slots=1)
        usage[piece.card_id] = usage.get(piece.card_id, CardUsage()) + own
    return usage
