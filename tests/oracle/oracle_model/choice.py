"""Which of the cards that passed are taken: by pair scores (policy `topology-aware`), by groups, or whole modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def choose_groups(collected: Sequence[Share], count: int, groups: Mapping[str, str | None]) -> list[Share]:
    """Of more cards than `count`: those of the group with the most cards that passed, then of the next.

    Of equal groups the first by its id. `groups`: of every card that could serve. Where one names none, groups count
    for nothing, nor do they for one card. Cards of a group that cannot be read come last.
    """
    if count == 1 or None in groups.values():
        return list(collected[:count])
    members: dict[str, list[Share]] = {}
    for share in collected:
        members.setdefault(groups[share.card_id] or "", []).append(share)
    unreadable = members.pop("", [])
    largest_first = sorted(members, key=lambda group: (-len(members[group]), _number(group), group))
    return [*(share for group in largest_first for share in members[group]), *unreadable][:count]


def _number(group: str) -> float:
    """Numbers by size, other ids behind them."""
    try:
        return float(group)
    except ValueError:
        return float("inf")


def choose_modules(collected: Sequence[Share], count: int, indexes: Mapping[str, int]) -> list[Share]:
    """Whole modules, the first by number; one card alone is the preferred one."""
    if count == 1:
        return list(collected[:1])
    whole = whole_modules(collected, indexes)
    return [share for module in sorted(whole) for share in whole[module]][:count]


def modules_usable(collected: Sequence[Share], count: int, indexes: Mapping[str, int]) -> int:
    """Cards of whole modules, as many modules as it takes for `count` cards or as there are."""
    return 2 * min(len(whole_modules(collected, indexes)), (count + 1) // 2)


def whole_modules(collected: Sequence[Share], indexes: Mapping[str, int]) -> dict[int, list[Share]]:
    """By number of the module: the cards 2n and 2n + 1, where exactly two passed."""
    modules: dict[int, list[Share]] = {}
    for share in collected:
        modules.setdefault(indexes[share.card_id] // 2, []).append(share)
    return {module: shares for module, shares in modules.items() if len(shares) == 2}
