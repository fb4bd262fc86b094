"""Containers as processes: start, find again, signal, and learn how they ended.

One folder per start of a container, `<containers>/<pod uid>/<container>/<attempt>`, written by its shim. A folder is
all that is needed to find a running process after the stand-in was started again.
"""

import asyncio
import contextlib
import json
import os
import secrets
import signal
from pathlib import Path
from typing import TypeVar

import msgspec
from hami_chassis.untrusted_folders import remove_tree

from hami_sim.kubelet import shim
from hami_sim.kubelet.launch import Launch
from hami_sim.kubelet.shim_server import ShimServer, has_shim

START_ERROR_CODE = 128
_START_POLL_SECONDS = 0.02
_T = TypeVar("_T")


class ProcessStart(msgspec.Struct, frozen=True):
    """`state.json`."""

    pid: int
    start_ticks: int
    started_at: float


class ProcessEnd(msgspec.Struct, frozen=True):
    """`exit.json`; times in seconds since the epoch."""

    started_at: float
    finished_at: float
    code: int | None = None
    signal: int | None = None
    fault: str | None = None
    """Why the process never ran."""

    @property
    def exit_code(self) -> int:
        """As a runtime reports it."""
        if self.fault is not None:
            return START_ERROR_CODE
        return 128 + self.signal if self.signal is not None else (self.code or 0)


class _Shim(msgspec.Struct, frozen=True):
    pid: int
    start_ticks: int


class ContainerProcess:
    """One start of a container, by its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def attempt(self) -> int:
        return int(self.folder.name)

    @property
    def log_path(self) -> Path:
        return self.folder / "log"

    def begin(self) -> ProcessStart | None:
        """None: it has not started or could not."""
        return _read(self.folder / "state.json", ProcessStart)

    def end(self) -> ProcessEnd | None:
        """None: it runs, or its shim died without a word."""
        return _read(self.folder / "exit.json", ProcessEnd)

    def is_over(self) -> bool:
        """It ended, or its pod is gone."""
        return self.end() is not None or not self.folder.exists()

    def signal(self, number: int) -> None:
        """To the container's first process; nothing happens when it is over."""
        start = self.begin()
        if start is None or self.end() is not None:
            return
        if _start_ticks(start.pid) == start.start_ticks:
            _kill(start.pid, number)

    def kill(self) -> None:
        """End the process; the shim ends what it leaves behind."""
        self.signal(signal.SIGKILL)

    async def end_now(self) -> ProcessEnd:
        """End it, also where its shim has not started it yet: there is nothing to kill until then."""
        while self.begin() is None and self.end() is None and self._living_shim() is not None:  # noqa: ASYNC110  # files
            await asyncio.sleep(_START_POLL_SECONDS)
        self.kill()
        return await self.ended()

    async def ended(self) -> ProcessEnd:
        """Wait until it is over. A process whose shim died is ended, for nobody could tell its exit code."""
        shim_pid = self._living_shim()
        if shim_pid is not None:
            await _process_gone(shim_pid)
        end = self.end()
        if end is None:
            self.kill()
            start = self.begin()
            if start and _start_ticks(start.pid) == start.start_ticks:
                await _process_gone(start.pid)
            now = self.folder.stat().st_mtime
            end = ProcessEnd(start.started_at if start else now, now, signal=signal.SIGKILL)
            shim.write(str(self.folder), "exit.json", msgspec.to_builtins(end))  # whole: others may read it meanwhile
        return end

    def _living_shim(self) -> int | None:
        """Its pid."""
        record = _read(self.folder / "shim.json", _Shim)
        return record.pid if record is not None and _start_ticks(record.pid) == record.start_ticks else None


class ContainerProcesses:
    """All containers of one node."""

    def __init__(self, folder: Path, shims: ShimServer) -> None:
        self._folder = folder
        self._discarded = folder.with_name(f"{folder.name}-removed")
        self._shims = shims

    def pods(self) -> list[str]:
        """UIDs of the pods that have a folder."""
        return sorted(path.name for path in self._folder.iterdir()) if self._folder.exists() else []

    def attempts(self, pod_uid: str, container: str) -> list[ContainerProcess]:
        """Oldest first. A folder whose shim never came up does not count."""
        folder = self._folder / pod_uid / container
        if not folder.exists():
            return []
        numbered = sorted(folder.iterdir(), key=lambda path: int(path.name))
        return [ContainerProcess(path) for path in numbered if has_shim(path)]

    def give_up_unstarted(self) -> None:
        """Of an earlier life of the stand-in: ends what it left half done.

        Every start is claimed in its shim's place: a shim that comes up late finds its folder claimed or gone and ends
        itself.
        """
        remove_tree(self._discarded)
        for folder in self._folder.glob("*/*/*"):
            with contextlib.suppress(FileExistsError):
                (folder / "shim.json").open("x").close()
                self._remove(folder)

    def _remove(self, folder: Path) -> None:
        """Out of sight at one go: what is left of it after an end in the midst is no container's. Raises OSError."""
        out_of_sight = self._discarded / secrets.token_hex(8)
        self._discarded.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            folder.rename(out_of_sight)
        remove_tree(out_of_sight)

    def began(self, pod_uid: str, container: str, attempt: int) -> bool:
        """The start has come so far that there may be a process."""
        return (self._folder / pod_uid / container / str(attempt)).exists()

    def all_of(self, pod_uid: str) -> list[ContainerProcess]:
        folder = self._folder / pod_uid
        names = [path.name for path in folder.iterdir()] if folder.exists() else []
        return [process for name in names for process in self.attempts(pod_uid, name)]

    async def start(
        self, pod_uid: str, container: str, attempt: int, launch: Launch, *, own_root: bool
    ) -> ContainerProcess:
        """Returns once the process runs or is known not to: `end()` then says why. Raises OSError."""
        folder = self._folder / pod_uid / container / str(attempt)
        scratch = folder / "scratch"
        spec = {
            "argv": launch.argv,
            "environment": launch.environment,
            "working_dir": launch.working_dir,
            "binds": [msgspec.structs.asdict(bind) for bind in launch.binds],
            "scratch": str(scratch) if own_root else "",
        }
        folder.mkdir(parents=True)
        try:
            if own_root:
                scratch.mkdir()
            (folder / "spec.json").write_text(json.dumps(spec))
            await self._shims.start_shim(folder)
        except OSError:
            self._remove(folder)
            raise
        self._drop_old(pod_uid, container)
        return ContainerProcess(folder)

    def remove_pod(self, pod_uid: str) -> None:
        """Forget the folders of a pod whose processes are over."""
        with contextlib.suppress(OSError):
            self._remove(self._folder / pod_uid)

    def _drop_old(self, pod_uid: str, container: str) -> None:
        """The present and the previous start are kept: their logs can be asked for."""
        for process in self.attempts(pod_uid, container)[:-2]:
            with contextlib.suppress(OSError):
                self._remove(process.folder)


async def _process_gone(pid: int) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    loop.add_reader(handle, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


def _start_ticks(pid: int) -> int | None:
    try:
        return shim.start_ticks(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _read(path: Path, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
