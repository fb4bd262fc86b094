"""Builds a recipe with Go into the cache, one build at a time on a machine, with visible progress."""

from __future__ import annotations

import fcntl
import os
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hami_sim.binaries.cache import ETCD, KUBERNETES, Recipe, cache_root
from hami_sim.binaries.errors import BinariesUnavailableError

PROGRESS_SECONDS = 10.0
LOCK_POLL_SECONDS = 1.0
# Go's build cache of a cold build holds 4 GB, the modules 1 GB, the program 0.2 GB.
NEEDED_DISK_BYTES = 6 * 1024**3
ERROR_LINES = 20

Progress = Callable[[str], None]


def build(recipe: Recipe, progress: Progress) -> Path:
    """Builds the recipe unless another process did meanwhile, and returns its folder in the cache.

    Raises `BinariesUnavailableError` with Go's last lines; what was compiled is kept for the next attempt.
    """
    if shutil.which("go") is None:
        raise BinariesUnavailableError(
            f"{recipe.name} must be built and there is no `go`: install Go 1.26 or later, or set KUBEBUILDER_ASSETS to "
            f"a folder with {', '.join(recipe.program_names)}"
        )
    folder = recipe.folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _build_lock(progress):
        if folder.is_dir():
            return folder
        free_bytes = shutil.disk_usage(folder.parent).free
        if free_bytes < NEEDED_DISK_BYTES:
            raise BinariesUnavailableError(
                f"building {recipe.name} needs {NEEDED_DISK_BYTES >> 30} GB in {folder.parent}, only "
                f"{free_bytes >> 30} GB are free"
            )
        unfinished = folder.with_name(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)  # of a build that was killed
        unfinished.mkdir()
        if len(recipe.packages) > 1:
            _compile(recipe, f"{unfinished}/", progress)
        else:
            program = unfinished / f"hami-{recipe.name}"
            _compile(recipe, str(program), progress)
            for name in recipe.program_names:
                (unfinished / name).symlink_to(program.name)
        unfinished.rename(folder)
        if all(other.folder().is_dir() for other in (KUBERNETES, ETCD)):
            # 4 GB for the sake of a rebuild that a new version alone would ask for.
            shutil.rmtree(cache_root() / "go-build", ignore_errors=True)
    return folder


def _compile(recipe: Recipe, output: str, progress: Progress) -> None:
    started = time.monotonic()
    environment = os.environ | {
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=readonly",
        "GOWORK": "off",
        "GOCACHE": str(cache_root() / "go-build"),
    }

    def say(stage: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - started), 60)
        progress(f"building {recipe.name} {recipe.version()}: {minutes} min {seconds:02} s, {stage}")

    say("fetching modules")
    tags = f"-tags={','.join(recipe.tags)}"
    packages = _run_go(recipe, ["list", "-deps", tags, *recipe.packages], environment).split()
    compiled = 0
    last_said = 0.0
    last_lines: list[str] = []
    command = [
        "go",
        "build",
        "-v",
        "-trimpath",
        "-buildvcs=false",
        tags,
        f"-ldflags={_linker_flags(recipe)}",
        "-o",
        output,
        *recipe.packages,
    ]
    with subprocess.Popen(command, cwd=recipe.source, env=environment, stderr=subprocess.PIPE, text=True) as go:
        for line in _lines_or_ticks(go):
            if line is not None:
                compiled += 1  # -v prints each package that is not in the build cache yet
                last_lines = [*last_lines[1 - ERROR_LINES :], line]
            if time.monotonic() - last_said >= PROGRESS_SECONDS:
                last_said = time.monotonic()
                linking = bool(last_lines) and last_lines[-1] == packages[-1]
                say("linking" if linking else f"compiled {compiled} of up to {len(packages)} packages")
    if go.returncode != 0:
        raise BinariesUnavailableError(f"go build of {recipe.name} failed:\n" + "\n".join(last_lines))
    say("done")


def _linker_flags(recipe: Recipe) -> str:
    flags = ["-s", "-w"]
    if recipe.version_variables:
        major, minor, patch = recipe.version().removeprefix("v").split(".")
        for variable, value in recipe.version_variables:
            flags += ["-X", f"{variable}={value.format(major=major, minor=minor, patch=patch)}"]
    return " ".join(flags)


def _run_go(recipe: Recipe, arguments: list[str], environment: dict[str, str]) -> str:
    finished = subprocess.run(
        ["go", *arguments], cwd=recipe.source, env=environment, capture_output=True, text=True, check=False
    )
    if finished.returncode != 0:
        last_lines = "\n".join(finished.stderr.splitlines()[-ERROR_LINES:])
        raise BinariesUnavailableError(f"go {arguments[0]} of {recipe.name} failed:\n{last_lines}")
    return finished.stdout


def _lines_or_ticks(go: subprocess.Popen[str]) -> Iterator[str | None]:
    """Lines of standard error as they come, None after each pause, until the end."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        for line in go.stderr or ():
            lines.put(line.rstrip("\n"))
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=PROGRESS_SECONDS)
        except queue.Empty:
            yield None
            continue
        if line is None:
            return
        yield line


@contextmanager
def _build_lock(progress: Progress) -> Iterator[None]:
    with (cache_root() / "build.lock").open("w") as lock:
        said = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not said:
                    progress("another process is building; waiting for it")
                    said = True
                time.sleep(LOCK_POLL_SECONDS)
        yield
