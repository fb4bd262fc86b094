"""What replays came to: tables for people, JSON for programs."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import msgspec

from hami_sim.trace.replay import ReplayedSeed

LOADS_SHOWN = (20, 40, 60, 80, 90, 95, 100, 110, 120, 130)
JUDGED_LOADS = (100, 130)


class PolicyReport(msgspec.Struct, frozen=True):
    """One policy on one list."""

    policy: str
    seeds: list[ReplayedSeed]
    mean_allocated_percent: list[float]  # when the requests first reach 0, 1, 2 … percent of all cards


class PublishedPolicy(msgspec.Struct, frozen=True):
    """What the authors of the trace's figures reached on the same list."""

    policy: str
    seeds: list[int]
    mean_allocated_percent: list[float]


class ListReport(msgspec.Struct, frozen=True):
    """All policies on one list."""

    list_name: str
    nodes: int
    cards: int
    pods_in_list: int
    policies: list[PolicyReport]
    published: list[PublishedPolicy]


def mean_curve(curves: list[list[float]]) -> list[float]:
    """The mean of curves, as far as all of them go."""
    return [fmean(values) for values in zip(*curves, strict=False)]


def policy_report(policy: str, seeds: list[ReplayedSeed]) -> PolicyReport:
    """One policy with its mean."""
    return PolicyReport(policy, seeds, mean_curve([seed.allocated_percent for seed in seeds]))


def published_report(curves: dict[str, dict[int, list[float]]]) -> list[PublishedPolicy]:
    """Published curves with their means."""
    return [
        PublishedPolicy(policy, sorted(by_seed), mean_curve([by_seed[seed] for seed in sorted(by_seed)]))
        for policy, by_seed in sorted(curves.items())
    ]


def table(report: ListReport) -> str:
    """Allocated percent by load, one policy a line; published policies below ours."""
    loads = [load for load in LOADS_SHOWN if load < _longest(report)]
    rows = [["allocated % of all cards at load %", "seeds", *(str(load) for load in loads), "seconds"]]
    for ours in report.policies:
        seconds = f"{sum(seed.seconds for seed in ours.seeds):.1f}"
        rows.append([ours.policy, str(len(ours.seeds)), *_cells(ours.mean_allocated_percent, loads), seconds])
    for theirs in report.published:
        name = f"published: {theirs.policy}"
        rows.append([name, str(len(theirs.seeds)), *_cells(theirs.mean_allocated_percent, loads), ""])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [f"{report.list_name}: {report.pods_in_list} pods on {report.nodes} nodes with {report.cards} cards"]
    for row in rows:
        first, *rest = (
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(["", first, *rest]).rstrip())
    return "\n".join(lines)


def as_json(trace: str, reports: list[ListReport]) -> bytes:
    """One document; curves are lists whose place is the load in percent."""
    document: dict[str, Any] = {
        "trace": trace,
        "lists": [
            {
                **msgspec.to_builtins(report),
                "means": {
                    each.policy: {
                        str(load): each.mean_allocated_percent[load]
                        for load in JUDGED_LOADS
                        if load < len(each.mean_allocated_percent)
                    }
                    for each in report.policies
                },
            }
            for report in reports
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1)


def _longest(report: ListReport) -> int:
    return max((len(each.mean_allocated_percent) for each in report.policies), default=0)


def _cells(curve: list[float], loads: list[int]) -> list[str]:
    return [f"{curve[load]:.2f}" if load < len(curve) else "" for load in loads]
