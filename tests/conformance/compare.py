"""Compares answers with vectors and prints a table."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from compare_filter import compare_filter
from compare_monitor import compare_equal, compare_metrics, compare_region, compare_region_folder
from compare_node import compare_allocate, compare_register
from decisions import deferral, suspicion
from pod_objects import normalised
from vectors import Group, Row, groups, rows

MUST_RUN = frozenset(
    {
        "single", "multigpu", "exhaust", "health", "exclusive", "select", "multictr", "init", "quota", "hetero",
        "badnode", "badpod", "lifecycle", "nogpu", "register", "sequence", "devconfig", "wire", "webhook",
        "hygon", "ascend", "mixed",
        "regions", "dirs", "gc", "node-metrics", "node-feedback",
        "node-allocate", "node-register",
    }
)  # fmt: skip
"""Groups that fail the run when nothing answered them."""

PASSED = "passed"
SOFT = "soft"
Compare = Callable[[dict[str, Any], dict[str, Any], Row], str]
"""Expected, got, row -> PASSED, SOFT, or what differs."""


class Outcome(NamedTuple):
    """What became of one group."""

    counts: Counter[str]
    reasons: Counter[str]
    """Of suspect and deferred vectors."""
    failures: dict[str, str]
    """By id: what differs."""


def compare_all(found: list[Group], out: Path) -> int:
    print(f"{'group':24}{'passed':>8}{'failed':>8}{'soft':>6}{'suspect':>9}{'deferred':>10}{'unchecked':>11}")
    failed = False
    reasons: Counter[str] = Counter()
    checked: Counter[str] = Counter()
    for group in found:
        answers_file = out / f"{group.label}.jsonl"
        answers = {row["id"]: row["got"] for row in rows(answers_file)} if answers_file.exists() else None
        outcome = compare_group(group, answers)
        reasons += outcome.reasons
        counts = outcome.counts
        absent = "" if answers is not None or not counts["absent"] else f"  absent: {counts['absent']} not answered"
        print(
            f"{group.label:24}{counts['passed']:8}{counts['failed']:8}{counts['soft']:6}{counts['suspect']:9}"
            f"{counts['deferred']:10}{counts['unchecked']:11}{absent}"
        )
        for row_id, difference in outcome.failures.items():
            print(f"    {row_id}: {difference}")
        checked += Counter({name: counts[name] for name in ("oracle", "suspect", "suspect by oracle")})
        if vacuous := _is_vacuous(counts):
            print(f"    {group.label}: nothing was compared: every row is suspect")
        failed = failed or bool(outcome.failures) or vacuous or (bool(absent) and group.name in MUST_RUN)
    for reason, count in sorted(reasons.items()):
        print(f"{reason}: {count}")
    print(
        f"oracle: {checked['oracle']} filter rows checked, among them {checked['suspect by oracle']} of"
        f" {checked['suspect']} suspect rows of all groups"
    )
    return 1 if failed else 0


def compare_group(group: Group, answers: dict[str, Any] | None) -> Outcome:
    outcome = Outcome(Counter(), Counter(), {})
    for row in rows(group.file):
        for kind, detail in _judge(group, row, answers):
            outcome.counts[kind] += 1
            if _is_checked_by_oracle(row, answers):
                outcome.counts["oracle"] += 1
                outcome.counts["suspect by oracle"] += kind == "suspect"
            if kind in ("suspect", "deferred"):
                outcome.reasons[f"{kind}: {detail}"] += 1
            elif kind == "failed":
                outcome.failures[row["id"]] = detail
    return outcome


def _is_checked_by_oracle(row: Row, answers: dict[str, Any] | None) -> bool:
    got = (answers or {}).get(row["id"])
    return isinstance(got, dict) and bool(got.get("oracle_questions"))


def _is_vacuous(counts: Counter[str]) -> bool:
    """Rows were judged, but none was compared with anything."""
    return bool(counts["suspect"]) and not (counts[PASSED] + counts[SOFT] + counts["failed"] + counts["oracle"])


def _judge(group: Group, row: Row, answers: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    waits_for = deferral(row)
    if waits_for is not None:
        yield "deferred", waits_for
    elif answers is None:
        yield "absent", ""
    elif row["id"] not in answers:
        yield "failed", "no answer"
    elif isinstance(answers[row["id"]], dict) and "crash" in answers[row["id"]]:
        yield "failed", answers[row["id"]]["crash"]
    elif "expect" not in row:
        yield "unchecked", ""
    else:
        yield _compared(group, row, answers[row["id"]])


def _compared(group: Group, row: Row, got: dict[str, Any]) -> tuple[str, str]:
    differences = got.get("oracle_differences")
    if differences:
        return "failed", f"engine and oracle differ: {differences[0]}"
    tagged = [tag for tag in row.get("tags", []) if tag.startswith("suspect:")]
    if tagged or "suspect" in row.get("tags", []):
        return "suspect", ", ".join(tagged) or "suspect"
    difference = comparison(group.name)(row["expect"], got, row)
    if difference in (PASSED, SOFT):
        return difference, ""
    decided = suspicion(group.name, row)
    if decided is not None:
        return "suspect", f"our decision: {decided}"
    return "failed", difference


def comparison(group: str) -> Compare:
    special = {
        "wire": compare_wire,
        "webhook": compare_webhook,
        "node-allocate": compare_allocate,
        "node-register": compare_register,
        "regions": compare_region,
        "dirs": compare_region_folder,
        "gc": compare_equal,
        "node-feedback": compare_equal,
        "node-metrics": compare_metrics,
    }
    return special.get(group, compare_filter)


def compare_wire(expect: dict[str, Any], got: dict[str, Any], row: Row) -> str:
    if "steps" in expect:
        return PASSED if expect == got else f"steps {got['steps']} instead of {expect['steps']}"
    if expect["ok"] != got["ok"]:
        return f"{row['op']}: ok={got['ok']} ({got['error'] or got['value']}) instead of {expect['ok']}"
    if expect["ok"] and not _same_value(expect["value"], got["value"]):
        return f"{row['op']}: {got['value']} instead of {expect['value']}"
    return PASSED


def _same_value(expect: Any, got: Any) -> bool:
    """Scores are computed in 32-bit floating point, in any order."""
    if isinstance(expect, float) or isinstance(got, float):
        return (
            isinstance(expect, int | float)
            and isinstance(got, int | float)
            and math.isclose(expect, got, rel_tol=1e-5, abs_tol=1e-5)
        )
    return bool(expect == got)


def compare_webhook(expect: dict[str, Any], got: dict[str, Any], _row: Row) -> str:
    names = ["allowed", "code"]
    if expect["allowed"]:
        names += ["message", "reason", "uid", "api_version", "http_status"]
    for name in names:
        if expect[name] != got[name]:
            return f"{name}: {got[name]!r} instead of {expect[name]!r} ({got['message']})"
    if expect["allowed"] and normalised(expect["pod"]) != normalised(got["pod"]):
        return f"pod: {normalised(got['pod'])} instead of {normalised(expect['pod'])}"
    return PASSED


if __name__ == "__main__":
    sys.exit(compare_all(groups(Path(sys.argv[1])), Path(sys.argv[2])))
