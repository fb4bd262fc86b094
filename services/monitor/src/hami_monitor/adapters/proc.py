"""Finds the container of a process on the host, from /proc.

Needs the host's pids; for other users' processes also the right to look into them (CAP_SYS_PTRACE). Where that lacks,
the control group still names the pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from hami_monitor.core.container_folder import FolderOwner, FolderReading
from hami_monitor.core.process_trace import RegionFileId, owner_by_maps, pod_by_cgroup, region_files, start_time

_MAPS_LINES_MAX: Final = 50_000


class ProcProcesses:
    """An OwnerSource."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._known: dict[tuple[int, str], FolderOwner] = {}

    def owners(self, pids: Iterable[int], folders: Iterable[FolderReading]) -> dict[int, FolderOwner]:
        """By pid; the container's name is empty where only the pod could be told."""
        files = region_files(folders)
        found: dict[int, FolderOwner] = {}
        known: dict[tuple[int, str], FolderOwner] = {}
        for pid in pids:
            began = start_time(self._read(pid, "stat"))
            if began is None:
                continue
            owner = self._known.get((pid, began)) or self._by_region(pid, files)
            if owner is not None:
                known[pid, began] = owner
            elif (pod_uid := pod_by_cgroup(self._read(pid, "cgroup"))) is not None:
                owner = FolderOwner(pod_uid=pod_uid, container="")
            if owner is not None:
                found[pid] = owner
        self._known = known
        return found

    def _by_region(self, pid: int, files: Mapping[RegionFileId, FolderOwner]) -> FolderOwner | None:
        try:
            with (self._proc / str(pid) / "maps").open(encoding="utf-8", errors="replace") as maps:
                return owner_by_maps(islice(maps, _MAPS_LINES_MAX), files)
        except OSError:
            return None

    def _read(self, pid: int, name: str) -> str:
        try:
            return (self._proc / str(pid) / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
