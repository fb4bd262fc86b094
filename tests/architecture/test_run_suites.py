"""The runner of the suites: who bears company runs at a time, who is alone does not, and outputs are not mixed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools/run_suites.py"
UNTIL = "until [ -e {0} ]; do sleep 0.01; done"


def suite(name: str, command: str, **more: bool) -> str:
    flags = "".join(f"{key} = {str(value).lower()}\n" for key, value in more.items())
    return f"[[suite]]\nname = \"{name}\"\n{flags}command = '{command}'\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tools").mkdir()
    shutil.copy(TOOL, tmp_path / "tools")
    return tmp_path


def run(root: Path, *suites: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    declared = "\n".join(("[environment]\nDRAWN = '7'\n", *suites))
    (root / "tools/suites.toml").write_text(declared)
    command = [sys.executable, root / "tools/run_suites.py", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_two_suites_run_at_a_time_and_each_output_is_whole(root: Path) -> None:
    """Each waits for the other between its two lines."""
    first = suite("first", f"echo one; touch a; {UNTIL.format('b')}; echo two; touch c")
    second = suite("second", f"{UNTIL.format('a')}; echo three; touch b; {UNTIL.format('c')}; echo four")
    ran = run(root, first, second)
    assert ran.returncode == 0, ran.stderr
    assert "one\ntwo\n" in ran.stdout
    assert "three\nfour\n" in ran.stdout


def test_one_that_is_alone_has_nobody_beside_it_and_the_summary_keeps_the_order(root: Path) -> None:
    works = "touch {0}; sleep 0.1; rm {0}"
    ran = run(
        root,
        suite("a", works.format("w1")),
        suite("b", works.format("w2")),
        suite("c", 'test -z "$(ls w*)"; touch busy; sleep 0.1; rm busy', alone=True),
        suite("d", "test ! -e busy"),
    )
    assert ran.returncode == 0, ran.stdout
    summary = ran.stdout.partition("=== summary\n")[2].splitlines()
    assert [line.split()[:2] for line in summary[:-1]] == [["passed", name] for name in "abcd"]


def test_a_failure_and_a_skip_of_what_must_run_are_told(root: Path) -> None:
    (root / "required").write_text("# these\nneeded\n")
    ran = run(
        root,
        suite("fails", "echo why; exit 3"),
        suite("needed", "echo not here; exit 77"),
        suite("other", "echo nor here; exit 77"),
        options=("--required", str(root / "required")),
    )
    assert ran.returncode == 1
    assert "FAILED  fails (exit status 3, " in ran.stdout
    assert "FAILED  needed must run here but was skipped: not here" in ran.stdout
    assert "SKIPPED other nor here" in ran.stdout


@pytest.mark.parametrize(("options", "drawn"), [((), "7"), (("--long",), "")])
def test_what_is_drawn_is_the_same_each_time_but_in_long_suites(
    root: Path, options: tuple[str, ...], drawn: str
) -> None:
    ran = run(
        root, suite("usual", "echo drawn=$DRAWN."), suite("far", "echo drawn=$DRAWN.", long=True), options=options
    )
    assert f"\ndrawn={drawn}.\n" in ran.stdout
