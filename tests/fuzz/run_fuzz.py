"""Fuzzes every decoder for a while: `run_fuzz.py [--seconds N] [--seed N] [--jobs N] [--only NAME]`.

Python targets (`python_targets.py`) run under atheris, Rust ones (`rust-core/fuzz`) under libFuzzer, those in C
(`libvgpu/tests/fuzz`) under a small fuzzer of their own with sanitizers; all start from `seeds/<target>` and keep what
they learn in `out/fuzz/<target>`. A target fails on an error that is not the decoder's own, a broken promise of what
was read, a call of more than two minutes, or more than 1 GiB of memory; the input is then written to
`out/fuzz/findings`. Put it into the target's seeds together with the fix: every seed is tried by pytest.
Exit status: 0, 1 when a target failed, 77 when the fuzzer is not there.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RUST = ROOT / "rust-core/fuzz"
SKIPPED = 77
CALL_SECONDS_MAX = 120
"""By the clock: no decoder needs a second, but the machine may be busy."""
USUAL_SEED = 1
MEMORY_MIB_MAX = 1024

sys.path.insert(0, str(HERE))
from c_targets import C_TARGETS, are_built, program  # noqa: E402  # beside this script, not in a package
from python_targets import TARGETS  # noqa: E402
from rust_targets import RUST_TARGETS, build  # noqa: E402


class Job(NamedTuple):
    name: str
    command: list[str]
    most_bytes: int


class Outcome(NamedTuple):
    name: str
    passed: bool
    runs: str
    output: str
    seconds: float


def jobs(names: list[str]) -> list[Job]:
    python = [Job(n, [sys.executable, str(HERE / "fuzz_one.py"), n], t.most_bytes) for n, t in TARGETS.items()]
    wanted = [job for job in python if not names or job.name in names]
    rust = [name for name in RUST_TARGETS if not names or name in names]
    if rust:
        programs = build(RUST)
        wanted += [Job(name, [str(programs / name)], RUST_TARGETS[name]) for name in rust]
    in_c = [name for name in C_TARGETS if not names or name in names]
    if in_c and not are_built():
        print("fuzz: the targets in C are not built: `make libvgpu`, with a compiler that has sanitizers", flush=True)
    elif in_c:
        wanted += [Job(name, [str(program(name))], C_TARGETS[name]) for name in in_c]
    return wanted


def fuzz(job: Job, seconds: int, seed: int, out: Path) -> Outcome:
    corpus, findings = out / job.name, out / "findings"
    corpus.mkdir(parents=True, exist_ok=True)
    findings.mkdir(parents=True, exist_ok=True)
    arguments = [
        str(corpus), str(HERE / "seeds" / job.name), f"-max_total_time={seconds}", f"-seed={seed}",
        f"-timeout={CALL_SECONDS_MAX}",
        f"-rss_limit_mb={MEMORY_MIB_MAX}", f"-max_len={job.most_bytes}", f"-artifact_prefix={findings}/{job.name}-",
        "-print_final_stats=1", "-verbosity=0",
    ]  # fmt: skip
    started = time.monotonic()
    done = subprocess.run(
        [*job.command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, cwd=ROOT
    )
    lines = done.stdout.decode(errors="replace").splitlines()
    output = "\n".join(line for line in lines if not line.startswith(("INFO:", "WARNING: Failed to find function")))
    runs = next((line.split(":")[-1].strip() for line in lines if "number_of_executed_units" in line), "?")
    return Outcome(job.name, done.returncode == 0, runs, output, time.monotonic() - started)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=int(os.environ.get("FUZZ_SECONDS", "10")), help="each target")
    parser.add_argument("--seed", type=int, default=USUAL_SEED, help="which inputs are tried; 0: others each time")
    parser.add_argument("--jobs", type=int, default=2, help="targets at a time")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this target (repeatable)")
    parser.add_argument("--out", type=Path, default=ROOT / "out/fuzz")
    arguments = parser.parse_args()
    unknown = set(arguments.only) - {*TARGETS, *RUST_TARGETS, *C_TARGETS}
    if unknown:
        parser.error(
            f"unknown targets: {', '.join(sorted(unknown))}; known: {', '.join([*TARGETS, *RUST_TARGETS, *C_TARGETS])}"
        )
    if importlib.util.find_spec("atheris") is None:
        print("fuzz: atheris is not installed; it has no build for this Python or platform")
        return SKIPPED
    out = arguments.out.resolve()
    seed = arguments.seed or random.SystemRandom().randrange(1, 2**31)
    print(f"fuzz: --seed {seed}", flush=True)
    failed = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for outcome in pool.map(lambda job: fuzz(job, arguments.seconds, seed, out), jobs(arguments.only)):
            word = "passed" if outcome.passed else "FAILED"
            print(f"{word} {outcome.name}: {outcome.runs} runs in {outcome.seconds:.0f} s", flush=True)
            if not outcome.passed:
                failed += 1
                print(outcome.output[-4000:], flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
