"""The compose command: docker's own plugin where it is installed, else one built from the module pinned here.

The built one lies in `<cache>/compose/<version>-<digest>/docker-compose` and runs by itself; nothing is installed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from engine import Progress, UnavailableError
from hami_sim.binaries.cache import cache_root

HERE = Path(__file__).resolve().parent
MODULE = "github.com/docker/compose/v2"
OLDEST = (2, 24)
"""`up --wait` of services that end by themselves works from here on."""
ERROR_LINES = 15


def compose_command(progress: Progress) -> list[str]:
    """What to put in front of `up`, `ps` and so on. Raises UnavailableError."""
    asked = subprocess.run(["docker", "compose", "version", "--short"], capture_output=True, text=True, check=False)
    if asked.returncode == 0 and _version(asked.stdout) >= OLDEST:
        return ["docker", "compose"]
    return [str(_built(progress))]


def _version(text: str) -> tuple[int, int]:
    found = re.match(r"v?(\d+)\.(\d+)", text.strip())
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _built(progress: Progress) -> Path:
    """About three minutes of work."""
    pins = (HERE / "go.mod").read_bytes() + (HERE / "go.sum").read_bytes()
    pinned = re.search(rf"^\s*{re.escape(MODULE)} (v\S+)", pins.decode(), re.MULTILINE)
    if pinned is None:
        raise LookupError(f"{HERE / 'go.mod'} does not require {MODULE}")
    folder = cache_root() / "compose" / f"{pinned[1]}-{hashlib.sha256(pins).hexdigest()[:12]}"
    program = folder / "docker-compose"
    if program.exists():
        return program
    if shutil.which("go") is None:
        raise UnavailableError("docker has no compose plugin, and building one needs Go 1.24 or later")
    progress(f"building the compose plugin {pinned[1]}")
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / "docker-compose.unfinished"
    done = subprocess.run(
        [
            "go",
            "build",
            "-trimpath",
            "-buildvcs=false",
            f"-ldflags=-s -w -X {MODULE}/internal.Version={pinned[1]}",
            "-o",
            str(unfinished),
            f"{MODULE}/cmd",
        ],
        cwd=HERE,
        env=os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise UnavailableError(
            "go build of the compose plugin failed:\n" + "\n".join(done.stderr.splitlines()[-ERROR_LINES:])
        )
    unfinished.rename(program)
    return program
