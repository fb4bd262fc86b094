"""What a node's score gains where a container's cards lie in one group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from .float32 import to_float32
from .values import Card, Family, Share


def group_gain(cards: Sequence[Card], containers: Sequence[Sequence[Share]], families: Mapping[str, Family]) -> float:
    """For each container and family: the family's weight times the share of its cards that lie in one group.

    Cards of a group that cannot be read count for neither side. A family of which the pod gets a card that names no
    group adds nothing.
    """
    groups = {card.id: card.group for card in cards}
    gain = 0.0
    for vendor in dict.fromkeys(share.vendor for shares in containers for share in shares):
        weight = to_float32(families[vendor].group_weight)
        of_vendor = [[groups[s.card_id] for s in shares if s.vendor == vendor] for shares in containers]
        if weight == 0 or any(None in found for found in of_vendor):
            continue
        for found in of_vendor:
            known = Counter(group for group in found if group)
            if known:
                gain = to_float32(gain + _part(weight, max(known.values()), known.total()))
    return gain


def _part(weight: float, largest: int, known: int) -> float:
    """weight * largest / known, each step in 32 bits."""
    return to_float32(to_float32(weight * largest) / known)
