"""A Docker engine to talk to: the one that runs, or one that is started for the time of a block and ended after it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hami_sim.debian_packages import PackageUnavailableError, install_missing

START_SECONDS = 300.0
STOP_SECONDS = 180.0
POLL_SECONDS = 0.5
LOG_LINES = 10
PACKAGES = {"docker": "docker.io", "dockerd": "docker.io", "mmdebstrap": "mmdebstrap"}

Progress = Callable[[str], None]


class UnavailableError(Exception):
    """This machine cannot run the containers; the message says why."""


@contextmanager
def running_engine(log: Path, progress: Progress, *, keep: bool) -> Iterator[None]:
    """Raises UnavailableError. An engine that runs already is left alone; one started here may be kept running."""
    install("docker", progress)
    if _answers():
        yield
        return
    install("dockerd", progress)
    if os.geteuid() != 0:
        raise UnavailableError("no Docker engine answers, and only root can start one")
    progress("starting dockerd")
    with log.open("wb") as output:
        daemon = subprocess.Popen(["dockerd"], stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        _wait(daemon, log)
        yield
    finally:
        if not keep:
            progress("ending dockerd")
            _end(daemon)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def install(program: str, progress: Progress) -> None:
    """Installs a program by apt unless it is there. Raises UnavailableError."""
    try:
        install_missing({program: PACKAGES[program]}, progress)
    except PackageUnavailableError as error:
        raise UnavailableError(str(error)) from error


def _answers() -> bool:
    asked = subprocess.run(["docker", "version", "--format={{.Server.Version}}"], capture_output=True, check=False)
    return asked.returncode == 0


def _wait(daemon: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not _answers():
        ended = daemon.poll() is not None
        if ended or time.monotonic() > deadline:
            last = "; ".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
            raise UnavailableError(f"dockerd {'ended at once' if ended else 'does not answer'}: {last}")
        time.sleep(POLL_SECONDS)
