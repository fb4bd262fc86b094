"""The places where the control plane's programs are looked for, in order."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from hami_sim.binaries.build import build
from hami_sim.binaries.cache import ETCD, KUBERNETES, Recipe
from hami_sim.binaries.errors import BinariesUnavailableError

# A Binding's labels reach the pod in 1.37 and did not in 1.34; etcd 3.5 has all the flags that it is started with.
OLDEST_VERSION = {"kubernetes": (1, 37), "etcd": (3, 5)}
REQUIRED_PROGRAMS = {
    "kubernetes": ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"),
    "etcd": ("etcd",),
}
VERSION_TIMEOUT_SECONDS = 30

Progress = Callable[[str], None]


class Binaries(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of the programs of one control plane."""

    etcd: Path
    kube_apiserver: Path
    kube_controller_manager: Path
    kube_scheduler: Path
    kubectl: Path
    kubelet: Path | None = None


class _Found(NamedTuple):
    programs: dict[str, Path]
    origin: str


def find_binaries(progress: Progress = lambda _line: None) -> Binaries:
    """The programs where they are ready to run; builds nothing. Raises `BinariesUnavailableError`."""
    return _binaries(progress, allow_build=False)


def obtain_binaries(progress: Progress = lambda _line: None) -> Binaries:
    """The programs, built when they are nowhere: 8 to 16 minutes on two cores, 3 GB of memory, 6 GB of disk.

    `progress` gets a line for each place and each stage. Raises `BinariesUnavailableError`.
    """
    return _binaries(progress, allow_build=True)


def _binaries(progress: Progress, *, allow_build: bool) -> Binaries:
    kubernetes = _find(KUBERNETES, progress, allow_build=allow_build)
    etcd = _find(ETCD, progress, allow_build=allow_build)
    return Binaries(
        etcd=etcd["etcd"],
        kube_apiserver=kubernetes["kube-apiserver"],
        kube_controller_manager=kubernetes["kube-controller-manager"],
        kube_scheduler=kubernetes["kube-scheduler"],
        kubectl=kubernetes["kubectl"],
        kubelet=kubernetes.get("kubelet"),
    )


def _find(recipe: Recipe, progress: Progress, *, allow_build: bool) -> dict[str, Path]:
    reasons: list[str] = []
    for candidate in _candidates(recipe):
        refusal = candidate if isinstance(candidate, str) else _refusal(recipe, candidate)
        if refusal is None and not isinstance(candidate, str):
            progress(f"{recipe.name}: from {candidate.origin}")
            return candidate.programs
        reasons.append(str(refusal))
    if not allow_build:
        raise BinariesUnavailableError(
            f"the programs of {recipe.name} are nowhere ({'; '.join(reasons)}). `make kubernetes` builds them"
        )
    for reason in reasons:
        progress(f"{recipe.name}: {reason}")
    folder = build(recipe, progress)
    return _in_folder(recipe, folder)


def _candidates(recipe: Recipe) -> Iterator[_Found | str]:
    """What each place holds, or the reason why it holds nothing of use."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets:
        yield _complete(recipe, _in_folder(recipe, Path(assets)), "KUBEBUILDER_ASSETS")
    else:
        yield "KUBEBUILDER_ASSETS is not set"
    on_path = {name: Path(found) for name in recipe.program_names if (found := shutil.which(name))}
    yield _complete(recipe, on_path, "PATH")
    if not recipe.source.is_dir():
        yield f"no cache and no build without a checkout of the repository ({recipe.source} is missing)"
        return
    folder = recipe.folder()
    yield _complete(recipe, _in_folder(recipe, folder), f"the cache {folder}")


def _in_folder(recipe: Recipe, folder: Path) -> dict[str, Path]:
    paths = {name: folder / name for name in recipe.program_names}
    return {name: path.absolute() for name, path in paths.items() if os.access(path, os.X_OK)}


def _complete(recipe: Recipe, programs: dict[str, Path], origin: str) -> _Found | str:
    missing = [name for name in REQUIRED_PROGRAMS[recipe.name] if name not in programs]
    if missing:
        return f"{origin} lacks {', '.join(missing)}"
    return _Found(programs, origin)


def _refusal(recipe: Recipe, found: _Found) -> str | None:
    """Why what was found is not good enough; programs of the cache are what they were built as."""
    if found.origin.startswith("the cache"):
        return None
    main_program = found.programs[REQUIRED_PROGRAMS[recipe.name][0]]
    try:
        printed = subprocess.run(
            [main_program, "--version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"{found.origin}: {main_program} does not tell its version ({error})"
    version = re.search(r"(\d+)\.(\d+)\.\d+", printed)
    oldest = OLDEST_VERSION[recipe.name]
    if version is None or (int(version[1]), int(version[2])) < oldest:
        first_line = printed.strip().splitlines()[0] if printed.strip() else "nothing"
        return f"{found.origin}: {main_program} says '{first_line}', needed is {oldest[0]}.{oldest[1]} or later"
    return None
