"""Proves that the oracle notices faults of the engine: `seeded_faults.py [--quick] [--cases N] [--only NAME]`.

Each fault of `seeded_faults.toml` is put into a copy of the engine, which is built (without its own assertions, so
that only the oracle can notice) and compared with the oracle until they differ. Exit status: 0 when every fault was
noticed and the copy without a fault agrees, 1 when one survived, 2 when a fault no longer applies or does not build.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
RUST = HERE.parents[1] / "rust-core"
FOLDER = RUST / "target/seeded-faults"
"""Kept from run to run, so that what did not change is not built again."""
COPY = FOLDER / "rust-core"
SOURCES = COPY / "crates/placement/src"
SEED = 20_000_701
TESTS = "#[cfg(test)]"


class Fault(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    quick: bool = False


class FaultError(Exception):
    """The engine has changed: mend the table, or the fault no longer builds."""


class Outcome(NamedTuple):
    """`cases`: until the difference was noticed, or all that were tried."""

    noticed: bool
    cases: int
    difference: str
    seconds: float


def load_faults() -> list[Fault]:
    return [Fault(**entry) for entry in tomllib.loads((HERE / "seeded_faults.toml").read_text())["fault"]]


def mutated(source: str, fault: Fault) -> str:
    """The file with the fault in it."""
    code, mark, tests = source.partition(TESTS)
    if code.count(fault.old) != 1:
        raise FaultError(f"{fault.name}: {fault.file} holds {fault.old!r} {code.count(fault.old)} times, not once")
    return code.replace(fault.old, fault.new) + mark + tests


def refresh_copy() -> None:
    """Files that did not change keep their times, or everything would be built again."""
    COPY.mkdir(parents=True, exist_ok=True)
    wanted = {
        file.relative_to(RUST)
        for top in ("crates", "python", "Cargo.toml", "Cargo.lock")
        for file in ((RUST / top).rglob("*") if (RUST / top).is_dir() else [RUST / top])
        if file.is_file() and "__pycache__" not in file.parts and not file.name.endswith(".so")
    }
    for stale in [file for file in COPY.rglob("*") if file.is_file() and file.relative_to(COPY) not in wanted]:
        if not stale.name.endswith(".so") and "__pycache__" not in stale.parts:
            stale.unlink()
    for path in wanted:
        write_if_changed(COPY / path, (RUST / path).read_bytes())


def write_if_changed(file: Path, content: bytes) -> None:
    if not file.exists() or file.read_bytes() != content:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def build() -> None:
    settings = {
        "CARGO_TARGET_DIR": str(FOLDER / "target"),
        "CARGO_PROFILE_DEV_DEBUG_ASSERTIONS": "false",
        "CARGO_PROFILE_DEV_DEBUG": "0",
    }
    command = ["cargo", "build", "--quiet", "-p", "hami-engine-python", "--features", "pyo3/extension-module"]
    done = subprocess.run(
        command, cwd=COPY, env={**os.environ, **settings}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise FaultError(f"the engine does not build:\n{done.stderr}")
    shutil.copyfile(FOLDER / "target/debug/lib_engine.so", COPY / "python/hami_engine/_engine.abi3.so")


def compare(cases: int) -> Outcome:
    """Runs the oracle against the copy."""
    started = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": str(COPY / "python")}
    where = [sys.executable, "-c", "import hami_engine; print(hami_engine.__file__)"]
    loaded = subprocess.run(where, env=environment, capture_output=True, text=True, check=True).stdout
    if Path(loaded.strip()).parent != COPY / "python/hami_engine":
        raise FaultError(f"the oracle would run against {loaded.strip()}, not against the copy")
    command = [sys.executable, str(HERE / "run_oracle.py"), "--cases", str(cases), "--seed", str(SEED), "--json"]
    done = subprocess.run(
        [*command, "--out", str(FOLDER / "out"), "--oracle-only"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    report = json.loads(done.stdout.splitlines()[-1])
    failure = report["failure"]
    difference = failure["difference"].splitlines()[0] if failure else ""
    return Outcome(failure is not None, report["cases"], difference, time.monotonic() - started)


def try_fault(fault: Fault, cases: int) -> Outcome:
    file = SOURCES / fault.file
    original = file.read_text()
    file.write_text(mutated(original, fault))
    try:
        build()
        return compare(cases)
    finally:
        file.write_text(original)


def run(faults: list[Fault], cases: int) -> int:
    refresh_copy()
    for fault in faults:
        mutated((SOURCES / fault.file).read_text(), fault)
    build()
    clean = compare(min(cases, 300))
    if clean.noticed:
        print(f"seeded faults: the engine without a fault differs from the oracle already: {clean.difference}")
        return 1
    survived = 0
    for fault in faults:
        outcome = try_fault(fault, cases)
        survived += not outcome.noticed
        word = f"noticed in case {outcome.cases}" if outcome.noticed else f"SURVIVED {outcome.cases} cases"
        print(f"{word:24} {fault.name} ({fault.file})", flush=True)
        if outcome.noticed:
            print(f"{'':24} {outcome.difference}", flush=True)
    print(f"seeded faults: {len(faults) - survived} of {len(faults)} noticed")
    return 1 if survived else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the faults marked quick")
    parser.add_argument("--cases", type=int, default=20_000, help="tried before a fault counts as survived")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this fault (repeatable)")
    arguments = parser.parse_args()
    faults = [fault for fault in load_faults() if fault.quick or not arguments.quick]
    if arguments.only:
        faults = [fault for fault in faults if fault.name in arguments.only]
    try:
        return run(faults, arguments.cases)
    except FaultError as error:
        print(f"seeded faults: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
