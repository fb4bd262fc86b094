"""What the monitor counts about itself as it happens; the rest of the catalogue is served from the last sample."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from hami_monitor.core import catalogue

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class MonitorMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.sample_seconds = Histogram(
            catalogue.SAMPLE_SECONDS.name, catalogue.SAMPLE_SECONDS.help, buckets=_BUCKETS, registry=registry
        )
        self.driver_failures = Counter(
            catalogue.DRIVER_FAILURES.name,
            catalogue.DRIVER_FAILURES.help,
            catalogue.DRIVER_FAILURES.labels,
            registry=registry,
        )
        self.implausible = Counter(catalogue.IMPLAUSIBLE.name, catalogue.IMPLAUSIBLE.help, registry=registry)
