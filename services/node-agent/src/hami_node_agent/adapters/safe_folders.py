"""Makes folders that tenants write in, so that nothing they put there is followed.

All goes through descriptors of folders. What is not what it should be, such as a link where a folder belongs, is taken
out of the way, never followed and never changed.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from hami_chassis.untrusted_folders import opened, remove, status_of

_PRIVATE: Final = 0o700
_SHOWN: Final = 0o755
_FILE: Final = 0o644
_SHARED: Final = 0o777


def make_private(path: Path) -> bool:
    """A folder of ours that nobody else can pass through; containers see what is inside by mounts of their own.

    Whether it was not there. Raises OSError.
    """
    if _is_ours(path, _PRIVATE):
        return False
    was_there = os.path.lexists(path)
    path.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
    _own(path, _PRIVATE)
    return not was_there


def make_readable(path: Path) -> bool:
    """A folder that everybody may read; one that is there stays as it is. Whether it was not there. Raises OSError."""
    if path.is_dir():
        return False
    path.mkdir(parents=True)
    _own(path, _SHOWN)
    return True


def _is_ours(path: Path, mode: int) -> bool:
    with suppress(FileNotFoundError):
        status = path.lstat()
        return stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) == mode and status.st_uid == os.geteuid()
    return False


def _own(path: Path, mode: int) -> None:
    with opened(path) as folder:
        if os.fstat(folder).st_uid != os.geteuid():
            os.fchown(folder, os.geteuid(), os.getegid())
        os.fchmod(folder, mode)


def make_shared(path: Path) -> None:
    """A folder in which containers of all users work together, below one where anybody may plant something. Raises
    OSError."""
    if _is_ours(path, _SHARED):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with opened(path.parent.resolve()) as above:
        status = status_of(above, path.name)
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
        status = status_of(above, name)
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
    status = status_of(above, name)
    if status is not None:
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            return
        remove(above, name)
    os.mkdir(name, _PRIVATE, dir_fd=above)
    with opened(name, above) as made:
        os.fchmod(made, _SHOWN)


def _make_file(above: int, name: str) -> None:
    status = status_of(above, name)
    if status is not None:
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
            return
        remove(above, name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    os.close(os.open(name, flags, _FILE, dir_fd=above))
