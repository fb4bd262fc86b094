"""Fragmentation of a node: how much of its free cards the expected pods could not use. Host amounts are not modelled.

All is counted in whole numbers, so that equal choices are equal: free shares in millionths of a card, weights in parts
of 2 to the power of 20.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import floor, sqrt

from .checks import NodeState, Wanted, first_reason, second_reason, serves, share_of, third_reason
from .usage import Amount, effective_usage
from .values import Ask, Booking, Card, Constraint, Family, Shape

CARD = 1_000_000
WEIGHTS = 1 << 20
PARTS = 64
"""Frequencies of booked pods are rounded to such parts of all."""
STEP_PERCENT = 5
MOST_CARDS = 16


def fragmentation(node: NodeState, families: Mapping[str, Family]) -> int:
    """The sum over shapes of weight times the free shares that the shape cannot use."""
    free = {card.id: _free_share(node, card) for card in node.cards}
    value = 0
    for weight, ask in node.shapes:
        usable = [free[card.id] for card in node.cards if passes(node, card, ask, families)]
        value += weight * (sum(free.values()) - (sum(usable) if len(usable) >= ask.count else 0))
    return value


def _free_share(node: NodeState, card: Card) -> int:
    """The smaller of free memory and free cores; 0 where the card takes no pod at all."""
    used = node.used.get(card.id, Amount())
    closed = not card.healthy or card.cordoned or card.id in node.blocked or card.id in node.unclear
    if closed or card.slots <= used.slots or card.memory_mib <= 0 or card.cores_percent <= 0:
        return 0
    memory = max(card.memory_mib - used.memory_mib, 0) * CARD // card.memory_mib
    return min(memory, max(card.cores_percent - used.cores_percent, 0) * CARD // card.cores_percent)


def passes(node: NodeState, card: Card, ask: Ask, families: Mapping[str, Family]) -> bool:
    """Whether a card would take a share as things are, quotas aside."""
    family = families.get(ask.vendor)
    if family is None or not serves(family, card, ask.vendor):
        return False
    used, share = node.used.get(card.id, Amount()), share_of(family, card, ask)
    return not (
        first_reason(node, card, ask, Constraint())
        or second_reason("", card, Constraint(), used)
        or third_reason(family, card, used, Wanted.on(family, card, ask, share))
    )


def weigh(
    shapes: Sequence[Shape], nodes: Iterable[Sequence[Card]], families: Mapping[str, Family]
) -> tuple[Shape, ...]:
    """The shapes that can run on some card, with the weights that `fragmentation` counts with.

    A weight is the frequency, times the square root of the cards that one pod asks, times the cards of the cluster for
    each card that the shape could use were all empty.
    """
    empty = [NodeState(tuple(cards), {}, {}, frozenset(), {}, frozenset(), {}).emptied() for cards in nodes]
    places = [(node, card) for node in empty for card in node.cards]
    total = sum(shape.weight for shape in shapes)
    weighed = []
    for weight, ask in shapes:
        usable = sum(passes(node, card, ask, families) for node, card in places)
        if usable and weight:
            share = weight / total * sqrt(ask.count)
            weighed.append(Shape(floor(WEIGHTS * share * len(places) / usable + 0.5), ask))
    return tuple(weighed)


def booked_shapes(
    bookings: Iterable[Booking], nodes: Mapping[str, Sequence[Card]], families: Mapping[str, Family]
) -> list[Shape]:
    """Pods like those booked: each counts as so many cards of the most that it holds of one of them."""
    counts: Counter[Ask] = Counter()
    for booking in bookings:
        cards = {card.id: card for card in nodes.get(booking.node, ())}
        held = effective_usage(booking.containers, init_done=booking.init_done)
        for vendor in {vendor for card_id, vendor in held if card_id in cards and vendor in families}:
            own = [
                (cards[card_id], amount) for (card_id, of), amount in held.items() if of == vendor and card_id in cards
            ]
            memory = max(_steps(amount.memory_mib, card.memory_mib) for card, amount in own)
            cores = max(_steps(amount.cores_percent, card.cores_percent) for card, amount in own)
            count = min(len(own), MOST_CARDS)
            counts[Ask(vendor, count, memory_percent=max(memory, STEP_PERCENT), cores_percent=cores)] += 1
    total = counts.total()
    parts = {ask: (count * PARTS * 2 + total) // (total * 2) for ask, count in counts.items()}
    return [Shape(part, ask) for ask, part in parts.items() if part]


def _steps(amount: int, total: int) -> int:
    """In percent, rounded up to a step, at most 100."""
    if amount <= 0 or total <= 0:
        return 0
    return min(-(-amount * 100 // (total * STEP_PERCENT)) * STEP_PERCENT, 100)
