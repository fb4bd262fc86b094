"""The metrics: named by Prometheus' rules, documented, and under HAMi's names where wanted."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import msgspec
from hami_model import device_config, kube
from hami_scheduler.core.ledger import Ledger
from hami_scheduler.metrics import COUNTED, SchedulerMetrics
from hami_scheduler.state_metrics import HAMI_READ, READ, HamiNamesCollector, LedgerCollector
from prometheus_client import CollectorRegistry, generate_latest
from scheduler_builders import ALLOCATED_KEY, node, pod, quota

NOW = datetime(2026, 1, 1, tzinfo=UTC)
UNITS = ("_seconds", "_bytes", "_ratio", "_total")
# Plain numbers of things.
COUNTS = ("_nodes", "_pods", "_reservations", "_slots", "_allocated", "_healthy", "_waiting", "_in_charge", "_cards")
# By node, card, namespace, or one of a few words; never by pod.
LABELS = {"node", "card", "vendor", "model", "namespace", "end", "reason", "cause", "verb", "status", "kind", "what"}


def test_our_names_follow_the_rules() -> None:
    for spec in (*COUNTED, *READ):
        assert re.fullmatch(r"hami_scheduler_[a-z_]+", spec.name)
        assert spec.name.endswith(UNITS + COUNTS), spec.name
        assert spec.name.endswith("_total") is (spec.kind == "counter"), spec.name
        assert set(spec.labels) <= LABELS, spec.name
        assert spec.help.endswith("."), spec.name


def test_every_metric_of_the_catalogue_is_registered() -> None:
    registry = CollectorRegistry()
    SchedulerMetrics(registry)
    found = {family.name for family in registry.collect()}
    assert found == {spec.name.removesuffix("_total") for spec in COUNTED}


def book() -> tuple[Ledger, kube.Pod]:
    ledger = Ledger(device_config.default_config())
    ledger.upsert_node(msgspec.convert(node("n1"), kube.Node), NOW)
    ledger.upsert_quota(msgspec.convert(quota("q", "default", gpumem=4000), kube.ResourceQuota))
    held = msgspec.convert(pod("a", node_name="n1", annotations={ALLOCATED_KEY: "n1-0,NVIDIA,3000,30:;"}), kube.Pod)
    ledger.upsert_pod(held, NOW)
    return ledger, held


def test_the_state_under_our_names() -> None:
    ledger, _ = book()
    registry = CollectorRegistry()
    registry.register(LedgerCollector(ledger, lambda: 7, per_card=True))
    text = generate_latest(registry).decode()
    card = '{card="n1-0",model="NVIDIA A100",node="n1",vendor="NVIDIA"}'
    for line in (
        f"hami_scheduler_card_memory_allocated_bytes{card} 3.145728e+09",
        f"hami_scheduler_card_cores_allocated_ratio{card} 0.3",
        f"hami_scheduler_card_slots_allocated{card} 1.0",
        'hami_scheduler_quota_memory_limit_bytes{namespace="default",vendor="NVIDIA"} 4.194304e+09',
        'hami_scheduler_quota_memory_used_bytes{namespace="default",vendor="NVIDIA"} 3.145728e+09',
        "hami_scheduler_rejected_pods 7.0",
    ):
        assert line in text


def test_without_series_of_cards() -> None:
    ledger, _ = book()
    registry = CollectorRegistry()
    registry.register(LedgerCollector(ledger, lambda: 0, per_card=False))
    text = generate_latest(registry).decode()
    assert "n1-0" not in text
    assert "hami_scheduler_nodes 1.0" in text


def test_a_book_that_is_not_filled_yet_has_no_numbers() -> None:
    ledger, _ = book()
    registry = CollectorRegistry()
    registry.register(LedgerCollector(ledger, lambda: 0, listed=lambda: False, per_card=True))
    assert [sample for family in registry.collect() for sample in family.samples] == []


def test_the_state_under_hamis_names() -> None:
    ledger, held = book()
    registry = CollectorRegistry()
    registry.register(HamiNamesCollector(ledger, lambda: [held]))
    text = generate_latest(registry).decode()
    at = 'device_index="0",device_type="NVIDIA A100",device_uuid="n1-0",node="n1",zone="vGPU"'
    for line in (
        f"hami_gpu_memory_limit_bytes{{{at}}} 1.048576e+010".replace("e+010", "e+10"),
        f"hami_gpu_core_allocated_ratio{{{at}}} 30.0",
        f"hami_gpu_shared_count{{{at}}} 1.0",
        f"hami_node_gpu_memory_allocated_ratio{{{at}}} 0.3",
        'hami_resource_quota_limit{namespace="default",quota_name="nvidia.com/gpumem",zone="vGPU"} 4000.0',
    ):
        assert line in text
    assert 'hami_vgpu_memory_allocated_bytes{container_index="0",device_uuid="n1-0"' in text
    assert {family.name for family in registry.collect()} == {spec.name for spec in HAMI_READ}
