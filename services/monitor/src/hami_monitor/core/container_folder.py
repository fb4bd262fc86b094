"""Folders that the node-agent makes for containers, `<pod UID>_<container>`, and which file in one is the region."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from hami_monitor.core.region import Region
from hami_monitor.core.region_layouts import UnreadableRegionError

REGION_SUFFIX: Final = ".cache"
LIBRARY: Final = "libvgpu.so"
ENTRY_MAX: Final = 1000
"""The container may write into its folder; one with more entries is not looked through."""
_FILE_MAX: Final = 2
"""Libraries and region files together, as HAMi's monitor takes them: one of each, or two region files."""


class FolderOwner(msgspec.Struct, frozen=True, kw_only=True):
    pod_uid: str
    container: str


class RegionPlace(msgspec.Struct, frozen=True, kw_only=True):
    """One region file, as it was read."""

    owner: FolderOwner
    file: str
    inode: int


class FolderReading(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in one folder. Neither region nor problem: nothing has used a card yet."""

    owner: FolderOwner
    file: str = ""
    """Of the region; empty: there is none that can be read."""
    inode: int = 0
    region: Region | None = None
    problem: str = ""


def owner_of(folder: str) -> FolderOwner | None:
    """None where the name is none of the node-agent's. A container's name may hold `_`, a UID does not."""
    pod_uid, _, container = folder.partition("_")
    return FolderOwner(pod_uid=pod_uid, container=container) if pod_uid and container else None


def folder_name(owner: FolderOwner) -> str:
    return f"{owner.pod_uid}_{owner.container}"


def region_names(names: Iterable[str]) -> tuple[str, ...]:
    """Names that may be the region file, in the order to try them. Raises UnreadableRegionError."""
    libraries = [name for name in names if LIBRARY in name]
    regions = sorted(name for name in names if name.endswith(REGION_SUFFIX) and LIBRARY not in name)
    if len(libraries) + len(regions) > _FILE_MAX:
        raise UnreadableRegionError(
            f"{len(libraries)} libraries and {len(regions)} region files: which is in use cannot be told"
        )
    return tuple(regions)
