"""What a reader of the allocation stream lacks, found by comparing the stream's last words with the book.

After an outage that overflowed the outbox, and when a new leader begins, chains may end in the stream that went on in
Kubernetes, or stand open though nobody holds them. Ids are functions of what happened, so telling twice does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from hami_model import events, kube, lifecycle
from hami_model.lifecycle import Phase

from hami_scheduler.core.announcements import Announcements
from hami_scheduler.core.ledger import Ledger
from hami_scheduler.core.records import BoundPod


def missing_events(
    stored: Iterable[events.AllocationEvent],
    ledger: Ledger,
    pod_of: Callable[[str], kube.Pod | None],
    announcements: Announcements,
    now: datetime,
) -> list[events.Event]:
    """`stored`: the last event of every subject of the stream. `pod_of`: the live pod of a UID."""
    last: dict[str, events.AllocationEvent] = {}
    for event in stored:
        known = last.get(event.allocation_id)
        if lifecycle.is_news(known.phase if known is not None else None, event.phase):
            last[event.allocation_id] = event

    def allocating(bound: BoundPod) -> events.Event | None:
        return announcements.seen_allocating(bound, ledger.held_by(bound, pod_of(bound.uid)), now)

    told: list[events.Event | None] = []
    for event in last.values():
        if lifecycle.is_terminal(event.phase) or _goes_on(event, ledger):
            continue
        told.append(announcements.closing(event, now))
    for bound in ledger.bound_pods.values():
        seen = last.get(bound.allocation_id or "")
        if bound.holds_cards and (seen is None or lifecycle.rank(seen.phase) < lifecycle.rank(Phase.ALLOCATING)):
            told.append(allocating(bound))
    return [event for event in told if event is not None]


def _goes_on(event: events.AllocationEvent, ledger: Ledger) -> bool:
    """Whether somebody still holds what the event tells of."""
    bound = ledger.bound_pods.get(event.pod.uid)
    if bound is not None and bound.allocation_id == event.allocation_id:
        return True
    reservation = ledger.reservations.get(event.pod.uid)
    return (
        event.phase is Phase.RESERVED and reservation is not None and reservation.allocation_id == event.allocation_id
    )
