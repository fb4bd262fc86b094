"""Writes single words into region files, which containers may swap for anything at any moment.

A word is written by one pwrite of its four bytes, through a descriptor of which it was made sure that it is the file
that was read: a regular file of that inode with one name, in the container's own folder, and of a layout that has the
word there. A container that puts another of its files in its place gets four bytes in that file; nothing of anybody
else's can be reached, since links are not followed and files with several names refused.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path

from hami_monitor.adapters.untrusted_files import (
    FOLDER,
    TRUSTED_FOLDER,
    NoRegularFileError,
    opened,
    opened_regular,
    read_at,
)
from hami_monitor.core.container_folder import RegionPlace, folder_name
from hami_monitor.core.region_layouts import UnreadableRegionError
from hami_monitor.core.region_words import WORD_BYTES, RegionMovedError, WordChange, read_layout


class RegionWriting:
    """A WordSink over `<hook path>/vgpu/containers`."""

    def __init__(self, containers: Path) -> None:
        self._containers = containers

    def write(self, place: RegionPlace, layout: str, changes: Iterable[WordChange]) -> int:
        """How many words were written; those that say something else than expected by now are left. Raises
        RegionMovedError and OSError."""
        try:
            with (
                opened(self._containers, TRUSTED_FOLDER) as containers,
                opened(folder_name(place.owner), FOLDER, containers) as folder,
                opened_regular(place.file, os.O_RDWR, folder) as (file, status),
            ):
                if (status.st_ino, status.st_nlink) != (place.inode, 1):
                    raise RegionMovedError(f"{place.file} is another file by now, or has several names")
                if read_layout(status.st_size, lambda offset, length: read_at(file, offset, length)).name != layout:
                    raise RegionMovedError(f"{place.file} has another layout by now")
                return sum(_write(file, change) for change in changes)
        except (NoRegularFileError, UnreadableRegionError, FileNotFoundError) as error:
            raise RegionMovedError(f"{place.file} is no region any more: {error}") from error


def _write(file: int, change: WordChange) -> bool:
    if change.expected is not None:
        found = read_at(file, change.offset, WORD_BYTES)
        if found != struct.pack("<i", change.expected):
            return False
    os.pwrite(file, change.bytes, change.offset)
    return True
