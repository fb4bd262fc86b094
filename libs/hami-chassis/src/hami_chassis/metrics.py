"""The metrics of the chassis, declared once; every service registers them in its own registry."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class ChassisMetrics:
    """Counters and gauges of the bus, the Kubernetes client, informers, leader election and Events."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.kube_requests = Counter(
            "hami_kube_requests_total",
            "Requests to the API server by their end (an HTTP status, or error).",
            ["verb", "resource", "code"],
            registry=registry,
        )
        self.informer_objects = Gauge(
            "hami_informer_objects", "Objects an informer holds.", ["resource"], registry=registry
        )
        self.informer_relists = Counter(
            "hami_informer_relists_total",
            "Complete lists an informer took, by cause.",
            ["resource", "cause"],
            registry=registry,
        )
        self.informer_undecodable = Counter(
            "hami_informer_undecodable_total",
            "Objects that an informer could not read.",
            ["resource"],
            registry=registry,
        )
        self.leader = Gauge("hami_leader", "1 while this process leads.", ["lease"], registry=registry)
        self.bus_connected = Gauge("hami_bus_connected", "1 while NATS is connected.", registry=registry)
        self.bus_published = Counter("hami_bus_published_total", "Events that NATS acknowledged.", registry=registry)
        self.bus_retried = Counter(
            "hami_bus_publish_retries_total", "Publications that had to be tried again.", registry=registry
        )
        self.bus_dropped = Counter("hami_bus_dropped_total", "Events given up, by cause.", ["cause"], registry=registry)
        self.bus_outbox = Gauge("hami_bus_outbox_events", "Events not yet acknowledged.", registry=registry)
        self.bus_consumed = Counter(
            "hami_bus_consumed_total",
            "Messages of durable consumers by their end (done, duplicate, again, refused).",
            ["consumer", "end"],
            registry=registry,
        )
        self.bus_slow_subscriptions = Counter(
            "hami_bus_slow_subscriptions_total", "Messages a subscription lost by being slow.", registry=registry
        )
        self.kube_events = Counter(
            "hami_kube_events_total",
            "Kubernetes Events by their end (written, merged, dropped, failed).",
            ["end"],
            registry=registry,
        )
