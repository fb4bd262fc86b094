"""Every metric of the webhook."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class WebhookMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.reviews = Counter(
            "hami_webhook_reviews_total",
            "Reviews by verdict (changed, unchanged, rejected) and by the kind of a rejection.",
            ["verdict", "reason"],
            registry=registry,
        )
        self.seconds = Histogram(
            "hami_webhook_review_seconds",
            "Time from a complete request to its answer.",
            buckets=(0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25),
            registry=registry,
        )
        self.quota_checks = Counter(
            "hami_webhook_quota_checks_total",
            "Pods that ask for cards, by whether their namespace's quota was checked or is unknown.",
            ["result"],
            registry=registry,
        )
        self.quota_known = Gauge(
            "hami_webhook_quota_known",
            "1 once pods and quotas have been listed; before that the quota check is skipped.",
            registry=registry,
        )
        self.oversized = Counter(
            "hami_webhook_oversized_bodies_total", "Requests refused because of their size.", registry=registry
        )
