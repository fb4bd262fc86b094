"""Which of the cards that passed are taken, where the policy is `topology-aware`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from .values import PairScores, Share

MISSING_SCORES = "PairScoresMissing"


def choose(collected: Sequence[Share], count: int, scores: PairScores) -> tuple[list[Share], set[str]]:
    """Of more cards than `count`, the preferred one first; with what is to be said about the choice.

    Where enough different cards passed, none gives two shares. One card: the one worst connected with the others.
    Several: the set whose pairs score most, each pair read from the card that comes first. Of equals the first. A pair
    without a score counts 0.
    """

    def score(card: Share, peer: Share) -> int | None:
        return scores.get(card.card_id, {}).get(peer.card_id)

    firsts = [
        share for place, share in enumerate(collected) if share.card_id not in {c.card_id for c in collected[:place]}
    ]
    if count > 1 and len(firsts) >= count:
        collected = firsts
    if len(collected) == count:
        return list(collected), set()
    pairs = list(combinations(collected, 2))
    if count == 1:
        pairs += [(peer, card) for card, peer in pairs]
    notes = (
        {MISSING_SCORES}
        if any(score(*pair) is None and pair[0].card_id != pair[1].card_id for pair in pairs)
        else set()
    )
    if count == 1:
        connections = [sum(score(card, peer) or 0 for peer in collected if peer is not card) for card in collected]
        return [collected[connections.index(min(connections))]], notes
    sets = list(combinations(collected, count))
    totals = [sum(score(*pair) or 0 for pair in combinations(chosen, 2)) for chosen in sets]
    return list(sets[totals.index(max(totals))]), notes
