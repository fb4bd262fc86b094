"""Runs the suites of `tools/suites.toml`, two at a time where they bear company, and sums up what became of them.

A suite that runs by itself is shown while it runs; of suites that run beside another one, each one's output is shown
whole when it ends.

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
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = 77


class Suite(NamedTuple):
    """One entry of `suites.toml`."""

    name: str
    command: str
    quick: bool
    long: bool
    alone: bool


class Outcome(NamedTuple):
    """What became of a suite. `output`: what has not been shown yet."""

    suite: Suite
    exit_status: int
    seconds: float
    last_line: str
    output: str


def load_suites() -> tuple[list[Suite], dict[str, str]]:
    """Reads the declared suites in their order, and the variables of those that are not long."""
    declared = tomllib.loads((ROOT / "tools/suites.toml").read_text())
    suites = [
        Suite(
            entry["name"],
            entry["command"],
            entry.get("quick", False),
            entry.get("long", False),
            entry.get("alone", False),
        )
        for entry in declared["suite"]
    ]
    return suites, declared["environment"]


def rounds(suites: list[Suite]) -> Iterator[list[Suite]]:
    """Suites that bear company, in their order, and by itself each that does not."""
    together: list[Suite] = []
    for suite in suites:
        if not suite.alone:
            together.append(suite)
            continue
        if together:
            yield together
        yield [suite]
        together = []
    if together:
        yield together


def run(suite: Suite, usual: dict[str, str], *, shown: bool) -> Outcome:
    """Runs one suite; its output is shown while it comes, or kept."""
    lines = [f"=== {suite.name}: {suite.command}\n"]
    if shown:
        print(lines.pop(), end="", flush=True)
    started = time.monotonic()
    last_line = ""
    with subprocess.Popen(
        ["bash", "-c", suite.command],
        cwd=ROOT,
        env=dict(os.environ) if suite.long else {**usual, **os.environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None  # noqa: S101  # requested above
        for line in process.stdout:
            if shown:
                print(line, end="", flush=True)
            else:
                lines.append(line)
            last_line = line.strip() or last_line
    return Outcome(suite, process.returncode, time.monotonic() - started, last_line, "".join(lines))


def run_together(suites: list[Suite], usual: dict[str, str], lanes: int) -> Iterator[Outcome]:
    """Runs suites that bear company, some at a time. The outcomes come as the suites end."""
    if lanes == 1 or len(suites) == 1:
        yield from (run(suite, usual, shown=True) for suite in suites)
        return
    with ThreadPoolExecutor(lanes) as pool:
        running: set[Future[Outcome]] = set()
        for suite in suites:
            if len(running) == lanes:
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in ended)
            print(f"=== {suite.name} begins", flush=True)
            running.add(pool.submit(run, suite, usual, shown=False))
        yield from (future.result() for future in as_completed(running))


def run_all(suites: list[Suite], usual: dict[str, str], lanes: int) -> list[Outcome]:
    """The outcomes in the suites' order."""
    outcomes: dict[str, Outcome] = {}
    for together in rounds(suites):
        for outcome in run_together(together, usual, lanes):
            print(outcome.output, end="", flush=True)
            print(
                f"=== {outcome.suite.name} ended with {outcome.exit_status} after {outcome.seconds:.0f} s", flush=True
            )
            outcomes[outcome.suite.name] = outcome
    return [outcomes[suite.name] for suite in suites]


def main() -> int:
    """Runs what the arguments select."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the quick suites")
    parser.add_argument("--long", action="store_true", help="only the long suites, which otherwise do not run")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this suite (repeatable)")
    parser.add_argument("--required", type=Path, help="file that names the suites that may not be skipped")
    parser.add_argument("--lanes", type=int, choices=(1, 2), default=2, help="how many suites at a time, at most")
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

    began = time.monotonic()
    outcomes = run_all(suites, usual, arguments.lanes)

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
    passed = len(outcomes) - failed - skipped
    print(f"suites: {passed} passed, {failed} failed, {skipped} skipped in {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
