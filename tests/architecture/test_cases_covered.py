"""Every failure that real users met, of the areas that are finished, has a test that names it."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDERS = ("libs", "services", "rust-core/tests", "tests")
C_TESTS = ROOT / "libvgpu/tests"
C_MARK = re.compile(r"/\*[ -]* case ([A-Z]{3}-[0-9]{2}(?:, [A-Z]{3}-[0-9]{2})*)\b")
"""In C a comment at the test or its row begins so: case, then ids."""
FINISHED = (
    "annotation", "request-parsing", "lifecycle", "nodelock", "allocate", "allocate-race", "multi-container", "quota",
    "webhook", "leader-election", "placement", "numa", "mig", "exclusive-cores", "registration",
    "core", "core-memory", "core-vmm", "core-lock", "core-process", "core-disable", "core-symbols", "core-util",
    "core-graph", "process", "scale", "metrics", "monitor", "restart",
)  # fmt: skip
"""Parts of areas; a case of several areas counts for each."""

LATER = {
    "LIF-06": "there is no preempt verb",
}
"""Cases of those areas without a test: what is not there yet."""

PARTS_LATER = {
    "PLC-08": "the option that answers all fitting nodes and reserves at bind",
    "CGR-01": "measured on a real card",
    "CMM-13": "region and NVML compared on a real card",
    "CUT-05": "measured on a real card",
    "CVM-03": "NCCL itself, on several real cards",
}
"""Cases with a test, of which a part waits."""


def cases() -> list[dict[str, Any]]:
    lines = (ROOT / "tests/data/cases/cases.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line]


def test_files() -> Iterator[Path]:
    for folder in FOLDERS:
        yield from (path for path in (ROOT / folder).rglob("test_*.py") if ".venv" not in path.parts)


test_files.__test__ = False  # type: ignore[attr-defined]


@functools.cache
def marked() -> dict[str, list[str]]:
    """Files by the case that their tests name."""
    found: dict[str, list[str]] = {}
    for path in test_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.case":
                (name,) = node.args
                if isinstance(name, ast.Constant):
                    found.setdefault(str(name.value), []).append(str(path.relative_to(ROOT)))
    for path in sorted(C_TESTS.rglob("*.c")):
        for ids in C_MARK.findall(path.read_text(encoding="utf-8")):
            for name in ids.split(", "):
                found.setdefault(name, []).append(str(path.relative_to(ROOT)))
    return found


def finished_cases() -> set[str]:
    return {case["id"] for case in cases() if set(case["area"].split("/")) & set(FINISHED)}


def test_every_case_of_a_finished_area_has_a_test() -> None:
    assert sorted(finished_cases() - marked().keys() - LATER.keys()) == []


def test_a_test_names_only_cases_that_there_are() -> None:
    assert sorted(marked().keys() - {case["id"] for case in cases()}) == []


def test_c_files_that_name_cases_are_built() -> None:
    lists = "\n".join(path.read_text(encoding="utf-8") for path in C_TESTS.rglob("CMakeLists.txt"))
    named = {path for paths in marked().values() for path in paths if path.endswith(".c")}
    assert sorted(path for path in named if Path(path).stem not in lists) == []


def test_what_waits_is_still_waiting() -> None:
    """A case that has a test now leaves the list."""
    assert sorted(LATER.keys() & marked().keys()) == []
    assert sorted(LATER.keys() - finished_cases()) == []
    assert sorted(PARTS_LATER.keys() - marked().keys()) == []
