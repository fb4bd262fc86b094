"""What `make bench-vgpu` prints can be made into the page."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).parents[2] / "tools/bench_report"


def rows() -> list[dict[str, Any]]:
    measured = {"bare": 5.0, "hooked": 25.0, "limited": 5005.0}
    subjects: list[dict[str, Any]] = [
        {"bench": "launch", "entry": "cuLaunchKernel", "live": 0, "processes": 1},
        {"bench": "alloc_free", "live": 100000, "processes": 64},
        {"bench": "cuinit", "live": 0, "processes": 1},
    ]
    costs = [{**subject, "mode": mode, "ns": ns} for subject in subjects for mode, ns in measured.items()]
    return [*costs, {"budget": "launch", "result": "PASS"}, {"bench": "throttle_wall", "requested": 30, "held": 30.4}]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(TOOL)
    found = importlib.import_module("vgpu_report")
    page = tmp_path / "page.md"
    page.write_text(f"before\n{found.BEGIN}\nold\n{found.END}\nafter\n")
    monkeypatch.setattr(found, "PAGE", page)
    return found


def run(tool: Any, measured: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    file = tool.PAGE.with_name("rows.jsonl")
    file.write_text("\n".join(json.dumps(each) for each in measured))
    monkeypatch.setattr("sys.argv", ["vgpu_report.py", str(file), "--note", "From a test."])
    tool.main()


def test_the_page_holds_what_was_measured(tool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tool, rows(), monkeypatch)
    lines = tool.PAGE.read_text().splitlines()
    assert "old" not in lines
    assert {"before", "after", "From a test."} <= set(lines)
    assert "| `cuLaunchKernel` | 0 | 1 | 5 ns | 20 ns | 5000 ns | 40 ns |" in lines
    assert "| alloc and free | 100,000 | 64 | 5 ns | 20 ns | 5000 ns | 400 ns |" in lines
    assert "| 30 | 30.4 |" in lines


def test_rows_of_a_part_are_refused(tool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="no rows of cuinit, throttle_wall"):
        run(tool, [row for row in rows() if row.get("bench") in {"launch", "alloc_free"}], monkeypatch)
