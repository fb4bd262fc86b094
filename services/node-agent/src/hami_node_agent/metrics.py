"""Every metric of the node-agent."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class NodeAgentMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.cards = Gauge("hami_node_agent_cards", "Cards of the node by health.", ["health"], registry=registry)
        self.handovers = Counter(
            "hami_node_agent_handovers_total",
            "Containers by what came of their hand-over: handed-over, repeated, failed, verified, unverified.",
            ["result"],
            registry=registry,
        )
        self.calls = Histogram(
            "hami_node_agent_kubelet_call_seconds",
            "Time from a call of kubelet to its answer, API calls included.",
            ["call", "result"],
            buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.05, 0.25, 1, 5),
            registry=registry,
        )
        self.cross_check_mismatches = Counter(
            "hami_node_agent_cross_check_mismatches_total",
            "Containers that kubelet's checkpoint and its PodResources service attribute to different pods.",
            registry=registry,
        )
        self.registrations = Counter(
            "hami_node_agent_kubelet_registrations_total", "Registrations with kubelet by result.", ["result"],
            registry=registry,
        )  # fmt: skip
        self.registered = Gauge(
            "hami_node_agent_kubelet_registered", "1 while kubelet watches our devices.", registry=registry
        )
        self.node_patches = Counter(
            "hami_node_agent_node_patches_total", "Writes of the register annotation by result.", ["result"],
            registry=registry,
        )  # fmt: skip
        self.pod_patches = Counter(
            "hami_node_agent_pod_patches_total", "Writes of a hand-over's outcome on a pod by result.", ["result"],
            registry=registry,
        )  # fmt: skip
        self.health_changes = Counter(
            "hami_node_agent_health_changes_total", "Cards that became unhealthy or healthy, by cause.", ["cause"],
            registry=registry,
        )  # fmt: skip
        self.locks_released = Counter(
            "hami_node_agent_node_locks_released_total", "Node locks taken away for a pod.", registry=registry
        )
