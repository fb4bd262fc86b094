"""Dashboards, alerts and what makes Prometheus scrape: of metrics that there are, and as Grafana reads them."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools/observability"
FOLDER = ROOT / "k8s/dashboards"
sys.path.insert(0, str(TOOL))

from catalogues import all_specs, series_names  # noqa: E402  # lies beside the tool that uses it
from dashboards import DASHBOARDS  # noqa: E402
from panels import queries  # noqa: E402
from promql import filled, metrics, selected_labels  # noqa: E402

SPECS = {name: spec for spec in all_specs().values() for name in series_names(spec)}
ALERTS = yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))
EXPRESSIONS = [
    *(
        pytest.param(query.expression, id=f"{dashboard.uid}: {panel.title}")
        for dashboard in DASHBOARDS
        for panel, query in queries(dashboard)
    ),
    *(
        pytest.param(variable.values, id=f"{dashboard.uid}: ${variable.name}")
        for dashboard in DASHBOARDS
        for variable in dashboard.variables
    ),
    *(pytest.param(rule["expr"], id=rule["alert"]) for group in ALERTS["spec"]["groups"] for rule in group["rules"]),
]
TARGET_LABELS = {"node"}
"""What scraping adds; see k8s/dashboards/podmonitors.yaml."""

Json = dict[str, Any]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_query_is_of_our_own_metrics_and_their_labels(expression: str) -> None:
    assert metrics(expression)
    assert metrics(expression) <= SPECS.keys()
    assert all(SPECS[name].names == "ours" for name in metrics(expression))
    for name, label in selected_labels(expression):
        assert label in {*SPECS[name].labels, *TARGET_LABELS}, f"{name} has no label {label}"


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_no_variable_of_a_query_is_left_unknown(expression: str) -> None:
    known = {variable.name for dashboard in DASHBOARDS for variable in dashboard.variables}
    assert "$" not in filled(expression, dict.fromkeys(sorted(known), "x"))


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
def test_a_dashboard_is_as_grafana_reads_it(dashboard: Any) -> None:
    found: Json = json.loads((FOLDER / f"{dashboard.uid.removeprefix('hami-')}.json").read_text(encoding="utf-8"))
    assert found["uid"] == dashboard.uid
    assert found["schemaVersion"] >= 36
    variables = [each["name"] for each in found["templating"]["list"]]
    assert variables == ["datasource", *(variable.name for variable in dashboard.variables)]
    assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"])
    for panel in found["panels"]:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert [target["refId"] for target in panel["targets"]] == ["A", "B", "C", "D"][: len(panel["targets"])]
            assert all(target["expr"] for target in panel["targets"])
    for one, other in combinations(found["panels"], 2):
        assert not _overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])


def test_the_dashboards_are_fresh() -> None:
    done = subprocess.run(
        [sys.executable, TOOL / "dashboards.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_every_pod_of_ours_is_scraped_once_at_the_port_of_its_metrics() -> None:
    base = [
        document
        for path in (ROOT / "k8s/base").rglob("workload.yaml")
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
        if document["kind"] in ("Deployment", "DaemonSet")
    ]
    monitors = list(yaml.safe_load_all((FOLDER / "podmonitors.yaml").read_text(encoding="utf-8")))
    for service in ("hami-scheduler", "hami-webhook", "hami-node-agent", "hami-monitor"):
        (workload,) = [each for each in base if each["metadata"]["name"] == service]
        labels = workload["spec"]["template"]["metadata"]["labels"]
        (monitor,) = [each for each in monitors if _selects(each["spec"]["selector"], labels)]
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["honorLabels"] is True
        ports = {
            port["name"]
            for container in workload["spec"]["template"]["spec"]["containers"]
            for port in container.get("ports", ())
        }
        assert endpoint["port"] in ports
        names_nodes = [rule["targetLabel"] for rule in endpoint.get("relabelings", ())] == ["node"]
        assert names_nodes == (workload["kind"] == "DaemonSet")


def test_hamis_ports_lead_to_ours() -> None:
    monitor, scheduler = yaml.safe_load_all((FOLDER / "hami-nodeports.yaml").read_text(encoding="utf-8"))
    assert monitor["spec"]["externalTrafficPolicy"] == "Local", "each node answers for itself"
    assert [port["nodePort"] for each in (monitor, scheduler) for port in each["spec"]["ports"]] == [31992, 31993]
    assert monitor["spec"]["ports"][0]["name"] == "monitorport"


def test_what_is_applied_is_there() -> None:
    found = yaml.safe_load((FOLDER / "kustomization.yaml").read_text(encoding="utf-8"))
    (generated,) = found["configMapGenerator"]
    assert all((FOLDER / name).is_file() for name in (*found["resources"], *generated["files"]))
    assert sorted(generated["files"]) == sorted(path.name for path in FOLDER.glob("*.json"))


def _selects(selector: Json, labels: dict[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", ())
    )


def _overlap(one: Json, other: Json) -> bool:
    return bool(
        one["x"] < other["x"] + other["w"]
        and other["x"] < one["x"] + one["w"]
        and one["y"] < other["y"] + other["h"]
        and other["y"] < one["y"] + one["h"]
    )
