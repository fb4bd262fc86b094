"""What the monitor counts about itself as it happens; the rest of the catalogue is served from the last sample."""

from __future__ import annotations

from typing import Final

from hami_chassis.metrics import counter, histogram
from prometheus_client import CollectorRegistry

from hami_monitor.core import catalogue

_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class MonitorMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.sample_seconds = histogram(catalogue.SAMPLE_SECONDS, registry, _BUCKETS)
        self.driver_failures = counter(catalogue.DRIVER_FAILURES, registry)
        self.words_written = counter(catalogue.WORDS_WRITTEN, registry)
        self.write_failures = counter(catalogue.WRITE_FAILURES, registry)
        self.implausible = counter(catalogue.IMPLAUSIBLE, registry)
