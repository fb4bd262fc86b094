"""The script for a real card, where there is none: it says so, and what needs no card works on the simulated driver."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("run.sh")
CHECKS = {
    "build",
    "card",
    "memory_exact",
    "nvml_shows_the_slice",
    "memory_shared_by_two_processes",
    "memory_after_a_kill",
    "cuda_runtime_memory_exact",
    "pytorch",
    "nvidia_smi_shows_the_slice",
    "core_limit",
    "core_limit_of_two_processes",
    "no_core_limit",
    "launch_cost",
    "alloc_free_cost",
    "init_cost",
}
TIMED = {"core_limit", "core_limit_of_two_processes", "no_core_limit", "launch_cost", "alloc_free_cost", "init_cost"}
NEED_A_CARD = {"cuda_runtime_memory_exact", "pytorch", "nvidia_smi_shows_the_slice"}


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, *words], capture_output=True, text=True, timeout=1800, check=False)


def rows(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def test_help_and_wrong_use() -> None:
    assert run("--help").returncode == 0
    assert "exit status" in run("--help").stdout
    assert run("--nonsense").returncode == 2


@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="this machine has a card")
def test_without_a_card_it_is_skipped_with_the_reason() -> None:
    ended = run()
    assert ended.returncode == 77
    assert ended.stderr.splitlines()[-1].startswith("gpu: SKIPPED: no NVIDIA card here")
    *_, skipped, summary = rows(ended.stdout)
    assert skipped["result"] == "SKIPPED"
    assert summary["failed"] == 0


@pytest.mark.timeout(1800)
def test_on_the_simulated_driver_every_check_runs_or_says_why_not() -> None:
    """No outcome of a check that measures time is asserted: other programs on the machine decide those too."""
    ended = run("--simulated", "--quick")
    *checks, summary = rows(ended.stdout)
    assert {row["check"] for row in checks} == CHECKS, ended.stderr
    for row in checks:
        name, result = row["check"], row["result"]
        if name in NEED_A_CARD:
            assert (result, bool(row["reason"])) == ("SKIPPED", True), row
        elif name in TIMED:
            assert {"held", "added_ns"} & row.keys(), row
        else:
            assert result == "PASS", row
    assert summary["summary"] is True
    assert summary["passed"] + summary["failed"] + summary["missed"] + summary["skipped"] == len(checks)
