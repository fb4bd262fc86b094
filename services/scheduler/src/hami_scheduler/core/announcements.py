"""The events that tell the world what the ledger did. Values only; who publishes them is an adapter."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import hami_engine as engine
from hami_model import events, kube
from hami_model.lifecycle import ExpiryCause

from hami_scheduler.core import rejections
from hami_scheduler.core.filter import FilterAnswer
from hami_scheduler.core.holdings import Holding
from hami_scheduler.core.records import BoundPod, Reservation


class Announcements:
    """Builds events of one publisher."""

    def __init__(self, source: str) -> None:
        self._source = source

    def of_filter(
        self, pod: kube.Pod, considered: Sequence[str], answer: FilterAnswer, time: datetime
    ) -> list[events.Event]:
        """What a filter call decided; the reservation that it ended comes first. A rejection is told by
        `unschedulable`, once it is known what would help."""
        told: list[events.Event] = []
        if answer.superseded is not None:
            reservation, cause = answer.superseded
            told.append(self.expired(reservation, cause, time))
        if answer.reservation is not None and answer.placement is not None:
            told.append(self.reserved(answer.reservation, time))
            told.append(self._placed(answer.reservation, answer.placement, time))
        elif answer.invalid_request is not None:
            told.append(self.unschedulable(pod, considered, answer, time))
        return told

    def reserved(self, reservation: Reservation, time: datetime) -> events.AllocationReserved:
        return events.AllocationReserved(
            source=self._source,
            time=time,
            allocation_id=reservation.allocation_id,
            pod=_ref(reservation),
            node=reservation.node,
            containers=events.container_shares(reservation.shapes, reservation.slots),
        )

    def expired(
        self, reservation: Reservation, cause: ExpiryCause, time: datetime, reason: str = ""
    ) -> events.AllocationExpired:
        return events.AllocationExpired(
            source=self._source,
            time=time,
            allocation_id=reservation.allocation_id,
            pod=_ref(reservation),
            node=reservation.node,
            containers=events.container_shares(reservation.shapes, reservation.slots),
            cause=cause,
            reason=reason,
        )

    def allocating(self, reservation: Reservation, time: datetime) -> events.AllocationAllocating:
        """Our own Binding succeeded."""
        return events.AllocationAllocating(
            source=self._source,
            time=time,
            allocation_id=reservation.allocation_id,
            pod=_ref(reservation),
            node=reservation.node,
            containers=events.container_shares(reservation.shapes, reservation.slots),
        )

    def seen_allocating(
        self, bound: BoundPod, holding: Holding | None, time: datetime
    ) -> events.AllocationAllocating | None:
        """A pod was found bound. None where nothing names its allocation."""
        if bound.allocation_id is None:
            return None
        return events.AllocationAllocating(
            source=self._source,
            time=time,
            allocation_id=bound.allocation_id,
            pod=_ref(bound),
            node=bound.node,
            containers=_shares(holding),
        )

    def released(
        self, bound: BoundPod, holding: Holding | None, time: datetime, reason: str
    ) -> events.AllocationReleased | None:
        """A bound pod holds nothing any more. None where nothing names its allocation."""
        if bound.allocation_id is None:
            return None
        return events.AllocationReleased(
            source=self._source,
            time=time,
            allocation_id=bound.allocation_id,
            pod=_ref(bound),
            node=bound.node,
            containers=_shares(holding),
            reason=reason,
        )

    def closing(self, last: events.AllocationEvent, time: datetime) -> events.Event:
        """Ends a chain that a reader of the stream would think is open: its pod or reservation is gone."""
        if isinstance(last, events.AllocationReserved):
            return events.AllocationExpired(
                source=self._source,
                time=time,
                allocation_id=last.allocation_id,
                pod=last.pod,
                node=last.node,
                containers=last.containers,
                cause=ExpiryCause.SUPERSEDED,
                reason="no scheduler holds this reservation any more",
            )
        return events.AllocationReleased(
            source=self._source,
            time=time,
            allocation_id=last.allocation_id,
            pod=last.pod,
            node=last.node,
            containers=last.containers,
            reason="gone",
        )

    def _placed(self, reservation: Reservation, placement: engine.Placement, time: datetime) -> events.PlacementPlaced:
        return events.PlacementPlaced(
            source=self._source,
            time=time,
            pod=_ref(reservation),
            allocation_id=reservation.allocation_id,
            node=reservation.node,
            containers=events.container_shares(reservation.shapes, reservation.slots),
            scores=events.best_scores(dict(placement.best_scores)),
            nodes_considered=placement.candidate_nodes,
            nodes_fitting=placement.fitting_nodes,
            reasons=dict(placement.tally()),
            notes=placement.notes,
        )

    def unschedulable(
        self, pod: kube.Pod, considered: Sequence[str], answer: FilterAnswer, time: datetime, advice: str = ""
    ) -> events.PlacementUnschedulable:
        tally = rejections.tally(answer)
        return events.PlacementUnschedulable(
            source=self._source,
            time=time,
            pod=events.PodRef(namespace=pod.metadata.namespace, name=pod.metadata.name, uid=pod.uid),
            nodes_considered=len(considered),
            nodes_never_fitting=answer.never_count,
            reasons=tally,
            reason=rejections.sentence(answer, len(considered)),
            examples=rejections.examples(answer),
            advice=advice,
        )


def _ref(found: Reservation | BoundPod) -> events.PodRef:
    return events.PodRef(namespace=found.namespace, name=found.name, uid=found.uid)


def _shares(holding: Holding | None) -> tuple[events.ContainerShare, ...]:
    return events.container_shares(holding.shapes, holding.slots) if holding is not None else ()
