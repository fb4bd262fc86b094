"""Folders that tenants write in, handled so that nothing they put there is followed.

All goes through descriptors of folders. What is not what it should be, such as a link where a folder belongs, is taken
out of the way, never followed and never changed.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PRIVATE: Final = 0o700
_SHOWN: Final = 0o755
_FILE: Final = 0o644
_SHARED: Final = 0o777
_BATCH: Final = 1000
_ENTRIES_MAX: Final = 10_000_000
"""Of one folder, at one removal: somebody may still be filling it."""


def make_private(path: Path) -> None:
    """A folder of ours that nobody else can pass through; containers see what is inside by mounts of their own.

    Raises OSError.
    """
    path.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
    with opened(path) as folder:
        os.fchmod(folder, _PRIVATE)


def make_shared(path: Path) -> None:
    """A folder in which containers of all users work together, below one where anybody may plant something. Raises
    OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with opened(path.parent.resolve()) as above:
        status = _status(above, path.name)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            remove(above, path.name)
        with suppress(FileExistsError):
            os.mkdir(path.name, _PRIVATE, dir_fd=above)
        with opened(path.name, above) as folder:
            if os.fstat(folder).st_uid != os.geteuid():
                os.fchown(folder, os.geteuid(), os.getegid())
            os.fchmod(folder, _SHARED)


def make_container_folder(
    parent: Path,
    name: str,
    *,
    owner: tuple[int, int] | None,
    mount_folders: tuple[str, ...],
    mount_files: tuple[str, ...],
) -> None:
    """The folder in which one container makes its region file; what is in it stays.

    `owner`: user and group, where the container's specification says that its processes have no others; else every
    user of the container may make files there, as also where this process may not give folders away. `mount_folders`
    and `mount_files` are what a runtime mounts upon: they are there and are ours, so that no link leads the mount
    elsewhere. Raises OSError.
    """
    with opened(parent) as above:
        status = _status(above, name)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            remove(above, name)
        with suppress(FileExistsError):
            os.mkdir(name, _PRIVATE, dir_fd=above)
        with opened(name, above) as folder:
            given = owner if owner is not None and os.geteuid() == 0 else None
            user, group = given or (os.geteuid(), os.getegid())
            if os.fstat(folder).st_uid != user:
                os.fchown(folder, user, group)
            os.fchmod(folder, _SHARED if given is None else _SHOWN)
            for inner in mount_folders:
                _make_folder(folder, inner)
            for inner in mount_files:
                _make_file(folder, inner)


def _make_folder(above: int, name: str) -> None:
    status = _status(above, name)
    if status is not None:
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            return
        remove(above, name)
    os.mkdir(name, _PRIVATE, dir_fd=above)
    with opened(name, above) as made:
        os.fchmod(made, _SHOWN)


def _make_file(above: int, name: str) -> None:
    status = _status(above, name)
    if status is not None:
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
            return
        remove(above, name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    os.close(os.open(name, flags, _FILE, dir_fd=above))


def remove(above: int, name: str) -> None:
    """Whatever has that name, with all that is in it. Raises OSError."""
    status = _status(above, name)
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


def _status(above: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=above, follow_symlinks=False)
    except FileNotFoundError:
        return None


@contextmanager
def opened(path: Path | str, above: int | None = None) -> Iterator[int]:
    """A folder itself, not what a link in its place leads to."""
    descriptor = os.open(path, _FOLDER, dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
