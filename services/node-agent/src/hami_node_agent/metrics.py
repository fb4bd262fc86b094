"""Every metric of the node-agent, declared once: the exposition, `docs/metrics.md` and tests read the catalogue."""

from __future__ import annotations

from typing import Final

from hami_chassis.metrics import counter, gauge, histogram
from hami_model.metric_spec import MetricSpec
from prometheus_client import CollectorRegistry

_HANDOVER_RESULTS: Final = ("handed-over", "repeated", "failed", "verified", "unverified")
_CALLS: Final = ("Allocate", "GetPreferredAllocation", "PreStartContainer")
_CALL_BUCKETS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.05, 0.25, 1, 5)

CARDS: Final = MetricSpec(name="hami_node_agent_cards", help="Cards of the node by health.", labels=("health",))
SLICES: Final = MetricSpec(
    name="hami_node_agent_slices",
    help="Slices handed to pods of the node that are not gone, by what holds them: preload, mig, driver, none.",
    labels=("enforced_by",),
)
HANDOVERS: Final = MetricSpec(
    name="hami_node_agent_handovers_total",
    kind="counter",
    help=f"Containers by what came of their hand-over: {', '.join(_HANDOVER_RESULTS)}; the last two only of those "
    "answered under the lock hand-off, when they start.",
    labels=("result",),
)
CALLS: Final = MetricSpec(
    name="hami_node_agent_kubelet_call_seconds",
    kind="histogram",
    help="Time from a call of kubelet to its answer, API calls included.",
    labels=("call", "result"),
)
CROSS_CHECK_MISMATCHES: Final = MetricSpec(
    name="hami_node_agent_cross_check_mismatches_total",
    kind="counter",
    help="Containers that kubelet's checkpoint and its PodResources service attribute to different pods.",
)
REGISTRATIONS: Final = MetricSpec(
    name="hami_node_agent_kubelet_registrations_total",
    kind="counter",
    help="Registrations with kubelet by result.",
    labels=("result",),
)
REGISTERED: Final = MetricSpec(name="hami_node_agent_kubelet_registered", help="1 while kubelet watches our devices.")
NODE_PATCHES: Final = MetricSpec(
    name="hami_node_agent_node_patches_total",
    kind="counter",
    help="Writes of the register annotation by result.",
    labels=("result",),
)
POD_PATCHES: Final = MetricSpec(
    name="hami_node_agent_pod_patches_total",
    kind="counter",
    help="Writes of a hand-over's outcome on a pod by result.",
    labels=("result",),
)
HEALTH_CHANGES: Final = MetricSpec(
    name="hami_node_agent_health_changes_total",
    kind="counter",
    help="Cards that became unhealthy or healthy, by cause.",
    labels=("cause",),
)
LOCKS_RELEASED: Final = MetricSpec(
    name="hami_node_agent_node_locks_released_total", kind="counter", help="Node locks taken away for a pod."
)

CATALOGUE: Final[tuple[MetricSpec, ...]] = tuple(
    value for value in list(vars().values()) if isinstance(value, MetricSpec)
)
"""In the order of this file."""


class NodeAgentMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.cards = gauge(CARDS, registry)
        self.slices = gauge(SLICES, registry)
        # Each series from 0: a first failure is an increase then.
        self.handovers = counter(HANDOVERS, registry)
        for result in _HANDOVER_RESULTS:
            self.handovers.labels(result)
        self.calls = histogram(CALLS, registry, _CALL_BUCKETS)
        for call in _CALLS:
            self.calls.labels(call, "ok")
        self.cross_check_mismatches = counter(CROSS_CHECK_MISMATCHES, registry)
        self.registrations = counter(REGISTRATIONS, registry)
        self.registered = gauge(REGISTERED, registry)
        self.node_patches = counter(NODE_PATCHES, registry)
        self.pod_patches = counter(POD_PATCHES, registry)
        self.health_changes = counter(HEALTH_CHANGES, registry)
        self.locks_released = counter(LOCKS_RELEASED, registry)
