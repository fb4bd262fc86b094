"""Installs Debian packages that tests need and a bare machine lacks."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping

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
        raise PackageUnavailableError(
            f"{', '.join(missing)} missing, and installing {', '.join(names)} needs apt-get and root"
        )
    progress(f"installing {', '.join(names)}")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *names]):
        done = subprocess.run(["apt-get", *arguments], env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PackageUnavailableError(f"apt-get {arguments[0]} failed: {done.stderr.strip()}")
    still = [program for program in missing if shutil.which(program) is None]
    if still:
        raise PackageUnavailableError(f"{', '.join(names)} installed, and {', '.join(still)} still missing")
