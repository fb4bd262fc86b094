"""Writes single words into region files, which containers may swap for anything at any moment.

A word is written by one pwrite of its four bytes, through a descriptor of which it was made sure that it is the file
that was read: a regular file of that inode with one name, in the container's own folder, and of a layout that has the
word there. A container that puts another of its files in its place gets four bytes in that file; nothing of anybody
else's can be reached, since links are not followed and files with several names refused.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hami_monitor.adapters.untrusted_files import (
    FOLDER,
    TRUSTED_FOLDER,
    NoRegularFileError,
    opened,
    opened_regular,
    read_at,
    reader,
)
from hami_monitor.core.container_folder import RegionPlace, folder_name
from hami_monitor.core.region_layouts import UnreadableRegionError
from hami_monitor.core.region_slots import SlotHead, host_pid_offset, read_slot
from hami_monitor.core.region_words import WORD_BYTES, RegionMovedError, WordChange, layout_named, read_layout


class RegionWriting:
    """A WordSink and HostPidSink over `<hook path>/vgpu/containers`."""

    def __init__(self, containers: Path) -> None:
        self._containers = containers

    def write(self, place: RegionPlace, layout: str, changes: Iterable[WordChange]) -> int:
        """How many words were written; those that say something else than expected by now are left. Raises
        RegionMovedError and OSError."""
        with self._opened(place, layout) as file:
            return sum(_write(file, change) for change in changes)

    def write_host_pid(self, place: RegionPlace, layout: str, slot: SlotHead, host_pid: int) -> bool:
        """False: the slot is another process's by now, or knows. Raises RegionMovedError and OSError."""
        laid_out = layout_named(layout)
        with self._opened(place, layout) as file:

            def now() -> SlotHead | None:
                return read_slot(laid_out, slot.index, reader(file), with_owner=slot.began_at_ticks != 0)

            before = now()
            if before is None or before.host_pid != slot.host_pid or not before.is_of_the_same_process(slot):
                return False
            offset = host_pid_offset(laid_out, slot.index)
            os.pwrite(file, struct.pack("<i", host_pid), offset)
            after = now()
            if after is not None and after.is_of_the_same_process(slot):
                return True
            # The next process took the slot in between. It wrote its own pid, or must not keep this one.
            _write(file, WordChange(offset=offset, value=0, expected=host_pid))
            return False

    @contextmanager
    def _opened(self, place: RegionPlace, layout: str) -> Iterator[int]:
        try:
            with (
                opened(self._containers, TRUSTED_FOLDER) as containers,
                opened(folder_name(place.owner), FOLDER, containers) as folder,
                opened_regular(place.file, os.O_RDWR, folder) as (file, status),
            ):
                if (status.st_ino, status.st_nlink) != (place.inode, 1):
                    raise RegionMovedError(f"{place.file} is another file by now, or has several names")
                if read_layout(status.st_size, reader(file)).name != layout:
                    raise RegionMovedError(f"{place.file} has another layout by now")
                yield file
        except (NoRegularFileError, UnreadableRegionError, FileNotFoundError) as error:
            raise RegionMovedError(f"{place.file} is no region any more: {error}") from error


def _write(file: int, change: WordChange) -> bool:
    if change.expected is not None:
        found = read_at(file, change.offset, WORD_BYTES)
        if found != struct.pack("<i", change.expected):
            return False
    os.pwrite(file, change.bytes, change.offset)
    return True
