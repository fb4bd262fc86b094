"""A node as a pod finds it, and what one of its cards says to a share."""

from __future__ import annotations

from typing import NamedTuple

from .mig import Interval, whole_memory_mib
from .order import percent_of, words_of
from .usage import Amount, Shares, effective_usage, plus
from .values import Ask, Card, Constraint, Family, PairScores, Shape, Share


class Quota(NamedTuple):
    """Limits of a namespace for one vendor, and what other pods use of them. None: no limit."""

    memory_limit: int | None = None
    cores_limit: int | None = None
    used_memory: int = 0
    used_cores: int = 0


class NodeState(NamedTuple):
    """A node as the pod finds it."""

    cards: tuple[Card, ...]
    pair_scores: PairScores
    used: dict[str, Amount]
    """By card, what other pods hold."""
    blocked: frozenset[str]
    occupied: dict[str, list[Interval]]
    """By card, where other pods' instances lie."""
    unclear: frozenset[str]
    """Cards of which pods hold what their mode does not allow."""
    quotas: dict[str, Quota]
    """By vendor."""
    shapes: tuple[Shape, ...] = ()
    """The pods that are expected, as far as they can run anywhere; looked at where a policy names `fgd`."""

    def emptied(self) -> NodeState:
        """With nothing used, nothing wrong with any card, and neither quota nor expected pods."""
        cards = tuple(card._replace(healthy=True, cordoned=False) for card in self.cards)
        return NodeState(cards, self.pair_scores, {}, frozenset(), {}, frozenset(), {})

    def with_pod(self, containers: Shares) -> NodeState:
        """As it is when a pod holds shares of its cards beside all others."""
        used = dict(self.used)
        for (card_id, _), amount in effective_usage(containers, init_done=False).items():
            used[card_id] = plus(used.get(card_id, Amount()), amount)
        return self._replace(used=used)


class Wanted(NamedTuple):
    """What the checks of one card compare with. `cores_percent` None: cores do not decide."""

    memory_mib: int
    cores_percent: int | None
    is_whole: bool = False
    """The instance that is the whole card: compute comes with it, and cutting the card costs some of its memory."""

    @classmethod
    def on(cls, family: Family, card: Card, ask: Ask, share: Share) -> Wanted:
        if not is_partitioned(family, card):
            return cls(share.memory_mib, share.cores_percent)
        whole = whole_memory_mib(card)
        by_percent = ask.memory_mib == 0 and (ask.memory_percent or 0) > 0
        if by_percent and whole is not None and share.memory_mib > whole:
            return cls(whole, None, is_whole=True)
        return cls(share.memory_mib, share.cores_percent or None)


def serves(family: Family, card: Card, vendor: str) -> bool:
    """Whether the card is one of the vendor's that can serve at all."""
    return card.vendor == vendor and family.model_contains.lower() in card.model.lower()


def is_partitioned(family: Family, card: Card) -> bool:
    return bool(family.partitioned_mode) and card.mode == family.partitioned_mode


def share_of(family: Family, card: Card, ask: Ask) -> Share:
    """Memory given as an amount wins over a percentage."""
    memory = ask.memory_mib
    if memory == 0 and ask.memory_percent is not None:
        memory = percent_of(max(card.memory_mib, 0), ask.memory_percent)
    return Share(card.id, ask.vendor, memory, min(ask.cores_percent, family.most_cores_percent))


def first_reason(node: NodeState, card: Card, ask: Ask, constraint: Constraint) -> str | None:
    """Checks that come before the one on NUMA."""
    faults = {
        "ModeNotFit": ask.mode not in ("", card.mode),
        "CardNotHealth": not card.healthy,
        "CardMigReservationUnclear": card.id in node.unclear,
        "CardCordoned": card.cordoned,
        "CardBlocked": card.id in node.blocked,
    }
    if any(faults.values()):
        return next(reason for reason, holds in faults.items() if holds)
    model = card.model.lower()
    wanted, avoided = constraint.use_models, constraint.avoid_models or ()
    if wanted is not None and not any(word.lower() in model for word in wanted):
        return "CardTypeMismatch"
    if any(word.lower() in model for word in avoided):
        return "CardTypeMismatch"
    admits_mode = constraint.modes is None or card.mode in constraint.modes
    return None if admits_mode else "CardTypeMismatch"


def second_reason(card_policy: str, card: Card, constraint: Constraint, used: Amount) -> str | None:
    """Checks between those on NUMA and quota."""
    if constraint.use_ids is not None and card.id not in constraint.use_ids:
        return "CardUuidMismatch"
    if constraint.avoid_ids is not None and card.id in constraint.avoid_ids:
        return "CardUuidMismatch"
    if card.slots <= used.slots:
        return "CardTimeSlicingExhausted"
    if "mutex" in words_of(card_policy) and used.slots > 0:
        return "ExclusiveDeviceAllocateConflict"
    return None


def third_reason(family: Family, card: Card, used: Amount, wanted: Wanted) -> str | None:
    """Checks after the one on quota."""
    cores = wanted.cores_percent
    if card.memory_mib < 0 or card.memory_mib - used.memory_mib < wanted.memory_mib:
        return "CardInsufficientMemory"
    if cores is not None and card.cores_percent - used.cores_percent < cores:
        return "CardInsufficientCore"
    if wanted.is_whole:
        return None
    wants_whole = family.whole_card_is_exclusive and card.cores_percent == 100 and cores == 100
    if wants_whole and used.slots > 0:
        return "ExclusiveDeviceAllocateConflict"
    is_full = card.cores_percent != 0 and used.cores_percent == card.cores_percent
    if family.zero_cores_need_free_cores and is_full and not cores:
        return "CardComputeUnitsExhausted"
    return None
