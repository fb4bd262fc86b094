"""Opens files in folders that containers can write, where any entry may be anything and may be swapped at any moment.

An entry is looked at before it is opened, through a handle that opens nothing (O_PATH): links are not followed, and
pipes and devices not touched. What is then opened is what was looked at. Nothing is ever mapped, so a file that is cut
short under us costs a short read and no signal; a lease on it (which would make open wait) refuses it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

TRUSTED_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
FOLDER: Final = TRUSTED_FOLDER | os.O_NOFOLLOW
_LOOK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN: Final = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class NoRegularFileError(Exception):
    """A link, pipe, device, socket or folder."""


@contextmanager
def opened(path: Path | str, flags: int, folder: int | None = None) -> Iterator[int]:
    """Raises OSError."""
    descriptor = os.open(path, flags, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_regular(name: str, access: int, folder: int) -> Iterator[tuple[int, os.stat_result]]:
    """A regular file in the folder, `access` O_RDONLY or O_RDWR, and what it is. Raises NoRegularFileError, OSError."""
    handle = os.open(name, _LOOK, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise NoRegularFileError(name)
        file = os.open(f"/proc/self/fd/{handle}", access | _OPEN)
        try:
            yield file, os.fstat(file)
        finally:
            os.close(file)
    finally:
        os.close(handle)


def read_at(file: int, offset: int, length: int) -> bytes:
    """Fewer bytes where the file ends."""
    first = os.pread(file, length, offset)
    if len(first) == length or not first:
        return first
    pieces = [first]
    offset += len(first)
    length -= len(first)
    while length:
        piece = os.pread(file, length, offset)
        if not piece:
            break
        pieces.append(piece)
        offset += len(piece)
        length -= len(piece)
    return b"".join(pieces)


def reader(file: int) -> Callable[[int, int], bytes]:
    """By offset and length."""
    return lambda offset, length: read_at(file, offset, length)
