"""Whose process is it: read from what the kernel says about it, which the process cannot write."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from typing import Final

import msgspec

from hami_monitor.core.container_folder import FolderOwner, FolderReading, owner_of

_POD: Final = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})\b")
"""In a control group's path, with the dashes of a UID as they are or as `_` (systemd). Static pods have no dashes."""
_CONTAINER: Final = re.compile(r"[0-9a-f]{64}")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
_CONTAINERS_FOLDER: Final = "containers"


class RegionFileId(msgspec.Struct, frozen=True):
    """Inode and name: node-agents give every container's file a random name."""

    inode: int
    name: str


class ProcessKey(msgspec.Struct, frozen=True, order=True):
    """Names a process for ever."""

    pid: int
    """On the host."""
    began_at_ticks: int


class ProcessTrace(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernel tells of a living process."""

    key: ProcessKey
    name: str = ""
    """The process may choose it."""
    pids: tuple[int, ...] = ()
    """In each PID namespace that it is in, from the host's inwards."""
    folder: FolderOwner | None = None
    """Container whose region it maps, or whose folder it has mounted."""
    cgroup_pod_uid: str = ""
    cgroup_container_id: str = ""

    @property
    def innermost_pid(self) -> int:
        """As the process itself knows it; 0: not told."""
        return self.pids[-1] if self.pids else 0


class ProcessStat(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    is_running: bool
    """Neither ended nor about to be."""
    began_at_ticks: int


def region_files(folders: Iterable[FolderReading]) -> dict[RegionFileId, FolderOwner]:
    return {RegionFileId(folder.inode, folder.file): folder.owner for folder in folders if folder.file}


def owner_by_maps(maps: Iterable[str], files: Mapping[RegionFileId, FolderOwner]) -> FolderOwner | None:
    """The container whose region file the process has mapped, from the lines of /proc/<pid>/maps.

    The path is as in the container, so only its last part is looked at.
    """
    for line in maps:
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[4].isdecimal():
            owner = files.get(RegionFileId(int(fields[4]), fields[5].strip().rpartition("/")[2]))
            if owner is not None:
                return owner
    return None


def owner_by_mounts(mounts: Iterable[str], owners: Container[FolderOwner]) -> FolderOwner | None:
    """The container whose folder the process has mounted, from the lines of /proc/<pid>/mountinfo.

    Field 4 is where in its filesystem the mounted folder lies, however it is called in the container.
    """
    for line in mounts:
        fields = line.split(" ", 4)
        if len(fields) < 5:
            continue
        path = _ESCAPED.sub(lambda escaped: chr(int(escaped[1], 8)), fields[3])
        rest, _, name = path.rpartition("/")
        owner = owner_of(name) if rest.rpartition("/")[2] == _CONTAINERS_FOLDER else None
        if owner is not None and owner in owners:
            return owner
    return None


def pod_by_cgroup(cgroup: str) -> str | None:
    """The pod's UID, from the text of /proc/<pid>/cgroup."""
    found = _POD.search(cgroup)
    return found[1].replace("_", "-") if found is not None else None


def container_by_cgroup(cgroup: str) -> str | None:
    """The runtime's id of the container, from the same text: what follows the pod's own group."""
    pod = _POD.search(cgroup)
    found = _CONTAINER.search(cgroup, pod.end()) if pod is not None else None
    return found[0] if found is not None else None


def process_stat(stat: str) -> ProcessStat | None:
    """Name, state and start (field 22) from /proc/<pid>/stat. The name in parentheses may hold anything."""
    before, _, after = stat.rpartition(")")
    fields = after.split()
    if len(fields) <= 19 or not (fields[19].isascii() and fields[19].isdecimal()):
        return None
    return ProcessStat(
        name=before.partition("(")[2], is_running=fields[0] not in ("Z", "X", "x"), began_at_ticks=int(fields[19])
    )


def namespaced_pids(status: str) -> tuple[int, ...]:
    """From the text of /proc/<pid>/status; empty where the kernel does not say."""
    for line in status.split("\n"):  # a process's name may hold every other end of a line
        if line.startswith("NSpid:"):
            return tuple(int(word) for word in line.split()[1:] if word.isascii() and word.isdecimal())
    return ()
