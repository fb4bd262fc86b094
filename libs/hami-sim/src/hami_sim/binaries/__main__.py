"""`python -m hami_sim.binaries`: finds or builds the programs of a control plane and prints where they are.

One `name=path` a line on standard output, progress on standard error. Exit status 1 when they cannot be had.
"""

from __future__ import annotations

import sys

import msgspec

from hami_sim.binaries import BinariesUnavailableError, obtain_binaries


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")


def main() -> int:
    """Runs the command."""
    try:
        binaries = obtain_binaries(_to_stderr)
    except BinariesUnavailableError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    for name, path in msgspec.structs.asdict(binaries).items():
        sys.stdout.write(f"{name}={path if path is not None else 'absent'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
