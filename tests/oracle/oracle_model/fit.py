"""Whether a pod fits on one node, on which cards, and what each card says."""

from __future__ import annotations

from typing import NamedTuple

from .choice import choose
from .order import Rank, card_score, percent_of, sort_key, words_of
from .usage import Amount, effective_usage, plus, running_beside, total
from .values import Ask, Card, Constraint, Container, Family, PairScores, Pod, Share

Families = dict[str, Family]
"""By word."""

TOO_FEW = "AllocatedCardsInsufficientRequest"


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
    quotas: dict[str, Quota]
    """By vendor."""

    def emptied(self) -> NodeState:
        """With nothing used, nothing wrong with any card, and no quota."""
        cards = tuple(card._replace(healthy=True, cordoned=False) for card in self.cards)
        return NodeState(cards, self.pair_scores, {}, frozenset(), {})


Look = tuple[str, str | None]
"""A card and the reason it was refused for; None: it passed."""


class Outcome(NamedTuple):
    """`shares[i]` belongs to container i. `text` is None where the pod fits."""

    shares: tuple[tuple[Share, ...], ...]
    text: str | None
    reasons: frozenset[str]
    container: str | None
    """The first that does not fit."""
    looks: tuple[Look, ...]
    """At the cards of the last ask that was tried, in the order they were looked at."""
    notes: frozenset[str] = frozenset()
    """What is to be said about the choice of the cards."""


def fit(node: NodeState, pod: Pod, families: Families) -> Outcome:
    for container in pod.containers:
        if any(ask.vendor not in families for ask in container.asks if ask.count > 0):
            return _refused("Device type not found", {"DeviceTypeNotFound"}, container)
    held: list[tuple[str, tuple[Share, ...]]] = []
    order: list[Card] = []
    looks: list[Look] = []
    notes: set[str] = set()
    apps_began = False
    key = sort_key(pod.card_policy, numa_bind=pod.numa_bind)
    for container in pod.containers:
        asks = [ask for ask in container.asks if ask.count > 0]
        given: list[Share] = []
        if asks:
            is_app = container.kind == "app"
            if not (is_app and apps_began):
                order = list(node.cards)  # each init container, and the first app container, starts anew
            apps_began = apps_began or is_app
            ranks = _ranks(node, pod, asks, [*held, (container.kind, ())])
            for ask in asks:
                order.sort(key=lambda card: key(ranks[card.id]))
                request = Request(pod, container, ask, families[ask.vendor], [*held, (container.kind, tuple(given))])
                found = _collect(node, request, order)
                if isinstance(found, Outcome):
                    return found
                collected, looks = found
                if len(collected) > ask.count:
                    collected, said = choose(collected, ask.count, node.pair_scores)
                    notes |= said
                given.extend(collected)
        held.append((container.kind, tuple(given)))
    return Outcome(tuple(shares for _, shares in held), None, frozenset(), None, tuple(looks), frozenset(notes))


def _refused(text: str, reasons: set[str], container: Container, looks: tuple[Look, ...] = ()) -> Outcome:
    return Outcome((), text, frozenset(reasons), container.name, looks)


Held = list[tuple[str, tuple[Share, ...]]]
"""What the pod has so far: each container's kind with its shares."""


def _ranks(node: NodeState, pod: Pod, asks: list[Ask], held: Held) -> dict[str, Rank]:
    own = running_beside(held)
    ranks = {}
    for card in node.cards:
        used = plus(node.used.get(card.id, Amount()), own.get(card.id, Amount()))
        score = card_score(card, used, [ask for ask in asks if ask.vendor == card.vendor], pod.weights)
        ranks[card.id] = Rank(score, card.numa, card.index, used.slots)
    return ranks


class Request(NamedTuple):
    """One ask in its place."""

    pod: Pod
    container: Container
    ask: Ask
    family: Family
    held: Held
    """Its last entry is the container itself."""


def _collect(node: NodeState, request: Request, order: list[Card]) -> tuple[list[Share], list[Look]] | Outcome:
    """Cards for one ask, or why there are too few; where they are chosen by pair scores, all that pass.

    Under NUMA binding the cards are of one NUMA node: without a choice the first with enough, with one the last.
    """
    pod, container, ask, family, held = request
    candidates = [c for c in order if c.vendor == ask.vendor and family.model_contains.lower() in c.model.lower()]
    constraint = pod.constraints.get(ask.vendor, Constraint())
    partitioned = any(is_partitioned(family, card) for card in candidates)
    accepts_partitioned = constraint.modes is None or family.partitioned_mode in constraint.modes
    if ask.count > len(candidates) and not (partitioned and accepts_partitioned):
        return _refused("NodeInsufficientDevice", {"NodeInsufficientDevice"}, container)

    own = running_beside(held)
    counts: dict[str, int] = {}
    looks: list[Look] = []
    collected: list[Share] = []
    large_group: list[Share] = []
    numa_before: int | None = None
    collects_all = family.has_pair_scores and "topology-aware" in words_of(pod.card_policy)
    for card in reversed(candidates):
        used = plus(node.used.get(card.id, Amount()), own.get(card.id, Amount()))
        share = _share(family, card, ask)
        reason = _first_reason(node, card, constraint)
        if reason is None:
            if pod.numa_bind and card.numa != numa_before:
                if len(collected) >= ask.count:
                    large_group = collected
                elif collected and not collects_all:
                    counts["NumaNotFit"] = counts.get("NumaNotFit", 0) + len(collected)
                collected = []
                numa_before = card.numa
            reason = _second_reason(pod, card, constraint, used)
        if reason is None:
            kind, given = held[-1]
            with_share = [*held[:-1], (kind, (*given, *collected, share))]
            if not _within_quota(node.quotas.get(ask.vendor, Quota()), ask.vendor, with_share):
                reason = "ResourceQuotaNotFit"
        if reason is None:
            reason = _third_reason(family, card, used, share)
        looks.append((card.id, reason))
        if reason is not None:
            counts[reason] = counts.get(reason, 0) + 1
            continue
        collected.append(share)
        if len(collected) == ask.count and not collects_all:
            return collected, looks
    for group in (collected, large_group):
        if len(group) >= ask.count:
            return group, looks
    if collected:
        counts[TOO_FEW] = len(collected)
    text = ", ".join(sorted(f"{count}/{len(candidates)} {reason}" for reason, count in counts.items()))
    return _refused(text, set(counts), container, tuple(looks))


def is_partitioned(family: Family, card: Card) -> bool:
    return bool(family.partitioned_mode) and card.mode == family.partitioned_mode


def _share(family: Family, card: Card, ask: Ask) -> Share:
    """Memory given as an amount wins over a percentage."""
    memory = ask.memory_mib
    if memory == 0 and ask.memory_percent is not None:
        memory = percent_of(max(card.memory_mib, 0), ask.memory_percent)
    return Share(card.id, ask.vendor, memory, min(ask.cores_percent, family.most_cores_percent))


def _first_reason(node: NodeState, card: Card, constraint: Constraint) -> str | None:
    """Checks that come before the one on NUMA."""
    if not card.healthy:
        return "CardNotHealth"
    if card.cordoned:
        return "CardCordoned"
    if card.id in node.blocked:
        return "CardBlocked"
    model = card.model.lower()
    wanted, avoided = constraint.use_models, constraint.avoid_models or ()
    if wanted is not None and not any(word.lower() in model for word in wanted):
        return "CardTypeMismatch"
    if any(word.lower() in model for word in avoided):
        return "CardTypeMismatch"
    admits_mode = constraint.modes is None or card.mode in constraint.modes
    return None if admits_mode else "CardTypeMismatch"


def _second_reason(pod: Pod, card: Card, constraint: Constraint, used: Amount) -> str | None:
    """Checks between those on NUMA and quota."""
    if constraint.use_ids is not None and card.id not in constraint.use_ids:
        return "CardUuidMismatch"
    if constraint.avoid_ids is not None and card.id in constraint.avoid_ids:
        return "CardUuidMismatch"
    if card.slots <= used.slots:
        return "CardTimeSlicingExhausted"
    if "mutex" in words_of(pod.card_policy) and used.slots > 0:
        return "ExclusiveDeviceAllocateConflict"
    return None


def _third_reason(family: Family, card: Card, used: Amount, share: Share) -> str | None:
    """Checks after the one on quota."""
    if card.memory_mib < 0 or card.memory_mib - used.memory_mib < share.memory_mib:
        return "CardInsufficientMemory"
    if card.cores_percent - used.cores_percent < share.cores_percent:
        return "CardInsufficientCore"
    wants_whole = family.whole_card_is_exclusive and card.cores_percent == 100 and share.cores_percent == 100
    if wants_whole and used.slots > 0:
        return "ExclusiveDeviceAllocateConflict"
    is_full = card.cores_percent != 0 and used.cores_percent == card.cores_percent
    if family.zero_cores_need_free_cores and is_full and share.cores_percent == 0:
        return "CardComputeUnitsExhausted"
    if is_partitioned(family, card):
        return "CardModeUnavailable"
    return None


def _within_quota(quota: Quota, vendor: str, held: Held) -> bool:
    """Whether the pod's effective usage of the vendor, beside that of other pods, keeps to the limits."""
    if quota.memory_limit is None and quota.cores_limit is None:
        return True
    usage = effective_usage(held, init_done=False)
    own = total(amount for (_, of_vendor), amount in usage.items() if of_vendor == vendor)
    if quota.memory_limit is not None and quota.used_memory + own.memory_mib > quota.memory_limit:
        return False
    return quota.cores_limit is None or quota.used_cores + own.cores_percent <= quota.cores_limit
