"""What a running scheduler may be asked about its state. Each answer is bounded: it fits one NATS message."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from hami_model.cards import MigPlacement

from hami_scheduler.core.ledger import Ledger

NODES_MAX: Final = 100
PODS_MAX: Final = 500


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is misspelt in a question is refused."""


class StateQuestion(Question, frozen=True):
    node: str = ""
    """Only this node; empty: all, page by page."""
    after: str = ""
    """Nodes whose names come after this one: the last of the page before."""
    limit: int = 50
    """Nodes in one answer, at most 100."""


class HeldSlice(msgspec.Struct, frozen=True, kw_only=True):
    container: str
    card_id: str
    vendor: str
    memory_mib: int
    cores_percent: int
    profile: str = ""
    """Of a card in MIG mode, with `placement`: the instance."""
    placement: MigPlacement | None = None


class MigInstanceState(msgspec.Struct, frozen=True, kw_only=True):
    profile: str
    placement: MigPlacement


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
    mode: str = ""
    instances: list[MigInstanceState] = []
    """Of a card in MIG mode: those in use, in the order of their places."""


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
            mode=card.mode,
            instances=[
                MigInstanceState(profile=profile, placement=MigPlacement(start=start, size=size))
                for profile, (start, size) in card.instances
            ],
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
