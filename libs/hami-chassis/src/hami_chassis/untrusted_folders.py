"""Folders that tenants write in: opened and removed so that nothing they put there is followed.

All goes through descriptors of folders, and however deep or wide a tree is, stack, descriptors and memory stay small.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BATCH: Final = 1000
_ENTRIES_MAX: Final = 10_000_000
"""Of one folder, at one removal: somebody may still be filling it."""


@contextmanager
def opened(path: Path | str, above: int | None = None) -> Iterator[int]:
    """A folder itself, not what a link in its place leads to."""
    descriptor = os.open(path, _FOLDER, dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def status_of(above: int, name: str) -> os.stat_result | None:
    """Of a link itself; None where nothing has that name. Raises OSError."""
    try:
        return os.stat(name, dir_fd=above, follow_symlinks=False)
    except FileNotFoundError:
        return None


def remove(above: int, name: str) -> None:
    """Whatever has that name, with all that is in it. Raises OSError."""
    status = status_of(above, name)
    if status is None:
        return
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=above)
        return
    with opened(name, above) as folder:
        _empty(folder)
    os.rmdir(name, dir_fd=above)


def _empty(folder: int) -> None:
    """However deep the tree is: what lies two levels down is moved up, so neither stack nor descriptors grow."""
    moved, left = secrets.token_hex(8), _ENTRIES_MAX
    while entries := _some_of(folder):
        for name, is_folder in entries:
            if not is_folder:
                os.unlink(name, dir_fd=folder)
                left -= 1
                continue
            with opened(name, folder) as inner:
                while below := _some_of(inner):
                    for deeper, is_deeper_folder in below:
                        left -= 1
                        if is_deeper_folder:
                            os.rename(deeper, f"{moved}-{left}", src_dir_fd=inner, dst_dir_fd=folder)
                        else:
                            os.unlink(deeper, dir_fd=inner)
                    _refuse_endless(left)
            os.rmdir(name, dir_fd=folder)
        _refuse_endless(left)


def _some_of(folder: int) -> list[tuple[str, bool]]:
    """Names, and whether they are folders; links are none."""
    with os.scandir(folder) as entries:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in islice(entries, _BATCH)]


def _refuse_endless(left: int) -> None:
    if left < 0:
        raise OSError(errno.EBUSY, "more and more files appear while they are removed")


def remove_tree(path: Path) -> None:
    """The same of a path, whose parent folder nobody else can swap. Raises OSError."""
    try:
        with opened(path.parent.resolve()) as above:
            remove(above, path.name)
    except FileNotFoundError:
        return
