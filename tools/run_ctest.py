"""Runs ctest over libvgpu's build and exits with 77 where tests were skipped, so that a skip never reads as passed.

Arguments go to ctest. Exit status: ctest's own when it is not 0; 77 when tests were skipped, named on the last line.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = 77
SKIPPED_TEST = re.compile(r"^\s*\d+ - (\S+) \(Skipped\)$")


def main() -> int:
    """Runs ctest with its output passed through."""
    if set(sys.argv[1:]) & {"-h", "--help"}:
        print(__doc__)
        return 0
    skipped: list[str] = []
    command = ["ctest", "--test-dir", "libvgpu/build", "--output-on-failure", "--no-tests=error", *sys.argv[1:]]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None  # noqa: S101  # requested above
        for line in process.stdout:
            print(line, end="", flush=True)
            found = SKIPPED_TEST.match(line)
            if found:
                skipped.append(found[1])
    if process.returncode != 0 or not skipped:
        return process.returncode
    print(
        f"ctest skipped: {', '.join(skipped)}; the reasons are in libvgpu/build/Testing/Temporary/LastTest.log",
        flush=True,
    )
    return SKIPPED


if __name__ == "__main__":
    sys.exit(main())
