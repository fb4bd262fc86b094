"""What `make bench-engine` prints can be made into the page and the plot."""

from __future__ import annotations

import importlib
import json
import xml.etree.ElementTree as Xml
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).parents[2] / "tools/bench_report"


def row(bench: str, **fields: Any) -> dict[str, Any]:
    numbers = {"p50_us": 100.0, "p99_us": 200.0, "cpu_p50_us": 1.0, "cpu_p99_us": 2.0, "allocations": 0}
    places = {"nodes": 5000, "cards_per_node": 8, "pods": 80000, "bytes_per_pod": 800, "bytes_per_card": 200}
    return {
        "bench": bench,
        "case": "fits",
        "policy": "binpack",
        "candidates": "same-names",
        **numbers,
        **places,
        **fields,
    }


def rows() -> list[dict[str, Any]]:
    growth = [
        row(bench, nodes=nodes, cards_per_node=nodes, pods=nodes, case=case, p50_us=float(nodes))
        for bench in ("growth-nodes", "growth-cards", "growth-pods")
        for case in ("fits", "fits-only-on-last", "fits-nowhere")
        for nodes in (1, 2, 40)
    ]
    return [row("reserve"), row("reserve", nodes=100), row("explain", p50_us=2500.0), *growth]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(TOOL)
    return importlib.import_module("bench_report")


def test_tables_plot_and_page_hold_what_was_measured(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{tool.BEGIN}\nold\n{tool.END}\nafter\n")
    measured = tmp_path / "rows.jsonl"
    measured.write_text("\n".join(json.dumps(each) for each in rows()))
    monkeypatch.setattr(tool, "PAGE", page)
    monkeypatch.setattr(tool, "CHART", tmp_path / "chart.svg")
    monkeypatch.setattr("sys.argv", ["bench_report.py", str(measured)])
    tool.main()
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| every card of every node explained | 5,000 \u00d7 8 cards, 80,000 pods | 2,500 | 200 | 0 |" in text
    drawn = Xml.fromstring((tmp_path / "chart.svg").read_text())  # noqa: S314  # our own
    lines = drawn.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len((line.get("points") or "").split()) for line in lines] == [3] * 9


def test_a_run_of_a_part_is_not_taken_for_a_whole_one(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = tmp_path / "rows.jsonl"
    measured.write_text(json.dumps(row("reserve")))
    monkeypatch.setattr("sys.argv", ["bench_report.py", str(measured)])
    with pytest.raises(SystemExit, match="growth-cards, growth-nodes, growth-pods"):
        tool.main()
