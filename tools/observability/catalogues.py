"""The metrics of all services, from their own catalogues."""

from __future__ import annotations

from typing import Final, NamedTuple

import hami_chassis.metrics
import hami_monitor.core.catalogue
import hami_node_agent.metrics
import hami_scheduler.metrics
import hami_scheduler.state_metrics
import hami_webhook.metrics
from hami_model.metric_spec import MetricSpec, Names


class Section(NamedTuple):
    """Metrics that are served together."""

    title: str
    says: str
    specs: tuple[MetricSpec, ...]


class Service(NamedTuple):
    """One service, or what all have in common."""

    name: str
    says: str
    sections: tuple[Section, ...]

    @property
    def specs(self) -> tuple[MetricSpec, ...]:
        return tuple(spec for section in self.sections for spec in section.specs)


def _monitor(names: Names) -> tuple[MetricSpec, ...]:
    return tuple(spec for spec in hami_monitor.core.catalogue.CATALOGUE if spec.names == names)


SERVICES: Final = (
    Service(
        "scheduler",
        "`metrics.per_card=false` leaves out the series of single cards. Series of cards and namespaces, and those "
        "under HAMi's names, come from the replica in charge alone, so that sums over replicas are right; of `nodes`, "
        "`bound_pods`, `reservations` and `rejected_pods` each replica tells what it knows: take the largest.",
        (
            Section("What happened", "", hami_scheduler.metrics.COUNTED),
            Section("What stands in the book", "", hami_scheduler.state_metrics.READ),
            Section(
                "HAMi's names",
                "Only with `metrics.hami_names=true`, for dashboards made for HAMi. Percent and labels are as there; "
                'each carries `zone="vGPU"`. `container_index` is the container\'s position, init containers first.',
                hami_scheduler.state_metrics.HAMI_READ,
            ),
        ),
    ),
    Service("webhook", "", (Section("What happened", "", hami_webhook.metrics.CATALOGUE),)),
    Service("node-agent", "", (Section("What happened", "", hami_node_agent.metrics.CATALOGUE),)),
    Service(
        "monitor",
        "Values of slices and cards are those of the last sample (`sampling.period_seconds`); a scrape reads no file "
        "and asks no driver. Series of a slice end with its container, those of a card with the card.",
        (
            Section("Ours", "What is not known has no series.", _monitor("ours")),
            Section(
                "HAMi's names",
                "With `metrics.hami_names`. Labels and values as HAMi's monitor has them: `_ratio` is a percentage, "
                "and may pass 100 where processes are summed. Init containers have series too, finished pods none, "
                "and what a container wrote in place of a card's id is no label.",
                _monitor("hami"),
            ),
            Section("HAMi's legacy names", "With `metrics.hami_legacy_names` as well.", _monitor("hami-legacy")),
        ),
    ),
    Service(
        "every service",
        "As far as the service uses the bus, the API server, informers, leases and Kubernetes Events.",
        (Section("What happened", "", hami_chassis.metrics.CATALOGUE),),
    ),
)


def all_specs() -> dict[str, MetricSpec]:
    """By name."""
    return {spec.name: spec for service in SERVICES for spec in service.specs}


def series_names(spec: MetricSpec) -> tuple[str, ...]:
    """Under which names its series are stored."""
    if spec.kind == "histogram":
        return (f"{spec.name}_bucket", f"{spec.name}_sum", f"{spec.name}_count")
    return (spec.name,)
