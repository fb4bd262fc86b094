"""Whose process is it: read from what the kernel says about it, which the process cannot write."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from hami_monitor.core.container_folder import FolderOwner, FolderReading

_POD: Final = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})\b")
"""In a control group's path, with the dashes of a UID as they are or as `_` (systemd). Static pods have no dashes."""


class RegionFileId(msgspec.Struct, frozen=True):
    """Inode and name: node-agents give every container's file a random name."""

    inode: int
    name: str


def region_files(folders: Iterable[FolderReading]) -> dict[RegionFileId, FolderOwner]:
    return {RegionFileId(folder.inode, folder.file): folder.owner for folder in folders if folder.region is not None}


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


def pod_by_cgroup(cgroup: str) -> str | None:
    """The pod's UID, from the text of /proc/<pid>/cgroup."""
    found = _POD.search(cgroup)
    return found[1].replace("_", "-") if found is not None else None


def start_time(stat: str) -> str | None:
    """Field 22 of /proc/<pid>/stat: with the pid it names a process for ever. The name before it may hold anything."""
    fields = stat.rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else None
