"""Every metric of the webhook, declared once."""

from __future__ import annotations

from typing import Final

from hami_chassis.metrics import counter, gauge, histogram
from hami_model.metric_spec import MetricSpec
from prometheus_client import CollectorRegistry

_BUCKETS: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25)

REVIEWS: Final = MetricSpec(
    name="hami_webhook_reviews_total",
    kind="counter",
    help="Reviews by verdict (changed, unchanged, rejected) and by the kind of a rejection.",
    labels=("verdict", "reason"),
)
REVIEW_SECONDS: Final = MetricSpec(
    name="hami_webhook_review_seconds", kind="histogram", help="Time from a complete request to its answer."
)
QUOTA_CHECKS: Final = MetricSpec(
    name="hami_webhook_quota_checks_total",
    kind="counter",
    help="Pods that ask for cards, by whether their namespace's quota was checked or is unknown.",
    labels=("result",),
)
QUOTA_KNOWN: Final = MetricSpec(
    name="hami_webhook_quota_known",
    help="1 once pods and quotas have been listed; before that the quota check is skipped.",
)
OVERSIZED: Final = MetricSpec(
    name="hami_webhook_oversized_bodies_total", kind="counter", help="Requests refused because of their size."
)

CATALOGUE: Final = (REVIEWS, REVIEW_SECONDS, QUOTA_CHECKS, QUOTA_KNOWN, OVERSIZED)


class WebhookMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.reviews = counter(REVIEWS, registry)
        self.seconds = histogram(REVIEW_SECONDS, registry, _BUCKETS)
        self.quota_checks = counter(QUOTA_CHECKS, registry)
        self.quota_known = gauge(QUOTA_KNOWN, registry)
        self.oversized = counter(OVERSIZED, registry)
