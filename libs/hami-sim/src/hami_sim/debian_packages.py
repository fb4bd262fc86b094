"""Debian packages that tests need and a bare machine lacks: installed, or only unpacked."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

Progress = Callable[[str], None]


class PackageUnavailableError(Exception):
    """A program is missing and cannot be installed; the message says why."""


def install_missing(packages: Mapping[str, str], progress: Progress) -> None:
    """`packages`: by the name or path of a program, the package that brings it. Raises PackageUnavailableError."""
    missing = {program: package for program, package in packages.items() if shutil.which(program) is None}
    if not missing:
        return
    names = sorted(set(missing.values()))
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        are = "is" if len(missing) == 1 else "are"
        raise PackageUnavailableError(
            f"{', '.join(missing)} {are} missing, and installing {', '.join(names)} needs apt-get and root"
        )
    progress(f"installing {', '.join(names)}")
    _apt_get("update", "-qq")
    _apt_get("install", "-y", "-qq", "--no-install-recommends", *names)
    still = [program for program in missing if shutil.which(program) is None]
    if still:
        raise PackageUnavailableError(f"{', '.join(names)} installed, and {', '.join(still)} still missing")


def unpack(package: str, into: Path, progress: Progress) -> None:
    """A package's files below `into`, without what it depends on: nothing is installed, no service of it starts, and
    only lists of packages that are out of date need root. Raises PackageUnavailableError."""
    if shutil.which("apt-get") is None:
        raise PackageUnavailableError(f"{package} is fetched by apt-get, which this machine lacks")
    progress(f"fetching {package}")
    into.mkdir(parents=True, exist_ok=True)
    try:
        _apt_get("download", "-qq", package, folder=into)
    except PackageUnavailableError:
        if os.geteuid() != 0:
            raise
        _apt_get("update", "-qq")
        _apt_get("download", "-qq", package, folder=into)
    (archive,) = into.glob(f"{package}_*.deb")
    done = subprocess.run(["dpkg-deb", "-x", archive, into], capture_output=True, text=True, check=False)
    archive.unlink()
    if done.returncode != 0:
        raise PackageUnavailableError(f"{package} cannot be unpacked: {done.stderr.strip()}")


def _apt_get(*arguments: str, folder: Path | None = None) -> None:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        ["apt-get", *arguments], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise PackageUnavailableError(f"apt-get {arguments[0]} failed: {done.stderr.strip()}")
