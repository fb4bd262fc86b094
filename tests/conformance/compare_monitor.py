"""Comparing what the monitor reads and serves."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from vectors import Row

ELAPSED = "<NOW-LAST_KERNEL_TIME>"
BUILD = "hami_build_info"


def compare_region(expect: dict[str, Any], got: dict[str, Any], _row: Row) -> str:
    if "error" in expect or "error" in got:
        same = ("error" in expect) == ("error" in got)
        return "passed" if same else f"error {got.get('error')!r} instead of {expect.get('error')!r}"
    if expect["parser"] != got["parser"]:
        return f"parser {got['parser']} instead of {expect['parser']}"
    differing = [
        f"{name}: {got['read'].get(name)} instead of {value}"
        for name, value in expect["read"].items()
        if got["read"].get(name) != value
    ]
    return "; ".join(differing) or "passed"


def compare_region_folder(expect: dict[str, Any], got: dict[str, Any], _row: Row) -> str:
    if "error" in expect or "error" in got:
        same = ("error" in expect) == ("error" in got)
        return "passed" if same else f"{got} instead of {expect}"
    return "passed" if expect == got else f"{got} instead of {expect}"


def compare_equal(expect: dict[str, Any], got: dict[str, Any], _row: Row) -> str:
    return "passed" if expect == got else f"{got} instead of {expect}"


def compare_metrics(expect: dict[str, Any], got: dict[str, Any], _row: Row) -> str:
    if sorted(expect["loaded"]) != sorted(got["loaded"]):
        return f"loaded {got['loaded']} instead of {expect['loaded']}"
    if (expect["gather_error"] is None) != (got["gather_error"] is None):
        return f"gather_error {got['gather_error']!r} instead of {expect['gather_error']!r}"
    theirs, ours = _series(expect["text"]), _series(got["text"])
    missing = [f"lacks {key} {value}" for key, value in theirs.items() if ours.get(key) != value]
    surplus = [f"has {key} {value}" for key, value in ours.items() if theirs.get(key) != value]
    return "; ".join([*missing, *surplus]) or "passed"


def _series(text: str) -> dict[str, float | str]:
    """Value by name, type and labels; what the build says of itself counts only as there."""
    found: dict[str, float | str] = {}
    for family in text_string_to_metric_families(text.replace(ELAPSED, "-1")):
        for sample in family.samples:
            labels = {} if sample.name == BUILD else sample.labels
            key = f"{family.type} {sample.name} {sorted(labels.items())}"
            found[key] = ELAPSED if sample.value == -1 else sample.value
    return found
