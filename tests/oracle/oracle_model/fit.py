"""Whether a pod fits on one node, on which cards, and what each card says."""

from __future__ import annotations

from typing import NamedTuple

from .checks import (
    NodeState,
    Quota,
    Wanted,
    first_reason,
    is_partitioned,
    second_reason,
    serves,
    share_of,
    third_reason,
)
from .choice import choose, choose_groups, choose_modules, modules_usable
from .fragments import fragmentation
from .mig import choose_instance, intervals
from .order import Rank, card_score, sort_key, words_of
from .usage import Amount, effective_usage, plus, running_beside, total
from .values import Ask, Card, Constraint, Container, Family, Pod, Share

Families = dict[str, Family]
"""By word."""

TOO_FEW = "AllocatedCardsInsufficientRequest"


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
            ranks = _ranks(node, pod, asks, [*held, (container.kind, ())], families)
            for ask in asks:
                order.sort(key=lambda card: key(ranks[card.id]))
                request = Request(pod, container, ask, families[ask.vendor], [*held, (container.kind, tuple(given))])
                found = _collect(node, request, order)
                if isinstance(found, Outcome):
                    return found
                collected, looks = found
                chosen, said = _chosen(node, request, collected)
                notes |= said
                given.extend(chosen)
        held.append((container.kind, tuple(given)))
    return Outcome(tuple(shares for _, shares in held), None, frozenset(), None, tuple(looks), frozenset(notes))


def _chosen(node: NodeState, request: Request, collected: list[Share]) -> tuple[list[Share], set[str]]:
    """Of the cards that passed, those the ask gets, in their order."""
    count, family = request.ask.count, request.family
    by_pair_scores = _by_pair_scores(request.pod, family)
    if family.selection == "pairs" and not by_pair_scores:
        return choose_modules(collected, count, {card.id: card.index for card in node.cards}), set()
    if len(collected) == count:
        return collected, set()
    if by_pair_scores:
        return choose(collected, count, node.pair_scores)
    groups = {card.id: card.group for card in _candidates(list(node.cards), request)}
    return choose_groups(collected, count, groups), set()


def _refused(text: str, reasons: set[str], container: Container, looks: tuple[Look, ...] = ()) -> Outcome:
    return Outcome((), text, frozenset(reasons), container.name, looks)


Held = list[tuple[str, tuple[Share, ...]]]
"""What the pod has so far: each container's kind with its shares."""


def _ranks(node: NodeState, pod: Pod, asks: list[Ask], held: Held, families: Families) -> dict[str, Rank]:
    own = running_beside(held)
    ranks = {}
    for card in node.cards:
        used = plus(node.used.get(card.id, Amount()), own.get(card.id, Amount()))
        score = card_score(card, used, [ask for ask in asks if ask.vendor == card.vendor], pod.weights)
        ranks[card.id] = Rank(score, card.numa, card.index, used.slots)
    if "fgd" in words_of(pod.card_policy):
        return {
            card.id: ranks[card.id]._replace(growth=_growth(node, card, asks, held, families)) for card in node.cards
        }
    return ranks


def _growth(node: NodeState, card: Card, asks: list[Ask], held: Held, families: Families) -> int:
    """By how much the node's fragmentation grows when the card gives its share to the last container of `held`."""
    own = [ask for ask in asks if serves(families[ask.vendor], card, ask.vendor)]
    if not own:
        return 0
    kind, given = held[-1]
    share = share_of(families[card.vendor], card, own[0])
    after = node.with_pod([*held[:-1], (kind, (*given, share))])
    return fragmentation(after, families) - fragmentation(node.with_pod(held), families)


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
    candidates = _candidates(order, request)
    constraint = pod.constraints.get(ask.vendor, Constraint())
    partitioned = any(is_partitioned(family, card) for card in candidates)
    accepts_partitioned = constraint.modes is None or family.partitioned_mode in constraint.modes
    if ask.count > len(candidates) and not (partitioned and accepts_partitioned):
        return _refused("NodeInsufficientDevice", {"NodeInsufficientDevice"}, container)

    visit = Visit(node, request, running_beside(held))
    counts: dict[str, int] = {}
    looks: list[Look] = []
    collected: list[Share] = []
    large_group: list[Share] = []
    numa_before: int | None = None
    collects_all = _collects_all(pod, family)
    for card in reversed(candidates):
        if pod.numa_bind and first_reason(node, card, ask, constraint) is None and card.numa != numa_before:
            if len(collected) >= ask.count:
                large_group = collected
            elif collected and not collects_all:
                counts["NumaNotFit"] = counts.get("NumaNotFit", 0) + len(collected)
            collected = []
            numa_before = card.numa
        # A card in MIG mode gives as many shares as are asked and free; another card one.
        shares_left = ask.count if collects_all else ask.count - len(collected)
        of_card: list[Share] = []
        while len(of_card) < (shares_left if is_partitioned(family, card) else 1):
            found = visit.share(card, collected, of_card)
            looks.append((card.id, found if isinstance(found, str) else None))
            if isinstance(found, str):
                counts[found] = counts.get(found, 0) + 1
                break
            collected.append(found)
            of_card.append(found)
        if len(collected) == ask.count and not collects_all:
            return collected, looks
    passed = large_group if len(collected) < ask.count and large_group else collected
    if family.selection == "pairs" and not _by_pair_scores(pod, family) and ask.count > 1:
        usable = modules_usable(passed, ask.count, {card.id: card.index for card in node.cards})
        if usable != ask.count:
            counts[TOO_FEW] = usable  # of the cards asked, and said even where there is none
            return _refused(_text(counts, ask.count), set(counts), container, tuple(looks))
    if len(passed) >= ask.count:
        return passed, looks
    if collected:
        counts[TOO_FEW] = len(collected)
    return _refused(_text(counts, len(candidates)), set(counts), container, tuple(looks))


def _candidates(cards: list[Card], request: Request) -> list[Card]:
    """The vendor's cards that can serve at all."""
    return [card for card in cards if serves(request.family, card, request.ask.vendor)]


def _collects_all(pod: Pod, family: Family) -> bool:
    """Whether every card that passes is looked for, and not only the first that are enough."""
    return _by_pair_scores(pod, family) or family.selection != "first"


def _by_pair_scores(pod: Pod, family: Family) -> bool:
    return family.has_pair_scores and "topology-aware" in words_of(pod.card_policy)


def _text(counts: dict[str, int], cards: int) -> str:
    """In the words that kube-scheduler's users know: one stands for two reasons, and a missing mode counts once."""
    words: dict[str, int] = {}
    for reason, count in counts.items():
        word = "CardNotHealth" if reason == "CardMigReservationUnclear" else reason
        words[word] = words.get(word, 0) + (1 if reason == "ModeNotFit" else count)
    return ", ".join(sorted(f"{count}/{cards} {word}" for word, count in words.items()))


class Visit:
    """Looks of one ask at the cards of a node."""

    def __init__(self, node: NodeState, request: Request, own: dict[str, Amount]) -> None:
        self.node = node
        self.request = request
        self.own = own

    def share(self, card: Card, collected: list[Share], of_card: list[Share]) -> Share | str:
        """The next share that the card gives after `of_card`, or the reason why none."""
        node, (pod, _, ask, family, _) = self.node, self.request
        used = plus(node.used.get(card.id, Amount()), self.own.get(card.id, Amount()))
        constraint = pod.constraints.get(ask.vendor, Constraint())
        share = share_of(family, card, ask)
        reason = first_reason(node, card, ask, constraint) or second_reason(pod.card_policy, card, constraint, used)
        if reason is not None:
            return reason
        wanted = Wanted.on(family, card, ask, share)
        charged = share._replace(memory_mib=wanted.memory_mib, cores_percent=wanted.cores_percent or 0)
        if not self._within_quota(collected, charged):
            return "ResourceQuotaNotFit"
        reason = third_reason(family, card, used, wanted)
        if reason is not None or not is_partitioned(family, card):
            return reason or share
        return self._instance(card, wanted.memory_mib, used, collected, of_card)

    def _instance(
        self, card: Card, memory_mib: int, used: Amount, collected: list[Share], of_card: list[Share]
    ) -> Share | str:
        """An instance of a card in MIG mode, charged as what it is; or the reason why none."""
        node, ask = self.node, self.request.ask
        occupied = [*node.occupied.get(card.id, ()), *intervals(self._own_shares(), card.id)]
        occupied += intervals(of_card, card.id)
        instance = choose_instance(card, occupied, memory_mib)
        if instance is None:
            return "CardMigTopologyInfeasible"
        profile, start, size = instance
        given = Share(card.id, ask.vendor, profile.memory_mib, profile.cores_percent, profile.name, (start, size))
        if card.slots - used.slots - len(of_card) < 1:
            return "CardTimeSlicingExhausted"
        if not self._within_quota(collected, given):
            return "ResourceQuotaNotFit"
        free = card.memory_mib - used.memory_mib - sum(other.memory_mib for other in of_card)
        return "CardInsufficientMemory" if free < given.memory_mib else given

    def _own_shares(self) -> list[Share]:
        """Of the pod's containers that run beside this one, and its own."""
        held = self.request.held
        last_kind, own = held[-1]
        beside = [s for kind, s in held[:-1] if kind == "sidecar" or (kind == "app" and last_kind == "app")]
        return [share for shares in (*beside, own) for share in shares]

    def _within_quota(self, collected: list[Share], share: Share) -> bool:
        held, vendor = self.request.held, self.request.ask.vendor
        kind, given = held[-1]
        with_share = [*held[:-1], (kind, (*given, *collected, share))]
        return _within_quota(self.node.quotas.get(vendor, Quota()), vendor, with_share)


def _within_quota(quota: Quota, vendor: str, held: Held) -> bool:
    """Whether the pod's effective usage of the vendor, beside that of other pods, keeps to the limits."""
    if quota.memory_limit is None and quota.cores_limit is None:
        return True
    usage = effective_usage(held, init_done=False)
    own = total(amount for (_, of_vendor), amount in usage.items() if of_vendor == vendor)
    if quota.memory_limit is not None and quota.used_memory + own.memory_mib > quota.memory_limit:
        return False
    return quota.cores_limit is None or quota.used_cores + own.cores_percent <= quota.cores_limit
