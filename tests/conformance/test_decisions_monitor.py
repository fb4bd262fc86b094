"""What the monitor does where HAMi's behaviour is tagged suspect, or where we decide otherwise."""

import importlib
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
DATA = HERE.parent / "data/vectors"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(HERE)
    return importlib.import_module


@cache
def rows_of(group: str) -> list[dict[str, Any]]:
    vectors = importlib.import_module("vectors")
    file = DATA / f"{group}.jsonl.xz" if group == "node-metrics" else DATA / f"{group}.jsonl"
    return list(vectors.rows(file if file.exists() else DATA / "node-region"))


def answered(load: Any, group: str, module: str, row_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
    row = next(row for row in rows_of(group) if row["id"] == row_id)
    return row, load(module).answer({**load("vectors").without_answers(row), "vectors_root": str(DATA)})


def test_builds_that_shifted_their_fields_are_read_as_they_were_written(load: Any) -> None:
    shifted = [row["id"] for row in rows_of("node-region/regions") if row["layout"] == "v1.1-bis"]
    assert shifted
    for row_id in shifted:
        row, got = answered(load, "node-region/regions", "answer_region", row_id)
        assert got["read"] == row["intended"]


@pytest.mark.parametrize("row_id", ["r-088", "r-089", "r-090"])
def test_a_version_1_region_that_was_cut_is_unreadable(load: Any, row_id: str) -> None:
    _, got = answered(load, "node-region/regions", "answer_region", row_id)
    assert "cut short" in got["error"]


def test_the_second_region_is_tried_when_the_first_cannot_be_read(load: Any) -> None:
    _, got = answered(load, "node-region/dirs", "answer_region_folder", "dir-18")
    assert got == {"loaded_region": "r-004", "parser": "v1"}


def lines(got: dict[str, Any], name: str) -> list[str]:
    return [line for line in got["text"].splitlines() if line.startswith(f"{name}{{")]


def test_init_containers_have_series(load: Any) -> None:
    _, got = answered(load, "node-metrics", "answer_metrics", "metrics-013")
    assert any('container="i0"' in line for line in lines(got, "hami_vgpu_memory_used_bytes"))


def test_finished_pods_have_none(load: Any) -> None:
    _, got = answered(load, "node-metrics", "answer_metrics", "metrics-019")
    assert got["loaded"]
    assert lines(got, "hami_vgpu_memory_used_bytes") == []


@pytest.mark.case("MON-13")
def test_a_failing_query_costs_its_own_series_only(load: Any) -> None:
    row, got = answered(load, "node-metrics", "answer_metrics", "metrics-021")
    failing = [device for device in row["nvml_devices"] if device.get("mem_query", "SUCCESS") != "SUCCESS"]
    assert failing
    for device in failing:
        assert not any(device["uuid"] in line for line in lines(got, "hami_host_gpu_memory_used_bytes"))
        assert any(device["uuid"] in line for line in lines(got, "hami_host_gpu_utilization_ratio"))


def test_a_shifted_region_has_series(load: Any) -> None:
    _, got = answered(load, "node-metrics", "answer_metrics", "metrics-037")
    assert lines(got, "hami_vgpu_memory_used_bytes")


def test_under_hamis_names_the_model_is_prefixed_as_hami_does(load: Any) -> None:
    _, got = answered(load, "node-metrics", "answer_metrics", "metrics-023")
    types = {
        line.partition('device_type="')[2].partition('"')[0] for line in lines(got, "hami_host_gpu_memory_used_bytes")
    }
    assert types == {"NVIDIA-Tesla T4", "NVIDIA-NVIDIA A10"}


def test_nameless_node_the_service_refuses_to_start() -> None:
    ended = subprocess.run(
        [str(Path(sys.executable).with_name("hami-monitor")), "serve"],
        capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert ended.returncode == 2
    assert "node.name must be set" in ended.stderr


@pytest.mark.parametrize(
    ("group", "change"),
    [
        ("node-region/regions", {"parser": "v0"}),
        ("node-region/regions", {"read": {}}),
        ("node-region/regions", {"error": "no"}),
        ("node-region/dirs", {"loaded_region": "r-000"}),
        ("node-region/dirs", {"error": "no"}),
        ("node-metrics", {"loaded": []}),
        ("node-metrics", {"gather_error": "no"}),
        ("node-metrics", {"text": ""}),
    ],
)
def test_a_change_of_any_compared_field_is_a_difference(load: Any, group: str, change: dict[str, Any]) -> None:
    row = next(row for row in rows_of(group) if "error" not in row["expect"] and "suspect" not in row["tags"])
    comparison = load("compare").comparison(Path(group).name)
    assert comparison(row["expect"], dict(row["expect"]), row) == "passed"
    assert comparison(row["expect"], {**row["expect"], **change}, row) != "passed"


def test_one_changed_value_of_a_series_is_a_difference(load: Any) -> None:
    row = next(row for row in rows_of("node-metrics") if row["id"] == "metrics-001")
    changed = row["expect"]["text"].replace("2.3670554624e+10", "2.3670554625e+10", 1)
    assert load("compare_monitor").compare_metrics(row["expect"], {**row["expect"], "text": changed}, row) != "passed"
