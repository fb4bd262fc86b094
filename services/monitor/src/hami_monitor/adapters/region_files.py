"""Reads region files, which containers may replace by anything, with plain bounded reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TypeVar

from hami_chassis.no_room import says_nothing_of_the_file

from hami_monitor.adapters.untrusted_files import (
    FOLDER,
    TRUSTED_FOLDER,
    NoRegularFileError,
    opened,
    opened_regular,
    reader,
)
from hami_monitor.core.container_folder import (
    ENTRY_MAX,
    FolderOwner,
    FolderReading,
    RegionPlace,
    folder_name,
    owner_of,
    region_names,
)
from hami_monitor.core.region import DecodedRegion, ReadAt, Region, decode_region, read_region
from hami_monitor.core.region_layouts import UnreadableRegionError
from hami_monitor.core.region_slots import RegionSlots, read_slots
from hami_monitor.core.region_words import RegionWords, read_words

_Read = TypeVar("_Read")
_KEPT_BYTES = 1 << 16
"""Of slots, in memory of one region between scans: that of a process is some 2 kB."""


class RegionFiles:
    """A RegionSource, WordSource and SlotSource over `<hook path>/vgpu/containers`.

    Files are opened anew each time, so replaced ones are seen.
    """

    def __init__(self, containers: Path) -> None:
        self._containers = containers
        self._places: dict[FolderOwner, RegionPlace] = {}
        """As the last scan found them."""
        self._decoded: dict[FolderOwner, DecodedRegion] = {}
        """By the last scan, but for those with very many processes."""

    def scan(self) -> tuple[FolderReading, ...]:
        """In the order of the folders' names; none while the node-agent has made no folder yet.

        Raises OSError: nothing can be read now.
        """
        try:
            with opened(self._containers, TRUSTED_FOLDER) as containers:
                found = tuple(_folders(containers, self._folder))
        except FileNotFoundError:
            found = ()
        readable = {one.owner for one in found if one.region is not None}
        self._decoded = {owner: decoded for owner, decoded in self._decoded.items() if owner in readable}
        self._places = {
            one.owner: RegionPlace(owner=one.owner, file=one.file, inode=one.inode) for one in found if one.file
        }
        return found

    def _folder(self, owner: FolderOwner, folder: int) -> FolderReading:
        before = self._decoded.pop(owner, None)

        def decode(size_bytes: int, read_at: ReadAt) -> DecodedRegion:
            return decode_region(size_bytes, read_at, before)

        try:
            name, inode, decoded = _first_readable(folder, decode)
        except UnreadableRegionError as error:
            return FolderReading(owner=owner, problem=str(error))
        if decoded is None:
            return FolderReading(owner=owner)
        if len(decoded.slots) <= _KEPT_BYTES:
            self._decoded[owner] = decoded
        return FolderReading(owner=owner, file=name, inode=inode, region=decoded.region)

    def words(self, owners: Iterable[FolderOwner]) -> dict[RegionPlace, RegionWords]:
        """Of those that have a readable region. Raises OSError, as `scan`."""
        return dict(self._each(owners, read_words))

    def slots(self, owners: Iterable[FolderOwner]) -> dict[RegionPlace, RegionSlots]:
        """Of those that have a readable region. Raises OSError, as `scan`."""
        return dict(self._each(owners, read_slots))

    def _each(
        self, owners: Iterable[FolderOwner], read: Callable[[int, ReadAt], _Read]
    ) -> Iterator[tuple[RegionPlace, _Read]]:
        """What is wrong with the others, `scan` says."""
        try:
            with opened(self._containers, TRUSTED_FOLDER) as containers:
                for owner in owners:
                    try:
                        found = self._one(containers, owner, read)
                    except UnreadableRegionError:
                        continue
                    except OSError as error:
                        if says_nothing_of_the_file(error):
                            raise
                        continue
                    if found is not None:
                        yield found
        except FileNotFoundError:
            return

    def _one(
        self, containers: int, owner: FolderOwner, read: Callable[[int, ReadAt], _Read]
    ) -> tuple[RegionPlace, _Read] | None:
        """None: it has no region. Raises OSError and UnreadableRegionError."""
        known = self._places.get(owner)
        if known is not None:
            with (
                suppress(OSError, UnreadableRegionError),
                opened(folder_name(owner), FOLDER, containers) as folder,
            ):
                inode, there = _read(folder, known.file, read)
                if inode == known.inode:
                    return known, there
        with opened(folder_name(owner), FOLDER, containers) as folder:
            name, inode, content = _first_readable(folder, read)
        return None if content is None else (RegionPlace(owner=owner, file=name, inode=inode), content)


def read_file(path: Path) -> Region:
    """One region file. Raises UnreadableRegionError and OSError."""
    with opened(path.parent, TRUSTED_FOLDER) as folder:
        return _read(folder, path.name, read_region)[1]


def _folders(containers: int, read: Callable[[FolderOwner, int], FolderReading]) -> Iterator[FolderReading]:
    for name in sorted(os.listdir(containers)):
        owner = owner_of(name)
        if owner is None:
            continue
        try:
            with opened(name, FOLDER, containers) as folder:
                yield read(owner, folder)
        except FileNotFoundError:
            continue  # the node-agent has just removed it
        except NotADirectoryError:
            continue
        except OSError as error:
            if says_nothing_of_the_file(error):
                raise
            yield FolderReading(owner=owner, problem=f"cannot be looked into: {error.strerror}")


def _first_readable(folder: int, read: Callable[[int, ReadAt], _Read]) -> tuple[str, int, _Read | None]:
    """Name, inode and content; None where there is no region file. Raises UnreadableRegionError: which, and why; and
    OSError."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in islice(entries, ENTRY_MAX + 1)]
    if len(names) > ENTRY_MAX:
        raise UnreadableRegionError(f"holds more than {ENTRY_MAX} entries")
    first_problem = ""
    for name in region_names(names):
        try:
            inode, content = _read(folder, name, read)
        except UnreadableRegionError as error:
            first_problem = first_problem or f"{_shown(name)}: {error}"
        except OSError as error:
            if says_nothing_of_the_file(error):
                raise
            first_problem = first_problem or f"{_shown(name)}: {error.strerror}"
        else:
            return name, inode, content
    if first_problem:
        raise UnreadableRegionError(first_problem)
    return "", 0, None


def _shown(name: str) -> str:
    """A name that a container chose, as text of one line."""
    return os.fsencode(name).decode(errors="backslashreplace").encode("unicode_escape").decode()


def _read(folder: int, name: str, read: Callable[[int, ReadAt], _Read]) -> tuple[int, _Read]:
    """Inode and content."""
    try:
        with opened_regular(name, os.O_RDONLY, folder) as (file, status):
            return status.st_ino, read(status.st_size, reader(file))
    except NoRegularFileError:
        raise UnreadableRegionError("is no regular file") from None
