"""The metrics of the chassis, declared once; every service registers them in its own registry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hami_model.metric_spec import Kind, MetricSpec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

disable_created_metrics()  # type: ignore[no-untyped-call]  # else each counter has a series that says when it began


def counter(spec: MetricSpec, registry: CollectorRegistry) -> Counter:
    return Counter(spec.name, spec.help, spec.labels, registry=registry)


def gauge(spec: MetricSpec, registry: CollectorRegistry) -> Gauge:
    return Gauge(spec.name, spec.help, spec.labels, registry=registry)


def histogram(spec: MetricSpec, registry: CollectorRegistry, buckets: Sequence[float]) -> Histogram:
    """`buckets`: upper bounds, in the unit of the metric."""
    return Histogram(spec.name, spec.help, spec.labels, buckets=buckets, registry=registry)


def _spec(name: str, kind: Kind, text: str, *labels: str) -> MetricSpec:
    return MetricSpec(name=name, kind=kind, help=text, labels=labels)


KUBE_REQUESTS: Final = _spec(
    "hami_kube_requests_total",
    "counter",
    "Requests to the API server by their end (an HTTP status, or error).",
    "verb",
    "resource",
    "code",
)
INFORMER_OBJECTS: Final = _spec("hami_informer_objects", "gauge", "Objects an informer holds.", "resource")
INFORMER_RELISTS: Final = _spec(
    "hami_informer_relists_total", "counter", "Complete lists an informer took, by cause.", "resource", "cause"
)
INFORMER_UNDECODABLE: Final = _spec(
    "hami_informer_undecodable_total", "counter", "Objects that an informer could not read.", "resource"
)
LEADER: Final = _spec("hami_leader", "gauge", "1 while this process leads.", "lease")
BUS_CONNECTED: Final = _spec("hami_bus_connected", "gauge", "1 while NATS is connected.")
BUS_PUBLISHED: Final = _spec("hami_bus_published_total", "counter", "Events that NATS acknowledged.")
BUS_RETRIED: Final = _spec("hami_bus_publish_retries_total", "counter", "Publications that had to be tried again.")
BUS_DROPPED: Final = _spec("hami_bus_dropped_total", "counter", "Events given up, by cause.", "cause")
BUS_OUTBOX: Final = _spec("hami_bus_outbox_events", "gauge", "Events not yet acknowledged.")
BUS_CONSUMED: Final = _spec(
    "hami_bus_consumed_total",
    "counter",
    "Messages of durable consumers by their end (done, duplicate, again, refused).",
    "consumer",
    "end",
)
BUS_SLOW: Final = _spec("hami_bus_slow_subscriptions_total", "counter", "Messages a subscription lost by being slow.")
KUBE_EVENTS: Final = _spec(
    "hami_kube_events_total", "counter", "Kubernetes Events by their end (written, merged, dropped, failed).", "end"
)

CATALOGUE: Final[tuple[MetricSpec, ...]] = tuple(
    value for value in list(vars().values()) if isinstance(value, MetricSpec)
)
"""In the order of this file."""


class ChassisMetrics:
    """Counters and gauges of the bus, the Kubernetes client, informers, leader election and Events."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.kube_requests = counter(KUBE_REQUESTS, registry)
        self.informer_objects = gauge(INFORMER_OBJECTS, registry)
        self.informer_relists = counter(INFORMER_RELISTS, registry)
        self.informer_undecodable = counter(INFORMER_UNDECODABLE, registry)
        self.leader = gauge(LEADER, registry)
        self.bus_connected = gauge(BUS_CONNECTED, registry)
        self.bus_published = counter(BUS_PUBLISHED, registry)
        self.bus_retried = counter(BUS_RETRIED, registry)
        self.bus_dropped = counter(BUS_DROPPED, registry)
        self.bus_outbox = gauge(BUS_OUTBOX, registry)
        self.bus_consumed = counter(BUS_CONSUMED, registry)
        self.bus_slow_subscriptions = counter(BUS_SLOW, registry)
        self.kube_events = counter(KUBE_EVENTS, registry)
