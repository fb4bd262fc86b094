"""The folders themselves: how old they are, and taking them away with whatever their container left in them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from hami_chassis.untrusted_folders import remove

from hami_monitor.adapters.untrusted_files import TRUSTED_FOLDER, opened
from hami_monitor.core.container_folder import FolderOwner, folder_name, owner_of
from hami_monitor.core.folder_removal import FolderAge, UnremovableFolderError


class ContainerFolders:
    """A FolderStore over `<hook path>/vgpu/containers`."""

    def __init__(self, containers: Path) -> None:
        self._containers = containers

    def ages(self) -> tuple[FolderAge, ...]:
        try:
            with opened(self._containers, TRUSTED_FOLDER) as containers:
                return tuple(_ages(containers, time.time()))
        except FileNotFoundError:
            return ()

    def remove(self, owner: FolderOwner) -> None:
        """Links in it are not followed. Raises UnremovableFolderError."""
        try:
            with opened(self._containers, TRUSTED_FOLDER) as containers:
                remove(containers, folder_name(owner))
        except FileNotFoundError:
            return  # the node-agent was faster
        except OSError as error:
            raise UnremovableFolderError(error.strerror or str(error)) from error


def _ages(containers: int, now_seconds: float) -> Iterator[FolderAge]:
    with os.scandir(containers) as entries:
        for entry in entries:
            owner = owner_of(entry.name)
            try:
                if owner is not None and entry.is_dir(follow_symlinks=False):
                    changed = entry.stat(follow_symlinks=False).st_mtime
                    yield FolderAge(owner=owner, seconds=now_seconds - changed)
            except FileNotFoundError:
                continue
