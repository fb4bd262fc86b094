"""Why a pod is where it is, or why it waits: node by node, card by card, with the smallest change that would help.

The look at the engine may take a while in a large cluster and needs no ledger: it can run beside the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Literal

import hami_engine as engine
import msgspec
from hami_model import kube, requests
from hami_model.errors import HamiError
from hami_model.requests import PodRequest

from hami_scheduler.core import engine_values, holdings
from hami_scheduler.core.ledger import Ledger
from hami_scheduler.core.queries import NODES_MAX, HeldSlice, Question

SEARCHED_MAX: Final = 64
_SENTENCES: Final = {reason.code: reason.sentence for reason in engine.list_reasons()}
State = Literal["bound", "reserved", "pending", "asks-for-no-card", "invalid-request"]


class ExplainQuestion(Question, frozen=True):
    namespace: str
    name: str
    limit: int = 50
    """Nodes in the answer, at most 100; those where the pod fits come first, then those that miss least."""
    searched: int = 16
    """On so many nodes, those that miss least, the smallest change is looked for; at most 64."""


class QuotaNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """What the pod would hold of its namespace's quota up to and with this card. A limit of null: there is none."""

    needed_memory_mib: int
    needed_cores_percent: int
    used_memory_mib: int
    used_cores_percent: int
    memory_limit_mib: int | None
    cores_limit_percent: int | None


class CardExplanation(msgspec.Struct, frozen=True, kw_only=True):
    card_id: str
    fits: bool
    code: str = ""
    """Of the first check that failed."""
    codes: list[str] = []
    """Of every check that failed."""
    sentence: str = ""
    asked: int | None = None
    """This and the next two: in the unit of `code`, of the card or of the quota."""
    used: int | None = None
    total: int | None = None
    needed_memory_mib: int = 0
    used_memory_mib: int = 0
    free_memory_mib: int = 0
    memory_mib: int = 0
    needed_cores_percent: int = 0
    used_cores_percent: int = 0
    free_cores_percent: int = 0
    cores_percent: int = 0
    used_slots: int = 0
    free_slots: int = 0
    slots: int = 0
    quota: QuotaNumbers | None = None


class NumberChange(msgspec.Struct, frozen=True, kw_only=True):
    now: int
    needed: int
    """For an ask at most this, for a quota at least."""


class FaultyCard(msgspec.Struct, frozen=True, kw_only=True):
    card_id: str
    faults: list[Literal["unhealthy", "cordoned"]]


class NamedPod(msgspec.Struct, frozen=True, kw_only=True):
    uid: str
    namespace: str = ""
    """Empty where only the UID is known."""
    name: str = ""


class ChangeExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was tried: the pod then fits, and with one unit less of any part of it does not."""

    kind: Literal["restore-cards", "raise-quota", "lower-ask", "end-pods"]
    node: str
    cards: list[str]
    """Those the pod would get."""
    sentence: str
    cost: int
    """In millionths; smaller is better."""
    faulty_cards: list[FaultyCard] = []
    namespace: str = ""
    vendor: str = ""
    container: str = ""
    numbers: dict[str, NumberChange] = {}
    """By memory_mib, memory_percent, cores_percent or count."""
    pods: list[NamedPod] = []


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
    searched: bool = False
    """Whether the smallest change was looked for on this node."""
    changes: list[ChangeExplanation] = []
    """Of each kind that suffices the smallest; the smallest of all first."""


class CeilingExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """A number of the request beyond what the largest card, or for `count` the largest node, has."""

    container: str
    vendor: str
    field: Literal["memory_mib", "cores_percent", "count"]
    asked: int
    largest: int
    sentence: str


class ExplainAnswer(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    uid: str
    state: State
    sentence: str
    node: str = ""
    """Where it is bound or reserved."""
    slices: list[HeldSlice] = []
    nodes_total: int = 0
    nodes_fitting: int = 0
    nodes_never_fitting: int = 0
    nodes_searched: int = 0
    """On so many nodes, those that miss least, the smallest change was looked for."""
    reasons: dict[str, int] = {}
    """Reason of a node -> number of nodes."""
    change: ChangeExplanation | None = None
    """The smallest change of the nodes it was looked for on; null where no change of one kind suffices."""
    ceilings: list[CeilingExplanation] = []
    nodes: list[NodeExplanation] = []


class Waiting(msgspec.Struct, frozen=True):
    """A pod that waits, and what is said of it before anybody looked."""

    known: ExplainAnswer
    ask: engine.PodAsk
    cluster: engine.Cluster
    limit: int
    searched: int

    def look(self) -> engine.Explanation:
        """May run in any thread."""
        return self.cluster.explain(self.ask, limit=self.limit, searched=self.searched)

    def answer(self, told: engine.Explanation, pod_of: Callable[[str], NamedPod]) -> ExplainAnswer:
        """`pod_of`: a pod by its UID."""
        nodes = told.nodes
        change = told.change
        offered = [*(found for node in nodes for found in node.changes), *([change] if change is not None else [])]
        pods = {uid: pod_of(uid) for found in offered for uid in found.pods}
        names = names_of(pods.values())
        return msgspec.structs.replace(
            self.known,
            sentence=told.sentence(names),
            nodes_total=told.candidate_nodes,
            nodes_fitting=told.fitting_nodes,
            nodes_never_fitting=told.never_nodes,
            nodes_searched=told.searched_nodes,
            reasons=told.texts,
            change=_change(change, pods, names) if change is not None else None,
            ceilings=[
                CeilingExplanation(
                    container=found.container,
                    vendor=found.vendor,
                    field=found.field,
                    asked=found.asked,
                    largest=found.largest,
                    sentence=found.sentence,
                )
                for found in told.ceilings
            ],
            nodes=[_node(verdict, pods, names) for verdict in nodes],
        )


def prepare(ledger: Ledger, pod: kube.Pod, asked: ExplainQuestion) -> ExplainAnswer | Waiting:
    """The answer, or what is to be looked for where the pod waits."""
    request: PodRequest | None = None
    problem = ""
    try:
        request = requests.pod_request(pod, ledger.config, ledger.policies)
    except HamiError as error:
        problem = str(error)
    bound = ledger.bound_pods.get(pod.uid)
    reservation = ledger.reservations.get(pod.uid)
    if bound is not None:
        note = f"; its annotation cannot be read: {bound.problem}" if bound.problem else ""
        return _held(ledger, pod, "bound", f"bound to node {bound.node}{note}", bound.node)
    if reservation is not None:
        sentence = f"cards on node {reservation.node} are reserved; the bind is awaited"
        return _held(ledger, pod, "reserved", sentence, reservation.node)
    if request is None:
        return _held(ledger, pod, "invalid-request", problem)
    if not request.asks_for_cards:
        sentence = "the pod asks for no card: it is placed without this scheduler"
        return _held(ledger, pod, "asks-for-no-card", sentence)
    return Waiting(
        _held(ledger, pod, "pending", ""),
        engine_values.pod_ask(request),
        ledger.cluster,
        max(1, min(asked.limit, NODES_MAX)),
        max(0, min(asked.searched, SEARCHED_MAX)),
    )


def explain(ledger: Ledger, pod: kube.Pod, asked: ExplainQuestion) -> ExplainAnswer:
    """The whole answer at once."""
    found = prepare(ledger, pod, asked)
    return found.answer(found.look(), lambda uid: named_pod(ledger, uid)) if isinstance(found, Waiting) else found


def named_pod(ledger: Ledger, uid: str) -> NamedPod:
    known = ledger.bound_pods.get(uid) or ledger.reservations.get(uid)
    return NamedPod(uid=uid, namespace=known.namespace, name=known.name) if known is not None else NamedPod(uid=uid)


def names_of(pods: Iterable[NamedPod]) -> dict[str, str]:
    """By UID, the names that users know pods by."""
    return {pod.uid: f"{pod.namespace}/{pod.name}" for pod in pods if pod.name}


def _held(ledger: Ledger, pod: kube.Pod, state: State, sentence: str, node: str = "") -> ExplainAnswer:
    bound = ledger.bound_pods.get(pod.uid)
    held = ledger.reservations.get(pod.uid) or (bound.held if bound is not None else None)
    if held is None:
        held = holdings.read(pod, ledger.config)
    return ExplainAnswer(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.uid,
        state=state,
        sentence=sentence,
        node=node,
        slices=[
            HeldSlice(
                container=shape.name,
                card_id=held_slice.card_id,
                vendor=held_slice.vendor,
                memory_mib=held_slice.memory_mib,
                cores_percent=held_slice.cores_percent,
                profile=held_slice.profile,
                placement=held_slice.placement,
            )
            for shape, slot in zip(held.shapes, held.slots, strict=False)
            for held_slice in slot
        ],
    )


def _node(verdict: engine.NodeVerdict, pods: dict[str, NamedPod], names: dict[str, str]) -> NodeExplanation:
    return NodeExplanation(
        node=verdict.node,
        fits=verdict.fits,
        never=verdict.never,
        reason=verdict.reason,
        score=verdict.score,
        container=verdict.container or "",
        cards=[_card(card) for card in verdict.cards],
        notes=verdict.notes,
        searched=verdict.searched,
        changes=[_change(found, pods, names) for found in verdict.changes],
    )


def _card(card: engine.CardVerdict) -> CardExplanation:
    quota = card.quota
    return CardExplanation(
        card_id=card.card_id,
        fits=card.code is None,
        code=card.code or "",
        codes=card.codes,
        sentence=_SENTENCES.get(card.code or "", ""),
        asked=card.asked,
        used=card.used,
        total=card.total,
        needed_memory_mib=card.needed_memory_mib,
        used_memory_mib=card.used_memory_mib,
        free_memory_mib=card.memory_mib - card.used_memory_mib,
        memory_mib=card.memory_mib,
        needed_cores_percent=card.needed_cores_percent,
        used_cores_percent=card.used_cores_percent,
        free_cores_percent=card.cores_percent - card.used_cores_percent,
        cores_percent=card.cores_percent,
        used_slots=card.used_slots,
        free_slots=card.slots - card.used_slots,
        slots=card.slots,
        quota=QuotaNumbers(
            needed_memory_mib=quota.needed_memory_mib,
            needed_cores_percent=quota.needed_cores_percent,
            used_memory_mib=quota.used_memory_mib,
            used_cores_percent=quota.used_cores_percent,
            memory_limit_mib=quota.memory_limit_mib,
            cores_limit_percent=quota.cores_limit_percent,
        )
        if quota is not None
        else None,
    )


def _change(found: engine.Change, pods: dict[str, NamedPod], names: dict[str, str]) -> ChangeExplanation:
    return ChangeExplanation(
        kind=found.kind,
        node=found.node,
        cards=found.cards,
        sentence=found.sentence(names),
        cost=found.cost,
        faulty_cards=[FaultyCard(card_id=card_id, faults=faults) for card_id, faults in found.faulty_cards],
        namespace=found.namespace,
        vendor=found.vendor,
        container=found.container,
        numbers={word: NumberChange(now=now, needed=needed) for word, (now, needed) in found.numbers.items()},
        pods=[pods[uid] for uid in found.pods],
    )
