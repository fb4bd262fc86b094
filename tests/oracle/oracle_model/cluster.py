"""The state of a cluster as the plain facts it was told. Whatever is asked is computed from them anew."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .checks import NodeState, Quota, is_partitioned
from .fit import Outcome, fit
from .fragments import booked_shapes, fragmentation, weigh
from .groups import group_gain
from .order import best_nodes, improved, node_score, total_of, words_of
from .usage import Amount, effective_usage, plus, total
from .values import Booking, Family, Node, Pod, Shape, Share

UNREGISTERED = "node unregistered"
BEST_COUNT = 10


class Answer(NamedTuple):
    """What a decision says. `node` None: the pod fits on no candidate."""

    node: str | None
    score: float | None
    shares: tuple[tuple[Share, ...], ...]
    scores: dict[str, float]
    best: list[tuple[str, float]]
    not_now: dict[str, str]
    """Why nodes do not fit; may change when something ends. Where the pod fits somewhere: all that do not fit."""
    never: dict[str, str]
    """Would not fit on the empty node either."""
    tally: dict[str, int]
    """By reason, on how many nodes it was met."""
    notes: frozenset[str]
    """What is to be said about the choice of the cards."""
    candidates: int


class Verdict(NamedTuple):
    """What one node says to a pod."""

    node: str
    outcome: Outcome | None
    """None: the node is not registered."""
    never: bool
    score: float | None
    growth: int = 0
    """By how much the node's fragmentation would grow."""


def looks_at_fragments(pod: Pod) -> bool:
    return pod.node_policy == "fgd" or "fgd" in words_of(pod.card_policy)


class Cluster:
    """Registered nodes, quotas and bookings."""

    def __init__(self, families: Iterable[Family]) -> None:
        self.families = {family.word: family for family in families}
        self.nodes: dict[str, Node] = {}
        self.limits: dict[tuple[str, str], tuple[int | None, int | None]] = {}
        self.bookings: dict[str, Booking] = {}
        self.workload: list[Shape] | None = None
        """Pods that are expected. None: as those booked."""

    def set_card_health(self, node: str, card_id: str, *, healthy: bool) -> bool:
        """False when the node has not registered such a card."""
        if node not in self.nodes:
            return False
        cards, pair_scores = self.nodes[node]
        changed = tuple(card._replace(healthy=healthy) if card.id == card_id else card for card in cards)
        self.nodes[node] = Node(changed, pair_scores)
        return any(card.id == card_id for card in cards)

    def confirm(self, uid: str) -> bool:
        if uid not in self.bookings:
            return False
        self.bookings[uid] = self.bookings[uid]._replace(state="bound")
        return True

    def used(self, node: str, *, without: str | None = None) -> dict[str, Amount]:
        """By card of a node, what pods hold, registered or not."""
        used: dict[str, Amount] = {}
        for booking in self.bookings.values():
            if booking.node == node and booking.uid != without:
                usage = effective_usage(booking.containers, init_done=booking.init_done)
                for (card_id, _), amount in usage.items():
                    used[card_id] = plus(used.get(card_id, Amount()), amount)
        return used

    def blocked(self, node: str, *, without: str | None = None) -> frozenset[str]:
        """Cards of a node that a pod's malformed allocation names."""
        pods = [b for b in self.bookings.values() if b.node == node and b.uid != without]
        return frozenset(card_id for booking in pods for card_id in booking.blocked_cards)

    def _live_shares(self, node: str, without: str | None) -> list[list[tuple[str, tuple[int, int] | None]]]:
        """Of each pod: card and place of what it holds; place None: no instance."""
        return [
            [
                *((s.card_id, s.placement) for kind, shares in b.containers for s in shares
                  if not (b.init_done and kind == "init")),
                *b.claims,
            ]
            for b in self.bookings.values()
            if b.node == node and b.uid != without
        ]  # fmt: skip

    def occupied(self, node: str, *, without: str | None = None) -> dict[str, list[tuple[int, int]]]:
        """By card, where instances of pods lie."""
        found: dict[str, list[tuple[int, int]]] = {}
        for pod in self._live_shares(node, without):
            for card_id, place in pod:
                if place is not None:
                    found.setdefault(card_id, []).append(place)
        return found

    def unclear(self, node: str, *, without: str | None = None) -> frozenset[str]:
        """Cards in MIG mode of which a pod holds a share outside any instance, and others with an instance."""
        if node not in self.nodes:
            return frozenset()
        cut = {
            card.id
            for card in self.nodes[node].cards
            if (family := self.families.get(card.vendor)) is not None and is_partitioned(family, card)
        }
        held = [entry for pod in self._live_shares(node, without) for entry in pod]
        return frozenset(card_id for card_id, place in held if (place is None) == (card_id in cut))

    def quota_used(self, namespace: str, vendor: str, *, without: str | None = None) -> Amount:
        held = Amount()
        for booking in self.bookings.values():
            if booking.namespace == namespace and booking.uid != without:
                usage = effective_usage(booking.containers, init_done=booking.init_done)
                held = plus(held, total(a for (_, of_vendor), a in usage.items() if of_vendor == vendor))
        return held

    def _score(self, node: str, used: dict[str, Amount], pod: Pod, outcome: Outcome) -> float:
        cards = self.nodes[node].cards
        score = node_score(
            total(used.get(card.id, Amount()) for card in cards), total(total_of(card) for card in cards)
        )
        gain = group_gain(cards, outcome.shares, self.families)
        return improved(score, gain, pod.node_policy)

    def _state(self, node: str, pod: Pod) -> NodeState:
        quotas = {}
        for (namespace, vendor), (memory, cores) in self.limits.items():
            if namespace == pod.namespace:
                used = self.quota_used(namespace, vendor, without=pod.uid)
                quotas[vendor] = Quota(memory, cores, used.memory_mib, used.cores_percent)
        without = pod.uid
        return NodeState(
            *self.nodes[node],
            used=self.used(node, without=without),
            blocked=self.blocked(node, without=without),
            occupied=self.occupied(node, without=without),
            unclear=self.unclear(node, without=without),
            quotas=quotas,
            shapes=self._shapes(pod) if looks_at_fragments(pod) else (),
        )

    def _shapes(self, pod: Pod) -> tuple[Shape, ...]:
        """The expected pods, weighed."""
        nodes = {name: node.cards for name, node in self.nodes.items()}
        others = [booking for booking in self.bookings.values() if booking.uid != pod.uid]
        shapes = booked_shapes(others, nodes, self.families) if self.workload is None else self.workload
        return weigh(shapes, nodes.values(), self.families)

    def explain(self, pod: Pod, candidates: Sequence[str] | None) -> list[Verdict]:
        """Each candidate once, by name."""
        verdicts = []
        for name in sorted(self.nodes if candidates is None else set(candidates)):
            if name not in self.nodes:
                verdicts.append(Verdict(name, None, never=False, score=None))
                continue
            state = self._state(name, pod)
            outcome = fit(state, pod, self.families)
            never = outcome.text is not None and fit(state.emptied(), pod, self.families).text is not None
            growth = 0
            if outcome.text is None:
                kinds = [container.kind for container in pod.containers]
                after = state.with_pod(list(zip(kinds, outcome.shares, strict=True)))
                growth = fragmentation(after, self.families) - fragmentation(state, self.families)
            verdicts.append(Verdict(name, outcome, never, self._score(name, state.used, pod, outcome), growth))
        return verdicts

    def what_if(self, pod: Pod, candidates: Sequence[str] | None) -> Answer:
        """Decides about a pod. What it holds already does not count against it."""
        return self.answer(self.explain(pod, candidates), pod)

    def answer(self, verdicts: list[Verdict], pod: Pod) -> Answer:
        scores: dict[str, float] = {}
        not_now: dict[str, str] = {}
        never: dict[str, str] = {}
        tally: dict[str, int] = {}
        fitting: dict[str, Outcome] = {}
        for name, outcome, is_never, score, _ in verdicts:
            if outcome is not None and outcome.text is None and score is not None:
                scores[name] = score
                fitting[name] = outcome
                continue
            text = UNREGISTERED if outcome is None or outcome.text is None else outcome.text
            (never if is_never else not_now)[name] = text
            for reason in {"NodeUnregistered"} if outcome is None else outcome.reasons:
                tally[reason] = tally.get(reason, 0) + 1
        best = best_nodes(scores, pod.node_policy, {verdict.node: verdict.growth for verdict in verdicts})
        node, score = best[0] if best else (None, None)
        return Answer(
            node=node,
            score=score,
            shares=() if node is None else fitting[node].shares,
            notes=frozenset() if node is None else fitting[node].notes,
            scores=scores,
            best=best[:BEST_COUNT],
            not_now=not_now if node is None else {**not_now, **never},
            never=never if node is None else {},
            tally=tally,
            candidates=len(verdicts),
        )

    def reserve(self, pod: Pod, candidates: Sequence[str] | None) -> Answer:
        """Places a pod and books it, in place of whatever was booked for its UID."""
        self.bookings.pop(pod.uid, None)
        answer = self.what_if(pod, candidates)
        if answer.node is not None:
            kinds = [container.kind for container in pod.containers]
            self.bookings[pod.uid] = Booking(
                uid=pod.uid,
                namespace=pod.namespace,
                node=answer.node,
                state="reserved",
                containers=tuple(zip(kinds, answer.shares, strict=True)),
            )
        return answer
