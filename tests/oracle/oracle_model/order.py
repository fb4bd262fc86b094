"""Scores of cards and nodes, and which are preferred."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from .float32 import float32_of, quotient, to_float32
from .usage import Amount
from .values import Ask, Card


def node_score(used: Amount, total: Amount) -> float:
    """Ten times the sum of the used shares of slots, cores and memory; 0 where a total is 0."""
    return _weighted_score(used, total, (1, 1, 1))


def improved(score: float, gain: float, policy: str) -> float:
    """A node's score with what the groups of the cards add. Under `spread`, where the lowest wins, it is taken off."""
    return to_float32(score - gain if policy == "spread" else score + gain)


def card_score(card: Card, used: Amount, asks: Sequence[Ask], weights: tuple[int, int, int]) -> float:
    """Usage, and what is asked where the card's model is the bare word of the vendor."""
    slots, cores, memory = used.slots, used.cores_percent, used.memory_mib
    for ask in asks:
        if ask.vendor == card.model:
            slots += 1
            cores += ask.cores_percent
            if ask.memory_percent is not None and ask.memory_percent != 0:
                memory += percent_of(card.memory_mib, ask.memory_percent)
            else:
                memory += ask.memory_mib
    return _weighted_score(Amount(memory, cores, slots), total_of(card), weights)


def percent_of(amount: int, percent: int) -> int:
    """Rounded towards 0."""
    product = amount * percent
    return product // 100 if product >= 0 else -(-product // 100)


def total_of(card: Card) -> Amount:
    return Amount(card.memory_mib, card.cores_percent, card.slots)


@lru_cache(maxsize=100_000)
def _weighted_score(used: Amount, total: Amount, weights: tuple[int, int, int]) -> float:
    if total.slots == 0 or total.cores_percent == 0 or total.memory_mib == 0:
        return 0.0
    slots = to_float32(float32_of(weights[0]) * quotient(used.slots, total.slots))
    cores = to_float32(float32_of(weights[1]) * quotient(used.cores_percent, total.cores_percent))
    memory = to_float32(float32_of(weights[2]) * quotient(used.memory_mib, total.memory_mib))
    return to_float32(10.0 * to_float32(to_float32(slots + cores) + memory))


class Rank(NamedTuple):
    """What the order of cards looks at."""

    score: float
    numa: int
    index: int
    used_slots: int
    growth: int = 0
    """By how much fragmentation grows when the card is taken; only `fgd` looks at it."""


SortKey = Callable[[Rank], tuple[float, ...]]


def words_of(policy: str) -> list[str]:
    return [word.strip() for word in policy.split(",")]


def sort_key(policy: str, *, numa_bind: bool) -> SortKey:
    """Cards are sorted ascending by it, stably; the last one is preferred."""
    if "," in policy or policy == "numa":
        return _chain_key(policy, numa_bind=numa_bind)
    if policy == "mutex":
        return lambda rank: (-rank.used_slots, rank.numa)
    if policy == "fgd" and numa_bind:
        return lambda rank: (-rank.numa, -rank.growth, rank.score)
    if policy == "fgd":
        return lambda rank: (-rank.growth, rank.score, rank.numa)
    if policy == "binpack":
        return (lambda rank: (-rank.numa, rank.score)) if numa_bind else (lambda rank: (rank.score, rank.numa))
    return (lambda rank: (rank.numa, -rank.score)) if numa_bind else (lambda rank: (-rank.score, rank.numa))


def _chain_key(policy: str, *, numa_bind: bool) -> SortKey:
    chain = [word for word in words_of(policy) if word in ("binpack", "spread", "numa", "fgd")]
    chain = list(dict.fromkeys(chain)) or ["spread"]
    if numa_bind and chain[0] != "numa":
        chain = ["numa", *(word for word in chain if word != "numa")]

    def key(rank: Rank) -> tuple[float, ...]:
        parts: dict[str, float] = {"binpack": rank.score, "spread": -rank.score, "numa": rank.numa, "fgd": -rank.growth}
        return (*(parts[word] for word in chain), rank.index)

    return key


def best_nodes(scores: dict[str, float], policy: str, growths: dict[str, int]) -> list[tuple[str, float]]:
    """Best first: the emptiest under `spread`, the fullest under any other word; of equals the first by name.

    `growths`: of the nodes' fragmentation, which under `fgd` must be small before all else.
    """
    sign = 1 if policy == "spread" else -1
    growth = growths if policy == "fgd" else {}
    return sorted(scores.items(), key=lambda entry: (growth.get(entry[0], 0), sign * entry[1], entry[0]))
