"""The comparison notices every field it says it compares, and the answering process sees no answers."""

import copy
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent
DATA = HERE.parent / "data/vectors"
MOST_LEFT_OUT = {
    "init": 0.8,  # HAMi counts sidecars as init containers and shifts slots; the oracle checks these rows
    "ascend": 0.5,  # HAMi mixes up the cores of soft splits, and the units of cores
}
"""Share of a group's rows that may be suspect, where it is not a third."""
SMALL_GROUP = 4
"""So many suspect rows are no matter in any group."""


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(HERE)
    return importlib.import_module("compare")


def vector(compare: ModuleType, group: str, tag: str) -> dict[str, Any]:
    found = next(g for g in compare.groups(DATA) if g.label == group)
    return next(
        row for row in compare.rows(found.file) if tag in row["tags"] and "suspect" not in row["tags"]
        and compare.deferral(row) is None
    )  # fmt: skip


@pytest.mark.parametrize(
    ("group", "tag", "changes"),
    [
        pytest.param(
            "single",
            "out:fit",
            {
                "node": "other",
                "node_names": [],
                "annotations": {},
                "labels": {},
                "failed_nodes": {"n": "1/1 CardNotHealth"},
                "error": "no",
                "booked": {},
            },
            id="filter that fits",
        ),
        pytest.param("single", "out:nofit", {"failed_nodes": {}, "node": "n"}, id="filter that does not"),
        pytest.param("wire", "out:ok", {"ok": False, "value": "other"}, id="wire"),
        pytest.param(
            "webhook",
            "out:mutated",
            {"allowed": False, "code": 500, "pod": {}, "message": "m", "uid": "u", "http_status": 400},
            id="webhook",
        ),
        pytest.param(
            "node-allocate",
            "basic",
            {"error": "no", "response": None, "lock_after": "x", "pod_annotations_after": {}, "start_error": "no"},
            id="allocate",
        ),
        pytest.param(
            "node-register",
            "basic",
            {"register_annotation": None, "score_annotation": "[]", "passes": [], "kubelet_devices": [], "events": [
                {"type": "Warning", "reason": "R"}
            ]},
            id="register",
        ),
    ],
)  # fmt: skip
def test_a_change_of_any_compared_field_is_a_difference(
    compare: ModuleType, group: str, tag: str, changes: dict[str, object]
) -> None:
    row = vector(compare, group, tag)
    comparison = compare.comparison(group)
    assert comparison(row["expect"], copy.deepcopy(row["expect"]), row) == "passed"
    for field, value in changes.items():
        got = {**copy.deepcopy(row["expect"]), field: value}
        assert comparison(row["expect"], got, row) not in ("passed", "soft"), field


def run(vectors: Path, out: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(HERE / "run.py"), str(vectors), str(out)], capture_output=True, text=True, check=False
    )


def wire_row(row_id: str, value: bool | None) -> str:
    row: dict[str, object] = {"id": row_id, "op": "policy_contains", "input": {"policy": "binpack", "name": "binpack"}}
    if value is not None:
        row["expect"] = {"ok": True, "error": None, "value": value}
    return json.dumps(row) + "\n"


def test_a_run_writes_answers_by_path_and_fails_on_a_difference(tmp_path: Path) -> None:
    vectors, out = tmp_path / "vectors", tmp_path / "out"
    (vectors / "deeper").mkdir(parents=True)
    file = vectors / "deeper/wire.jsonl"
    file.write_text(wire_row("a", value=True) + wire_row("b", value=None))
    passed = run(vectors, out)
    assert passed.returncode == 0, passed.stdout + passed.stderr
    assert [line.split() for line in passed.stdout.splitlines()][1] == ["deeper/wire", *["1", "0", "0", "0", "0", "1"]]
    answers = [json.loads(line) for line in (out / "deeper/wire.jsonl").read_text().splitlines()]
    assert answers == [{"id": row_id, "got": {"ok": True, "error": None, "value": True}} for row_id in ("a", "b")]

    file.write_text(wire_row("a", value=False))
    failed = run(vectors, out)
    assert failed.returncode == 1
    assert "a: policy_contains" in failed.stdout


def test_questions_hold_no_answers(compare: ModuleType) -> None:
    vectors = importlib.import_module("vectors")
    row = vector(compare, "single", "out:fit")
    assert not {"expect", "tags"} & set(vectors.without_answers(row))


def suspect_filter_rows(compare: ModuleType, most: int) -> list[dict[str, Any]]:
    """Of each filter group the first few rows that HAMi's answer does not decide."""
    answerers = importlib.import_module("answer").ANSWERERS
    found = []
    for group in compare.groups(DATA):
        if answerers.get(group.name) == "answer_filter":
            rows = (row for row in compare.rows(group.file) if compare.deferral(row) is None)
            found += [row for row in rows if "suspect" in row["tags"] or compare.suspicion(group.name, row)][:most]
    return found


def test_the_oracle_checks_suspect_filter_rows(compare: ModuleType) -> None:
    """All but those that are answered before the engine is asked: refused requests, pods without cards, simulation."""
    answer = importlib.import_module("answer_filter").answer
    rows = suspect_filter_rows(compare, 6)
    got = [answer(row) for row in rows]
    assert [differences for found in got if (differences := found.get("oracle_differences"))] == []
    asked = sum(bool(found.get("oracle_questions")) for found in got)
    assert len(rows) > 20
    assert asked > len(rows) / 2, f"{asked} of {len(rows)}"


def test_a_difference_from_the_oracle_fails_a_suspect_row(compare: ModuleType) -> None:
    row = next(iter(suspect_filter_rows(compare, 1)))
    group = next(g for g in compare.groups(DATA) if g.label == "init")
    got = {**copy.deepcopy(row["expect"]), "oracle_questions": 1, "oracle_differences": ["step 0.node: ..."]}
    outcome = compare.compare_group(group, {row["id"]: got for row in compare.rows(group.file)})
    assert outcome.counts["failed"] == sum(outcome.counts[k] for k in ("passed", "soft", "failed", "suspect"))


def test_a_group_in_which_nothing_is_compared_fails(tmp_path: Path) -> None:
    row = {**json.loads(wire_row("a", value=True)), "tags": ["suspect", "suspect:panic"]}
    vectors, out = tmp_path / "vectors", tmp_path / "out"
    vectors.mkdir()
    (vectors / "wire.jsonl").write_text(json.dumps(row) + "\n")
    done = run(vectors, out)
    assert done.returncode == 1
    assert "nothing was compared" in done.stdout


def test_most_rows_of_every_group_are_compared(compare: ModuleType) -> None:
    """Decisions of ours that grow too broad would hide faults."""
    for group in compare.groups(DATA):
        rows = [row for row in compare.rows(group.file) if "expect" in row and compare.deferral(row) is None]
        left_out = [row for row in rows if "suspect" in row.get("tags", []) or compare.suspicion(group.name, row)]
        if group.name in compare.MUST_RUN:
            assert len(left_out) <= max(MOST_LEFT_OUT.get(group.name, 0.35) * len(rows), SMALL_GROUP), group.label
