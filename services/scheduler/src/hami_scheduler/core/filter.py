"""The filter decision: which node gets the pod, or why none does."""

from __future__ import annotations

from datetime import datetime

import hami_engine as engine
import msgspec
from hami_model import allocations, cards, kube, requests
from hami_model.errors import InvalidRequestError, MalformedAnnotation
from hami_model.ids import AllocationId, NodeName
from hami_model.lifecycle import ExpiryCause

from hami_scheduler.core.ledger import Ledger
from hami_scheduler.core.records import Reservation


class FilterAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a filter call decided and did to the ledger."""

    node_names: list[str] | None = None
    """The chosen node alone; the names as given when the pod asks for no card; None when nothing fits."""
    error: str | None = None
    """The call as a whole failed."""
    reservation: Reservation | None = None
    annotations: dict[str, str] = {}
    """What the pod would carry under `--annotate-at=filter`; the Binding carries the same."""
    labels: dict[str, str] = {}
    superseded: tuple[Reservation, ExpiryCause] | None = None
    placement: engine.Placement | None = None
    rejection: engine.Rejection | None = None
    invalid_request: InvalidRequestError | None = None
    refused_nodes: tuple[str, ...] = ()
    """All that were asked about, when the request is invalid."""

    @property
    def failed_nodes(self) -> dict[str, str]:
        """By node: why not now."""
        return self.rejection.not_now() if self.rejection is not None else {}

    @property
    def unresolvable_nodes(self) -> dict[str, str]:
        """By node: why never, as the cluster stands."""
        if self.invalid_request is not None:
            return dict.fromkeys(self.refused_nodes, f"InvalidRequest: {self.invalid_request}")
        return self.rejection.never() if self.rejection is not None else {}

    @property
    def never_count(self) -> int:
        """How many nodes the pod never fits on."""
        return self.rejection.never_nodes if self.rejection is not None else len(set(self.refused_nodes))

    @property
    def passes_through(self) -> bool:
        """The pod asks for no card."""
        return self.node_names is not None and self.reservation is None

    @property
    def scores(self) -> dict[str, float]:
        return self.placement.node_scores() if self.placement is not None else {}


def filter_pod(
    ledger: Ledger, pod: kube.Pod, node_names: list[str], *, allocation_id: AllocationId, now: datetime
) -> FilterAnswer:
    """Places a pod on one of the named nodes and books it as reserved, or says for each node why not.

    Idempotent per pod: an earlier reservation of the same pod is given back first.
    """
    if pod.assigned_node or pod.uid in ledger.bound_pods:
        node = pod.assigned_node or ledger.bound_pods[pod.uid].node
        return FilterAnswer(error=f"pod {pod.key} is bound to node {node} already: it cannot be placed again")
    try:
        request = requests.pod_request(pod, ledger.config, ledger.policies)
    except InvalidRequestError as error:
        return _refused(ledger, pod, node_names, error)
    except MalformedAnnotation as error:
        return FilterAnswer(error=str(error), superseded=_give_back(ledger, pod))
    if not request.asks_for_cards:
        return FilterAnswer(node_names=node_names, superseded=_give_back(ledger, pod))

    answer, superseded = ledger.reserve(pod, request, node_names, allocation_id=allocation_id, now=now)
    if isinstance(answer, engine.Rejection):
        return FilterAnswer(superseded=superseded, rejection=answer)
    reservation = ledger.reservations[pod.uid]
    assigned = allocations.assignment(
        NodeName(reservation.node),
        cards.by_vendor(reservation.slots),
        ledger.config,
        allocation_id=reservation.allocation_id,
        now_seconds=int(now.timestamp()),
        soft_split_modes=reservation.soft_split_modes,
    )
    return FilterAnswer(
        node_names=[answer.node],
        reservation=reservation,
        annotations=assigned.annotations,
        labels=assigned.labels,
        superseded=superseded,
        placement=answer,
    )


def _refused(ledger: Ledger, pod: kube.Pod, node_names: list[str], error: InvalidRequestError) -> FilterAnswer:
    return FilterAnswer(
        refused_nodes=tuple(node_names),
        superseded=_give_back(ledger, pod),
        invalid_request=error,
    )


def _give_back(ledger: Ledger, pod: kube.Pod) -> tuple[Reservation, ExpiryCause] | None:
    reservation = ledger.expire(pod.uid, ExpiryCause.SUPERSEDED)
    return (reservation, ExpiryCause.SUPERSEDED) if reservation is not None else None
