"""Every metric of the scheduler's own, declared once: code, `docs/metrics.md` and tests read this list."""

from __future__ import annotations

from typing import Final

from hami_chassis.metrics import counter, gauge, histogram
from hami_model.metric_spec import MetricSpec
from prometheus_client import CollectorRegistry

_SECONDS_BUCKETS: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 20.0)

FILTER_SECONDS: Final = MetricSpec(
    name="hami_scheduler_filter_seconds",
    kind="histogram",
    help="Time from a complete /filter request to its answer.",
)
BIND_SECONDS: Final = MetricSpec(
    name="hami_scheduler_bind_seconds",
    kind="histogram",
    help="Time of a /bind call, the API server and a wait for the node lock included.",
)
DECISIONS: Final = MetricSpec(
    name="hami_scheduler_decisions_total",
    kind="counter",
    help="Filter calls by their end: placed, unschedulable, invalid, passed (asks for no card), simulated, error.",
    labels=("end",),
)
REJECTED_NODES: Final = MetricSpec(
    name="hami_scheduler_rejected_nodes_total",
    kind="counter",
    help="Nodes of unschedulable pods by the reason code; a node counts once under each of its reasons.",
    labels=("reason",),
)
BINDS: Final = MetricSpec(
    name="hami_scheduler_binds_total",
    kind="counter",
    help="Bind calls by their end: bound, lock-timeout, refused, away, unknown, gone, not-placed, not-leading.",
    labels=("end",),
)
EXPIRED: Final = MetricSpec(
    name="hami_scheduler_reservations_expired_total",
    kind="counter",
    help="Reservations that ended without a bind, by cause.",
    labels=("cause",),
)
WOKEN: Final = MetricSpec(
    name="hami_scheduler_pods_woken_total",
    kind="counter",
    help="Rejected pods that were woken because capacity grew.",
)
REFUSED: Final = MetricSpec(
    name="hami_scheduler_refused_requests_total",
    kind="counter",
    help="Extender requests that were refused, by verb and HTTP status.",
    labels=("verb", "status"),
)
DRIFT: Final = MetricSpec(
    name="hami_scheduler_ledger_drift_total",
    kind="counter",
    help="Differences that a comparison of the book with the pods found and mended, by kind: missing, surplus.",
    labels=("kind",),
)
CHORES: Final = MetricSpec(
    name="hami_scheduler_chores_total",
    kind="counter",
    help="Writes that nobody waited for, by what and by their end: done, moot, failed.",
    labels=("what", "end"),
)
CHORES_WAITING: Final = MetricSpec(
    name="hami_scheduler_chores_waiting", kind="gauge", help="Writes that are still to be done."
)
IN_CHARGE: Final = MetricSpec(
    name="hami_scheduler_in_charge",
    kind="gauge",
    help="1 while this process answers filter and bind calls: it leads and its state is complete.",
)

COUNTED: Final = (
    FILTER_SECONDS,
    BIND_SECONDS,
    DECISIONS,
    REJECTED_NODES,
    BINDS,
    EXPIRED,
    WOKEN,
    REFUSED,
    DRIFT,
    CHORES,
    CHORES_WAITING,
    IN_CHARGE,
)


class SchedulerMetrics:
    """What is counted as it happens."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.filter_seconds = histogram(FILTER_SECONDS, registry, _SECONDS_BUCKETS)
        self.bind_seconds = histogram(BIND_SECONDS, registry, _SECONDS_BUCKETS)
        self.decisions = counter(DECISIONS, registry)
        self.rejected_nodes = counter(REJECTED_NODES, registry)
        self.binds = counter(BINDS, registry)
        self.expired = counter(EXPIRED, registry)
        self.woken = counter(WOKEN, registry)
        self.refused = counter(REFUSED, registry)
        self.drift = counter(DRIFT, registry)
        self.chores = counter(CHORES, registry)
        self.chores_waiting = gauge(CHORES_WAITING, registry)
        self.in_charge = gauge(IN_CHARGE, registry)
