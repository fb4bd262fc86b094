"""Runs the dashboards' queries and the alerts on a real Prometheus: `run.py [pytest arguments]`.

Prometheus is Debian's package, unpacked into a folder of its own and started on loopback; it scrapes a local cluster.
Exit status 77, with the reason as the last line, where the package cannot be had.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from hami_sim.debian_packages import PackageUnavailableError, unpack
from prometheus import FOLDER_VARIABLE

SKIPPED = 77
HERE = Path(__file__).resolve().parent


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="hami-prometheus-") as folder:
        try:
            unpack("prometheus", Path(folder), lambda line: print(f"dashboards: {line}", flush=True))
        except PackageUnavailableError as error:
            print(error, flush=True)
            return SKIPPED
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *(sys.argv[1:] or [str(HERE)])],
            env=os.environ | {FOLDER_VARIABLE: folder},
            check=False,
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
