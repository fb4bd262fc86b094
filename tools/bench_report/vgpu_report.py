"""Writes what `make bench-vgpu` measured into docs/performance.md.

make bench-vgpu > out/vgpu.jsonl && .venv/bin/python tools/bench_report/vgpu_report.py out/vgpu.jsonl [--note TEXT]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/performance.md"
BEGIN, END = "<!-- bench-vgpu: written by tools/bench_report -->", "<!-- end of bench-vgpu -->"

Row = dict[str, Any]
TITLES = {
    "alloc_free": "alloc and free",
    "free_unknown": "free of a pointer not ours",
    "mem_info": "`cuMemGetInfo`",
    "get_proc_address": "`cuGetProcAddress`",
    "cuinit": "`cuInit`",
}
BUDGETS = {"launch": "40 ns", "alloc_free": "400 ns", "cuinit": "5 ms"}
NEEDED = {"launch", "alloc_free", "cuinit", "throttle_wall"}


def duration(nanoseconds: float) -> str:
    if abs(nanoseconds) >= 1e6:
        return f"{nanoseconds / 1e6:.2f} ms"
    return f"{nanoseconds / 1e3:.1f} µs" if abs(nanoseconds) >= 1e4 else f"{nanoseconds:.0f} ns"


def costs(rows: list[Row]) -> list[str]:
    lines = [
        "| call | live allocations | processes | bare | preloaded adds | below limits adds | budget |",
        "|---|---|---|---|---|---|---|",
    ]
    subjects: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in rows:
        if "mode" in row and "bench" in row:
            key = (row["bench"], row.get("entry"), row["live"], row["processes"])
            subjects.setdefault(key, {})[row["mode"]] = row["ns"]
    for (bench, entry, live, processes), modes in subjects.items():
        title = f"`{entry}`" if entry else TITLES.get(bench, bench)
        added = [duration(modes[mode] - modes["bare"]) for mode in ("hooked", "limited")]
        cells = [title, f"{live:,}", str(processes), duration(modes["bare"]), *added, BUDGETS.get(bench, "")]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def shares(rows: list[Row]) -> list[str]:
    held = [row for row in rows if row.get("bench") == "throttle_wall"]
    lines = ["| core limit, % | of the card's time held, % |", "|---|---|"]
    return lines + [f"| {row['requested']} | {row['held']:.1f} |" for row in held]


def replaced(page: str, lines: list[str]) -> str:
    """The page with these lines between its two marks. Raises ValueError where it has none."""
    head, tail = page.index(BEGIN) + len(BEGIN), page.index(END)
    return page[:head] + "\n" + "\n".join(lines) + "\n" + page[tail:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, metavar="JSONL")
    parser.add_argument("--note", default="", help="a sentence about the machine at the time")
    arguments = parser.parse_args()
    rows: list[Row] = [json.loads(line) for line in arguments.rows.read_text(encoding="utf-8").splitlines() if line]
    missing = sorted(NEEDED - {row["bench"] for row in rows if "bench" in row})
    if missing:
        sys.exit(f"vgpu_report: {arguments.rows} has no rows of {', '.join(missing)}; run `make bench-vgpu` whole")
    note = [arguments.note, ""] if arguments.note else []
    lines = [*note, *costs(rows), "", *shares(rows)]
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), lines), encoding="utf-8")


if __name__ == "__main__":
    main()
