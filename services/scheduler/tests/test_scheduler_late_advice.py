"""Advice for a pod that no node fitted comes later than the answer: it is for pods that still wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from hami_chassis.clock import SystemClock
from hami_chassis.kube import ObjectReference
from hami_model import device_config, events, kube
from hami_model.ids import AllocationId
from hami_scheduler.bookkeeper import Bookkeeper
from hami_scheduler.core.advice import Case, Looked
from hami_scheduler.core.announcements import Announcements
from hami_scheduler.core.ledger import Ledger
from hami_scheduler.metrics import SchedulerMetrics
from prometheus_client import CollectorRegistry
from scheduler_builders import node, pod

N1 = ["n1"]


class Outside:
    """Keeps what the bookkeeper tells, and advises when it is told to."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.published: list[events.Event | events.UnknownEvent] = []
        self.asked: list[tuple[Case, Callable[[Looked], None]]] = []

    def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> None:  # noqa: ARG002
        self.published.append(events.decode(payload))

    def emit(self, about: ObjectReference, *, message: str, **_more: Any) -> bool:  # noqa: ARG002
        self.notices.append(message)
        return True

    def take(self, case: Case, tell: Callable[[Looked], None]) -> bool:
        self.asked.append((case, tell))
        return True

    def capacity_grew(self, cause: str, *, watched: bool) -> None: ...


@pytest.mark.parametrize("placed_meanwhile", [True, False])
def test_advice_is_told_on_the_pod_only_while_it_waits(placed_meanwhile: bool) -> None:
    outside, clock = Outside(), SystemClock()
    ledger = Ledger(device_config.default_config())
    ledger.upsert_node(msgspec.convert(node("n1"), kube.Node), clock.now())
    bookkeeper = Bookkeeper(
        ledger,
        rejected={},
        announcements=Announcements("/hami/scheduler/s-0"),
        sink=outside,
        prefix="hami",
        board=outside,
        alarm=outside,
        chores=outside,  # type: ignore[arg-type]  # none is asked for
        adviser=outside,
        metrics=SchedulerMetrics(CollectorRegistry()),
        clock=clock,
        new_allocation_id=lambda: AllocationId("id-1"),
        pod_of=lambda _uid: None,
    )
    bookkeeper.begin_term([])
    waiting = msgspec.convert(pod("a", memory=20_000), kube.Pod)
    bookkeeper.tell_filter(waiting, N1, bookkeeper.filter(waiting, N1))
    ((case, tell),) = outside.asked
    told_before = len(outside.notices)
    if placed_meanwhile:
        smaller = msgspec.convert(pod("a", memory=100, uid=waiting.uid), kube.Pod)
        assert bookkeeper.filter(smaller, N1).node_names == N1
    tell(case.look(ledger.cluster))
    assert (len(outside.notices) > told_before) is not placed_meanwhile
    (event,) = outside.published
    assert isinstance(event, events.PlacementUnschedulable)
    assert "20,000 MiB" in event.advice
