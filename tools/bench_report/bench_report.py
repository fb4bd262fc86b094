"""Writes what `make bench-engine` measured into docs/performance.md and docs/performance-growth.svg.

    make bench-engine > out/bench.jsonl && .venv/bin/python tools/bench_report/bench_report.py out/bench.jsonl

With `--processor-time` the tables and the plot hold processor time instead of elapsed time: on a machine that others
use, elapsed time measures the others too.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from line_chart import Line, Panel, svg

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/performance.md"
CHART = ROOT / "docs/performance-growth.svg"
BEGIN, END = "<!-- bench-engine: written by tools/bench_report -->", "<!-- end of bench-engine -->"

Row = dict[str, Any]
CASES = {
    "fits": "fits",
    "fits-only-on-last": "fits only on the last node",
    "fits-nowhere": "fits nowhere, all reasons",
}
GROWTH = {"growth-nodes": "nodes", "growth-cards": "cards_per_node", "growth-pods": "pods"}
TIMES = "\N{MULTIPLICATION SIGN}"
TITLES = {
    "growth-nodes": "nodes (8 cards and 16 pods each)",
    "growth-cards": "cards a node (2,500 nodes, two pods a card)",
    "growth-pods": f"pods (2,500 nodes {TIMES} 8 cards)",
}
OTHERS = {
    "reserve-with-reasons": "decision and the reason of every node, as kube-scheduler is told it",
    "what-if": "decision without a booking",
    "copy": "copy of the whole state",
    "charge": "book a bound pod",
    "release": "give a pod's share back",
    "explain": "every card of every node explained",
    "reserve-fgd": "decision under `fgd`",
    "reserve-mig": "decision for two MIG instances",
}


class Report:
    """One run's rows."""

    def __init__(self, rows: list[Row], *, processor_time: bool) -> None:
        self.rows = rows
        self._prefix = "cpu_" if processor_time else ""

    def p50(self, row: Row) -> float:
        return float(row[f"{self._prefix}p50_us"])

    def p99(self, row: Row) -> float:
        return float(row[f"{self._prefix}p99_us"])

    def of(self, **wanted: object) -> list[Row]:
        return [row for row in self.rows if all(row.get(key) == value for key, value in wanted.items())]

    # ---- tables --------------------------------------------------------------------------------------------------

    def decisions(self) -> list[str]:
        lines = [
            "| cluster | the pod | binpack p50 | p99 | spread p50 | p99 | shuffled names p50 | p99 | budget |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for nodes, budget in ((100, "p99 ≤ 50"), (5000, "p50 ≤ 500, p99 ≤ 2,000")):
            for case, title in CASES.items():
                cells = [
                    number(value)
                    for policy, names in (
                        ("binpack", "same-names"),
                        ("spread", "same-names"),
                        ("binpack", "shuffled-names"),
                    )
                    for row in self.of(bench="reserve", nodes=nodes, case=case, policy=policy, candidates=names)
                    for value in (self.p50(row), self.p99(row))
                ]
                cluster = size(self.of(bench="reserve", nodes=nodes)[0])
                lines.append(table_row(cluster, title, *cells, budget))
        return lines

    def others(self) -> list[str]:
        lines = ["| what | cluster | p50 | p99 | allocations |", "|---|---|---|---|---|"]
        for bench, title in OTHERS.items():
            lines += [
                table_row(title, size(row), number(self.p50(row)), number(self.p99(row)), f"{row['allocations']:,}")
                for row in self.of(bench=bench)
            ]
        return lines

    def memory(self) -> str:
        large = self.of(bench="reserve", nodes=5000)[0]
        allocating = [row for row in self.of(bench="reserve") if row["allocations"]]
        said = f"{len(allocating)} rows of `reserve` allocate" if allocating else "No row of `reserve` allocates"
        return (
            f"State kept at {size(large)}: {large['bytes_per_pod']} bytes a pod, {large['bytes_per_card']} bytes a "
            f"card, its node's part included. {said}."
        )

    # ---- the plot ------------------------------------------------------------------------------------------------

    def panels(self) -> list[Panel]:
        return [
            Panel(
                title=TITLES[bench],
                lines=[
                    Line(CASES[case], [(row[field], self.p50(row)) for row in self.of(bench=bench, case=case)])
                    for case in CASES
                ],
            )
            for bench, field in GROWTH.items()
        ]


def table_row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def number(value: float) -> str:
    return f"{value:,.1f}" if value < 10 else f"{value:,.0f}"


def size(row: Row) -> str:
    return f"{row['nodes']:,} {TIMES} {row['cards_per_node']} cards, {row['pods']:,} pods"


def replaced(page: str, lines: list[str]) -> str:
    """The page with these lines between its two marks. Raises ValueError where it has none."""
    head, tail = page.index(BEGIN) + len(BEGIN), page.index(END)
    return page[:head] + "\n" + "\n".join(lines) + "\n" + page[tail:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, metavar="JSONL")
    parser.add_argument("--processor-time", action="store_true")
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in arguments.rows.read_text(encoding="utf-8").splitlines() if line]
    report = Report([row for row in rows if "nodes" in row], processor_time=arguments.processor_time)
    missing = sorted({"reserve", *GROWTH} - {row["bench"] for row in report.rows})
    if missing:
        sys.exit(f"bench_report: {arguments.rows} has no rows of {', '.join(missing)}; run `make bench-engine` whole")
    what = (
        "Processor time of one call in microseconds, taken while others used the machine, which slows the caches too."
        if arguments.processor_time
        else "Elapsed time of one call in microseconds."
    )
    lines = ["", what, "", *report.decisions(), "", report.memory(), "", *report.others(), ""]
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), lines), encoding="utf-8")
    CHART.write_text(svg(report.panels(), y_title="µs, median"), encoding="utf-8")


if __name__ == "__main__":
    main()
