"""Compares the engine with the oracle on random cases: `run_oracle.py [--cases N] [--seed N] [--jobs N] [--json]`.

Ends at the first difference: the case is made small, printed, and written to the folder given by `--out`; put the
file into tests/oracle/regressions to keep it. Exit status: 0 when all agree and every reason was met, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from comparing import Difference, compare
from coverage_of_cases import Coverage
from random_cases import random_case
from shrinking import shrink

Json = dict[str, Any]

BATCH = 1000


class Batch(NamedTuple):
    """What became of some cases, up to the first that failed."""

    cases: int
    counts: Counter[str]
    failed: int | None
    """Number of the first case that failed."""


def run_batch(seed: int, first: int, count: int, self_check: bool) -> Batch:
    coverage = Coverage()
    for number in range(first, first + count):
        case = random_case(seed, number)
        coverage.begin(case)
        if compare(case, coverage.observe, self_check=self_check) is not None:
            return Batch(number - first + 1, coverage.counts, number)
    return Batch(count, coverage.counts, None)


def batches(seed: int, cases: int, jobs: int, *, self_check: bool) -> Iterator[Batch]:
    """In parallel; each process has few cases left when one fails."""
    starts = range(0, cases, BATCH)
    if jobs == 1:
        for first in starts:
            yield run_batch(seed, first, min(BATCH, cases - first), self_check)
        return
    with ProcessPoolExecutor(jobs) as pool:
        running = {pool.submit(run_batch, seed, first, min(BATCH, cases - first), self_check) for first in starts}
        try:
            for done in as_completed(running):
                yield done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def report_failure(seed: int, number: int, out: Path, *, self_check: bool) -> Json:
    def difference_of(case: Json) -> Difference | None:
        return compare(case, self_check=self_check)

    case = random_case(seed, number)
    first = difference_of(case)

    def fails(smaller: Json) -> bool:
        """In the same manner: a value that cannot enter the engine is another matter."""
        found = difference_of(smaller)
        return found is not None and first is not None and found.is_error == first.is_error

    case = shrink(case, fails)
    difference = difference_of(case)
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"seed-{seed}-case-{number}.json"
    file.write_text(json.dumps(case, indent=1) + "\n")
    print(f"oracle: seed {seed}, case {number} fails; made small:\n{json.dumps(case)}\n{difference}", file=sys.stderr)
    print(f"oracle: written to {file}; run it again with --case {file}", file=sys.stderr)
    return {"case": case, "difference": str(difference), "file": str(file)}


def run_file(file: Path) -> int:
    difference = compare(json.loads(file.read_text()))
    print("oracle and engine agree" if difference is None else difference)
    return 0 if difference is None else 1


def run_random(seed: int, cases: int, jobs: int, out: Path, *, as_json: bool, covers: bool) -> int:
    counts: Counter[str] = Counter()
    done = 0
    failed: int | None = None
    started = shown = time.monotonic()
    print(f"oracle: {cases} cases, seed {seed}, {jobs} processes", file=sys.stderr, flush=True)
    for batch in batches(seed, cases, jobs, self_check=covers):
        done += batch.cases
        counts += batch.counts
        if batch.failed is not None:
            failed = batch.failed
            break
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            print(f"oracle: {done} of {cases} cases after {shown - started:.0f} s", file=sys.stderr, flush=True)
    coverage = Coverage()
    coverage.counts = counts
    failure = None if failed is None else report_failure(seed, failed, out, self_check=covers)
    missing = coverage.missing() if failed is None and covers else []
    report = {"oracle": "failed" if failure or missing else "agrees", "seed": seed, "cases": done,
              "seconds": round(time.monotonic() - started, 1), "met": dict(sorted(counts.items())), "not_met": missing,
              "failure": failure}  # fmt: skip
    if as_json:
        print(json.dumps(report))
    else:
        for name, count in sorted(counts.items()):
            print(f"{count:10} {name}")
        print(f"oracle: {report['oracle']}: {done} cases in {report['seconds']} s, seed {seed}")
    for name in missing:
        print(f"oracle: never met: {name}", file=sys.stderr)
    return 1 if failure or missing else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=None, help="a fresh one is drawn and printed when it is left out")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--oracle-only", action="store_true", help="neither the engine's check of its own sums nor unmet reasons count"
    )
    parser.add_argument("--out", type=Path, default=Path("out/oracle"), help="folder for cases that fail")
    parser.add_argument("--case", type=Path, help="run this file instead of random cases")
    arguments = parser.parse_args()
    if arguments.case is not None:
        return run_file(arguments.case)
    seed = secrets.randbelow(2**31) if arguments.seed is None else arguments.seed
    return run_random(
        seed, arguments.cases, arguments.jobs, arguments.out, as_json=arguments.json, covers=not arguments.oracle_only
    )


if __name__ == "__main__":
    sys.exit(main())
