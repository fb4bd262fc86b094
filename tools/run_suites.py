"""Runs the suites of `tools/suites.toml` one after the other and sums up what passed, failed and was skipped.

Exit status: 0 when nothing failed, 1 when a suite failed or one that must run was skipped, 2 on wrong use.
Suites that must run are named, one a line, in the file given by `--required`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = 77


class Suite(NamedTuple):
    name: str
    command: str
    quick: bool
    long: bool


class Outcome(NamedTuple):
    suite: Suite
    exit_status: int
    seconds: float
    last_line: str


def load_suites() -> tuple[list[Suite], dict[str, str]]:
    """Reads the declared suites in their order, and the variables of those that are not long."""
    declared = tomllib.loads((ROOT / "tools/suites.toml").read_text())
    suites = [
        Suite(entry["name"], entry["command"], entry.get("quick", False), entry.get("long", False))
        for entry in declared["suite"]
    ]
    return suites, declared["environment"]


def run(suite: Suite, usual: dict[str, str]) -> Outcome:
    """Runs one suite with its output passed through."""
    environment = dict(os.environ) if suite.long else {**usual, **os.environ}
    print(f"=== {suite.name}: {suite.command}", flush=True)
    started = time.monotonic()
    last_line = ""
    with subprocess.Popen(
        ["bash", "-c", suite.command],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None  # noqa: S101  # requested above
        for line in process.stdout:
            print(line, end="", flush=True)
            last_line = line.strip() or last_line
    return Outcome(suite, process.returncode, time.monotonic() - started, last_line)


def main() -> int:
    """Runs what the arguments select."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the quick suites")
    parser.add_argument("--long", action="store_true", help="only the long suites, which otherwise do not run")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this suite (repeatable)")
    parser.add_argument("--required", type=Path, help="file that names the suites that may not be skipped")
    arguments = parser.parse_args()

    suites, usual = load_suites()
    known = {suite.name for suite in suites}
    required: set[str] = set()
    if arguments.required is not None:
        lines = (line.strip() for line in arguments.required.read_text().splitlines())
        required = {line for line in lines if line and not line.startswith("#")}
    unknown = (set(arguments.only) | required) - known
    if unknown:
        print(
            f"unknown suites: {', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}",
            file=sys.stderr,
        )
        return 2
    if arguments.only:
        suites = [suite for suite in suites if suite.name in arguments.only]
    elif arguments.quick:
        suites = [suite for suite in suites if suite.quick]
    else:
        suites = [suite for suite in suites if suite.long == arguments.long]

    outcomes = [run(suite, usual) for suite in suites]

    failed = skipped = 0
    print("=== summary")
    for outcome in outcomes:
        name = outcome.suite.name
        if outcome.exit_status == 0:
            print(f"passed  {name} ({outcome.seconds:.0f} s)")
        elif outcome.exit_status == SKIPPED and name not in required:
            skipped += 1
            print(f"SKIPPED {name} {outcome.last_line}")
        elif outcome.exit_status == SKIPPED:
            failed += 1
            print(f"FAILED  {name} must run here but was skipped: {outcome.last_line}")
        else:
            failed += 1
            print(f"FAILED  {name} (exit status {outcome.exit_status}, {outcome.seconds:.0f} s)")
    print(f"suites: {len(outcomes) - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
