"""Finds the container of a process on the host, from /proc.

Needs the host's pids. What a process maps and has mounted is told only to who may look into it (CAP_SYS_PTRACE for
other users' processes); its control group is told to everyone, and names pod and container where a kubelet made it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from hami_chassis.no_room import says_nothing_of_the_file

from hami_monitor.core.container_folder import FolderOwner, FolderReading, RegionPlace
from hami_monitor.core.process_trace import (
    ProcessKey,
    ProcessTrace,
    RegionFileId,
    container_by_cgroup,
    namespaced_pids,
    owner_by_maps,
    owner_by_mounts,
    pod_by_cgroup,
    process_stat,
    region_files,
)

_LINES_MAX: Final = 50_000
_TEXT_MAX: Final = 1 << 16
"""Of the short files, which the kernel gives in one piece."""


class ProcProcesses:
    """An OwnerSource, ProcessSearch and FolderUsers. All raise OSError: nothing can be read now."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._known: dict[ProcessKey, ProcessTrace] = {}
        """Whose folder was found: it stays what it is for as long as it lives."""

    def trace(self, pids: Iterable[int], folders: Iterable[FolderReading]) -> dict[int, ProcessTrace]:
        """By pid; of those that run."""
        folders = tuple(folders)
        files, owners = region_files(folders), {folder.owner for folder in folders}
        found: dict[int, ProcessTrace] = {}
        for pid in pids:
            stat = process_stat(self._read(pid, "stat"))
            if stat is not None and stat.is_running:
                key = ProcessKey(pid, stat.began_at_ticks)
                found[pid] = self._known.get(key) or self._traced(key, stat.name, files, owners)
        self._known = {trace.key: trace for trace in found.values() if trace.folder is not None}
        return found

    def _traced(
        self, key: ProcessKey, name: str, files: Mapping[RegionFileId, FolderOwner], owners: Container[FolderOwner]
    ) -> ProcessTrace:
        pid, cgroup = key.pid, self._read(key.pid, "cgroup")
        return ProcessTrace(
            key=key,
            name=name,
            pids=namespaced_pids(self._read(pid, "status")) or (pid,),
            folder=self._by_lines(pid, "maps", lambda lines: owner_by_maps(lines, files))
            or self._by_lines(pid, "mountinfo", lambda lines: owner_by_mounts(lines, owners)),
            cgroup_pod_uid=pod_by_cgroup(cgroup) or "",
            cgroup_container_id=container_by_cgroup(cgroup) or "",
        )

    def search(
        self, began_at_ticks: Container[int], pids: Container[int], places: Iterable[RegionPlace]
    ) -> list[tuple[ProcessTrace, int]]:
        found = [pid for pid in self._all() if self._began_then(pid, began_at_ticks) or self._has_pid(pid, pids)]
        folders = [FolderReading(owner=place.owner, file=place.file, inode=place.inode) for place in places]
        return [(trace, self._pid_namespace(pid)) for pid, trace in self.trace(found, folders).items()]

    def using(self, owners: Iterable[FolderOwner]) -> set[FolderOwner]:
        """By the pod's control group, or by the container's folder that a process has mounted."""
        asked = set(owners)
        uids: set[str | None] = set()
        found: set[FolderOwner | None] = set()
        for pid in self._all():
            uids.add(pod_by_cgroup(self._read(pid, "cgroup")))
            found.add(self._by_lines(pid, "mountinfo", lambda lines: owner_by_mounts(lines, asked)))
        return {owner for owner in asked if owner in found or owner.pod_uid in uids}

    def _all(self) -> Iterator[int]:
        return (int(entry.name) for entry in self._proc.iterdir() if entry.name.isdecimal())

    def _began_then(self, pid: int, began_at_ticks: Container[int]) -> bool:
        stat = process_stat(self._read(pid, "stat"))
        return stat is not None and stat.began_at_ticks in began_at_ticks

    def _has_pid(self, pid: int, pids: Container[int]) -> bool:
        own = namespaced_pids(self._read(pid, "status")) if pids else ()
        return len(own) > 0 and own[-1] in pids

    def _pid_namespace(self, pid: int) -> int:
        try:
            return (self._proc / str(pid) / "ns/pid").stat().st_ino
        except OSError:
            return 0

    def _by_lines(
        self, pid: int, name: str, owner: Callable[[Iterable[str]], FolderOwner | None]
    ) -> FolderOwner | None:
        try:
            with (self._proc / str(pid) / name).open(encoding="utf-8", errors="replace", newline="\n") as lines:
                return owner(islice(lines, _LINES_MAX))
        except OSError as error:
            if says_nothing_of_the_file(error):
                raise
            return None

    def _read(self, pid: int, name: str) -> str:
        try:
            file = os.open(f"{self._proc}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return os.read(file, _TEXT_MAX).decode("utf-8", "replace")
            finally:
                os.close(file)
        except OSError as error:
            if says_nothing_of_the_file(error):
                raise
            return ""
