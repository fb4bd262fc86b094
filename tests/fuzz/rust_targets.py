"""The Rust targets and how they are built: with libFuzzer's coverage, on the stable toolchain, without sanitizers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

RUST_TARGETS = {"snapshot": 8192, "card-policy": 256, "history": 1024}
"""Name to the most bytes of an input."""

COVERAGE = (
    "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 "
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table "
    "-Cllvm-args=-sanitizer-coverage-trace-compares"
)
"""What `cargo fuzz run --sanitizer none` sets. None of it needs a nightly toolchain."""


def build(crate: Path) -> Path:
    """Returns the folder of the programs. A target of its own keeps the flags away from build scripts."""
    host = next(
        line.split(": ")[1]
        for line in subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout.splitlines()
        if line.startswith("host")
    )
    command = ["cargo", "build", "--quiet", "--release", "--bins", "--target", host]
    subprocess.run(command, cwd=crate, env={**os.environ, "RUSTFLAGS": COVERAGE}, check=True)
    return crate / "target" / host / "release"
