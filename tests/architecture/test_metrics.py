"""Metrics of all services: declared once, named by Prometheus' rules, HAMi's label sets as they are there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hami_chassis.metrics import ChassisMetrics
from hami_model.metric_spec import MetricSpec
from hami_monitor.metrics import MonitorMetrics
from hami_node_agent.metrics import NodeAgentMetrics
from hami_scheduler.metrics import SchedulerMetrics
from hami_webhook.metrics import WebhookMetrics
from prometheus_client import CollectorRegistry, generate_latest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools/observability"
sys.path.insert(0, str(TOOL))

from catalogues import SERVICES, all_specs  # noqa: E402  # lies beside the tool that uses it
from exposition_lint import faults  # noqa: E402

GOLDEN = ROOT / "tests/data/metrics/hami_names.json"
OURS = [spec for spec in all_specs().values() if spec.names == "ours"]
UNBOUNDED = {"pid", "process", "message", "error", "uid", "image", "path", "url"}
"""Labels that would make a series of every process, or of every text."""


@pytest.mark.case("MON-10")
def test_names_and_labels_under_hamis_names_are_those_of_the_golden_file() -> None:
    """Both sets, of scheduler and monitor: dashboards join by these labels."""
    found = {
        spec.name: {"set": spec.names, "kind": spec.kind, "labels": sorted(spec.labels)}
        for spec in all_specs().values()
        if spec.names != "ours"
    }
    assert found == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_no_name_is_declared_twice() -> None:
    names = [spec.name for service in SERVICES for spec in service.specs]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("spec", OURS, ids=lambda spec: spec.name)
def test_our_metrics_have_bounded_labels_and_a_sentence(spec: MetricSpec) -> None:
    assert not UNBOUNDED & set(spec.labels)
    assert spec.help.endswith(".")
    assert (spec.kind == "counter") == spec.name.endswith("_total")


def test_what_services_count_follows_prometheus_rules() -> None:
    registry = CollectorRegistry()
    metrics: list[Any] = [
        ChassisMetrics(registry),
        NodeAgentMetrics(registry),
        MonitorMetrics(registry),
        SchedulerMetrics(registry),
        WebhookMetrics(registry),
    ]
    for metric in (metric for held in metrics for metric in vars(held).values()):
        if metric._labelnames:  # told nowhere else
            metric.labels(*("x" for _ in metric._labelnames))
    assert faults(generate_latest(registry).decode()) == []


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("# TYPE a_total gauge\na_total 1", "is no counter"),
        ("# HELP a_mib x.\n# TYPE a_mib gauge\na_mib 1", "no base unit"),
        ("# HELP a_ratio x.\n# TYPE a_ratio gauge\na_ratio 30", "no share"),
        ("# HELP aB x.\n# TYPE aB gauge\naB 1", "lower_snake_case"),
        ('# HELP a x.\n# TYPE a gauge\na{b="1"} 1\na{b="1"} 2', "2 times"),
        ("# TYPE a gauge\na 1", "no help text"),
        ('# HELP a x.\n# TYPE a gauge\na{le="1"} 1', "for histograms"),
        ("# HELP a_count x.\n# TYPE a_count gauge\na_count 1", "for histograms"),
        ("# HELP a_gauge x.\n# TYPE a_gauge gauge\na_gauge 1", "type is in the name"),
    ],
)
def test_the_rules_find_what_breaks_them(line: str, fault: str) -> None:
    assert any(fault in found for found in faults(f"{line}\n")), faults(f"{line}\n")


def test_the_page_is_fresh() -> None:
    done = subprocess.run(
        [sys.executable, TOOL / "metrics_page.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
