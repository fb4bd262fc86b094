"""What may be asked of a running scheduler, and the answers. Each answer is bounded: it fits one NATS message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import hami_engine as engine
import msgspec
from hami_model import kube, requests
from hami_model.errors import HamiError
from hami_model.requests import PodRequest

from hami_scheduler.core import engine_values, holdings
from hami_scheduler.core.ledger import Ledger

NODES_MAX: Final = 100
PODS_MAX: Final = 500
_SENTENCES: Final = {reason.code: reason.sentence for reason in engine.list_reasons()}


class _Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class StateQuestion(_Question, frozen=True):
    node: str = ""
    """Only this node; empty: all, page by page."""
    after: str = ""
    """Nodes whose names come after this one: the last of the page before."""
    limit: int = 50
    """Nodes in one answer, at most 100."""


class ExplainQuestion(_Question, frozen=True):
    namespace: str
    name: str
    limit: int = 50
    """Nodes in the answer, at most 100; those where the pod fits come first."""


class WhatIfQuestion(_Question, frozen=True):
    pods: list[kube.Pod]
    """To be placed in this order, on a copy of the present state."""
    nodes: list[str] | None = None
    """Only on these nodes; null: on all."""


class HeldSlice(msgspec.Struct, frozen=True, kw_only=True):
    container: str
    card_id: str
    vendor: str
    memory_mib: int
    cores_percent: int


class CardState(msgspec.Struct, frozen=True, kw_only=True):
    card_id: str
    vendor: str
    model: str
    index: int
    healthy: bool
    cordoned: bool
    blocked: bool
    slots: int
    used_slots: int
    memory_mib: int
    used_memory_mib: int
    cores_percent: int
    used_cores_percent: int


class PodState(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    uid: str
    state: Literal["reserved", "bound"]
    allocation_id: str = ""


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    cards: list[CardState]
    pods_total: int
    pods: list[PodState]
    """At most 500, and only where the question names the node."""


class StateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    nodes: list[NodeState]
    more: bool
    """There are nodes after the last one of this answer."""
    nodes_total: int
    bound_pods: int
    reservations: int
    rejected_pods: int


class CardExplanation(msgspec.Struct, frozen=True, kw_only=True):
    card_id: str
    fits: bool
    code: str = ""
    sentence: str = ""
    asked: int | None = None
    used: int | None = None
    total: int | None = None


class NodeExplanation(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    fits: bool
    never: bool
    """Would not fit on the empty node either."""
    reason: str
    score: float | None
    container: str
    """The first that does not fit."""
    cards: list[CardExplanation]
    notes: dict[str, str] = {}
    """Where it fits: what is to be said about the choice of its cards, a sentence by code."""


class ExplainAnswer(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    uid: str
    state: Literal["bound", "reserved", "pending", "asks-for-no-card", "invalid-request"]
    sentence: str
    node: str = ""
    """Where it is bound or reserved."""
    slices: list[HeldSlice] = []
    nodes_total: int = 0
    nodes_fitting: int = 0
    reasons: dict[str, int] = {}
    """Reason of a node -> number of nodes."""
    nodes: list[NodeExplanation] = []


class WhatIfPlacement(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    node: str = ""
    """Empty: it fits nowhere."""
    slices: list[HeldSlice] = []
    reasons: dict[str, int] = {}
    problem: str = ""
    """The request itself is invalid."""


class WhatIfAnswer(msgspec.Struct, frozen=True, kw_only=True):
    pods: list[WhatIfPlacement]


def state(ledger: Ledger, asked: StateQuestion, rejected_pods: int) -> StateAnswer:
    names = sorted(ledger.cluster.nodes())
    wanted = [name for name in names if name > asked.after and asked.node in ("", name)]
    page = wanted[: max(1, min(asked.limit, NODES_MAX))]
    return StateAnswer(
        nodes=[_node_state(ledger, name, with_pods=bool(asked.node)) for name in page],
        more=len(wanted) > len(page),
        nodes_total=len(names),
        bound_pods=len(ledger.bound_pods),
        reservations=len(ledger.reservations),
        rejected_pods=rejected_pods,
    )


def _node_state(ledger: Ledger, node: str, *, with_pods: bool) -> NodeState:
    cards = [
        CardState(
            card_id=card.card_id,
            vendor=card.vendor,
            model=card.model,
            index=card.index,
            healthy=card.healthy,
            cordoned=card.cordoned,
            blocked=card.blocked,
            slots=card.slots,
            used_slots=card.used_slots,
            memory_mib=card.memory_mib,
            used_memory_mib=card.used_memory_mib,
            cores_percent=card.cores_percent,
            used_cores_percent=card.used_cores_percent,
        )
        for card in ledger.cluster.node_cards(node)
    ]
    bookings = ledger.cluster.pods(node)
    pods = []
    for booking in bookings[:PODS_MAX] if with_pods else ():
        known = ledger.reservations.get(booking.uid) or ledger.bound_pods.get(booking.uid)
        if known is not None:
            pods.append(
                PodState(
                    namespace=known.namespace,
                    name=known.name,
                    uid=known.uid,
                    state=booking.state,
                    allocation_id=known.allocation_id or "",
                )
            )
    return NodeState(node=node, cards=cards, pods_total=len(bookings), pods=pods)


def explain(ledger: Ledger, pod: kube.Pod, asked: ExplainQuestion) -> ExplainAnswer:
    """Why the pod does or does not fit, node by node and card by card."""
    request: PodRequest | None = None
    problem = ""
    try:
        request = requests.pod_request(pod, ledger.config, ledger.policies)
    except HamiError as error:
        problem = str(error)
    bound = ledger.bound_pods.get(pod.uid)
    reservation = ledger.reservations.get(pod.uid)

    def answer(
        state: Literal["bound", "reserved", "pending", "asks-for-no-card", "invalid-request"], sentence: str
    ) -> ExplainAnswer:
        held = holdings.read(pod, ledger.config)
        shapes, slots = (
            (reservation.shapes, reservation.slots) if reservation is not None else (held.shapes, held.slots)
        )
        return ExplainAnswer(
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            uid=pod.uid,
            state=state,
            sentence=sentence,
            node=bound.node if bound is not None else reservation.node if reservation is not None else "",
            slices=[
                HeldSlice(
                    container=shape.name,
                    card_id=held_slice.card_id,
                    vendor=held_slice.vendor,
                    memory_mib=held_slice.memory_mib,
                    cores_percent=held_slice.cores_percent,
                )
                for shape, slot in zip(shapes, slots, strict=False)
                for held_slice in slot
            ],
        )

    if bound is not None:
        note = f"; its annotation cannot be read: {bound.problem}" if bound.problem else ""
        return answer("bound", f"bound to node {bound.node}{note}")
    if reservation is not None:
        return answer("reserved", f"cards on node {reservation.node} are reserved; the bind is awaited")
    if request is None:
        return answer("invalid-request", problem)
    if not request.asks_for_cards:
        return answer("asks-for-no-card", "the pod asks for no card: it is placed without this scheduler")
    verdicts = ledger.cluster.explain(engine_values.pod_ask(request))
    return _verdicts(answer("pending", ""), verdicts, max(1, min(asked.limit, NODES_MAX)))


def _verdicts(answer: ExplainAnswer, verdicts: list[engine.NodeVerdict], limit: int) -> ExplainAnswer:
    fitting = [verdict for verdict in verdicts if verdict.fits]
    reasons: dict[str, int] = {}
    for verdict in verdicts:
        if not verdict.fits:
            reasons[verdict.reason] = reasons.get(verdict.reason, 0) + 1
    shown = sorted(verdicts, key=lambda verdict: (not verdict.fits, verdict.node))[:limit]
    counted = ", ".join(
        f"{count} {reason}" for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    )
    if fitting:
        sentence = f"fits on {len(fitting)} of {len(verdicts)} nodes; kube-scheduler decides when it tries next"
    else:
        sentence = f"fits on none of {len(verdicts)} nodes: {counted or 'no node has registered cards'}"
    return msgspec.structs.replace(
        answer,
        sentence=sentence,
        nodes_total=len(verdicts),
        nodes_fitting=len(fitting),
        reasons=reasons,
        nodes=[_node_explanation(verdict) for verdict in shown],
    )


def _node_explanation(verdict: engine.NodeVerdict) -> NodeExplanation:
    return NodeExplanation(
        node=verdict.node,
        fits=verdict.fits,
        never=verdict.never,
        reason=verdict.reason,
        score=verdict.score,
        container=verdict.container or "",
        cards=[
            CardExplanation(
                card_id=card.card_id,
                fits=card.code is None,
                code=card.code or "",
                sentence=_SENTENCES.get(card.code or "", ""),
                asked=card.asked,
                used=card.used,
                total=card.total,
            )
            for card in verdict.cards
        ],
        notes=verdict.notes,
    )


def what_if(ledger: Ledger, asked: WhatIfQuestion) -> WhatIfAnswer:
    """Places the pods on a copy; the present state stays as it is."""
    copy = ledger.cluster.copy()
    return WhatIfAnswer(pods=list(_placements(copy, ledger, asked)))


def _placements(copy: engine.Cluster, ledger: Ledger, asked: WhatIfQuestion) -> Iterable[WhatIfPlacement]:
    for position, pod in enumerate(asked.pods[:PODS_MAX]):
        named = WhatIfPlacement(namespace=pod.metadata.namespace, name=pod.metadata.name)
        try:
            request = requests.pod_request(pod, ledger.config, ledger.policies)
        except HamiError as error:
            yield msgspec.structs.replace(named, problem=str(error))
            continue
        request = msgspec.structs.replace(request, uid=request.uid or f"what-if-{position}")
        placed = copy.reserve(engine_values.pod_ask(request), asked.nodes)
        if isinstance(placed, engine.Rejection):
            yield msgspec.structs.replace(named, reasons=dict(placed.tally()))
            continue
        yield msgspec.structs.replace(
            named,
            node=placed.node,
            slices=[
                HeldSlice(
                    container=container.name,
                    card_id=given.card_id,
                    vendor=given.vendor,
                    memory_mib=given.memory_mib,
                    cores_percent=given.cores_percent,
                )
                for container, slot in zip(request.containers, placed.containers, strict=True)
                for given in slot
            ],
        )
