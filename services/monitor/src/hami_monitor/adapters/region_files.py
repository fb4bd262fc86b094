"""Reads region files, which containers may replace by anything, with plain bounded reads.

Nothing is mapped, so a file that is cut short under us costs a short read and no signal. An entry is looked at before
it is opened, through a handle that opens nothing: links are not followed, and pipes and devices not touched.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from hami_monitor.core.container_folder import ENTRY_MAX, FolderOwner, FolderReading, owner_of, region_names
from hami_monitor.core.region import Region, read_region
from hami_monitor.core.region_layouts import UnreadableRegionError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class RegionFiles:
    """A RegionSource over `<hook path>/vgpu/containers`. Files are opened anew each time, so replaced ones are seen."""

    def __init__(self, containers: Path) -> None:
        self._containers = containers

    def scan(self) -> tuple[FolderReading, ...]:
        """In the order of the folders' names; none while the node-agent has made no folder yet."""
        try:
            with _opened(self._containers, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as containers:
                return tuple(_folders(containers))
        except FileNotFoundError:
            return ()


def read_file(path: Path) -> Region:
    """One region file. Raises UnreadableRegionError and OSError."""
    with _opened(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as folder:
        return _read(folder, path.name)[1]


def _folders(containers: int) -> Iterator[FolderReading]:
    for name in sorted(os.listdir(containers)):
        owner = owner_of(name)
        if owner is None:
            continue
        try:
            with _opened(name, _FOLDER, containers) as folder:
                yield _folder(owner, folder)
        except FileNotFoundError:
            continue  # the node-agent has just removed it
        except NotADirectoryError:
            continue
        except OSError as error:
            yield FolderReading(owner=owner, problem=f"cannot be looked into: {error.strerror}")


def _folder(owner: FolderOwner, folder: int) -> FolderReading:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in islice(entries, ENTRY_MAX + 1)]
    if len(names) > ENTRY_MAX:
        return FolderReading(owner=owner, problem=f"holds more than {ENTRY_MAX} entries")
    first_problem = ""
    try:
        for name in region_names(names):
            try:
                inode, region = _read(folder, name)
                return FolderReading(owner=owner, file=name, inode=inode, region=region)
            except UnreadableRegionError as error:
                first_problem = first_problem or f"{name}: {error}"
            except OSError as error:
                first_problem = first_problem or f"{name}: {error.strerror}"
    except UnreadableRegionError as error:
        first_problem = str(error)
    return FolderReading(owner=owner, problem=first_problem)


def _read(folder: int, name: str) -> tuple[int, Region]:
    """Inode and content."""
    with _opened(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, folder) as handle:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise UnreadableRegionError("is no regular file")
        with _opened(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC) as file:
            status = os.fstat(file)
            region = read_region(status.st_size, lambda offset, length: _read_at(file, offset, length))
            return status.st_ino, region


def _read_at(file: int, offset: int, length: int) -> bytes:
    pieces = []
    while length:
        piece = os.pread(file, length, offset)
        if not piece:
            break
        pieces.append(piece)
        offset += len(piece)
        length -= len(piece)
    return b"".join(pieces)


@contextmanager
def _opened(path: Path | str, flags: int, folder: int | None = None) -> Iterator[int]:
    opened = os.open(path, flags, dir_fd=folder)
    try:
        yield opened
    finally:
        os.close(opened)
