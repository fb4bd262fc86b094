"""The folders themselves: how old they are, and taking them away with whatever their container left in them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from hami_chassis.untrusted_folders import remove

from hami_monitor.adapters.untrusted_files import TRUSTED_FOLDER, opened
from hami_monitor.core.container_folder import FolderOwner, folder_name, owner_of
from hami_monitor.core.folder_removal import FolderAge, UnremovableFolderError


class ContainerFolders:
    """A FolderStore over `<hook path>/vgpu/containers`.

    Times of folders are the wall clock's, which may be set forward by hours. So a folder that was not there, or was
    another, at an earlier look is no older than that look, whatever its time says.
    """

    def __init__(self, containers: Path) -> None:
        self._containers = containers
        self._changed: dict[FolderOwner, tuple[int, float]] = {}
        """By folder: its time, and a moment of the monotonic clock after which it was so."""
        self._looked_at = float("-inf")

    def ages(self) -> tuple[FolderAge, ...]:
        looked_at, now_seconds = time.monotonic(), time.time()
        times = self._times()
        self._changed = {
            owner: known
            if (known := self._changed.get(owner)) is not None and known[0] == changed_ns
            else (changed_ns, self._looked_at)
            for owner, changed_ns in times.items()
        }
        self._looked_at = looked_at
        return tuple(
            FolderAge(owner=owner, seconds=min(now_seconds - changed_ns / 1e9, looked_at - after))
            for owner, (changed_ns, after) in self._changed.items()
        )

    def _times(self) -> dict[FolderOwner, int]:
        """When something was put into each folder last, or taken out, in ns. Raises OSError."""
        found: dict[FolderOwner, int] = {}
        try:
            with opened(self._containers, TRUSTED_FOLDER) as containers, os.scandir(containers) as entries:
                for entry in entries:
                    owner = owner_of(entry.name)
                    try:
                        if owner is not None and entry.is_dir(follow_symlinks=False):
                            found[owner] = entry.stat(follow_symlinks=False).st_mtime_ns
                    except FileNotFoundError:
                        continue
        except FileNotFoundError:
            return {}
        return found

    def remove(self, owner: FolderOwner) -> None:
        """Links in it are not followed. Raises UnremovableFolderError."""
        try:
            with opened(self._containers, TRUSTED_FOLDER) as containers:
                remove(containers, folder_name(owner))
        except FileNotFoundError:
            return  # the node-agent was faster
        except OSError as error:
            raise UnremovableFolderError(error.strerror or str(error)) from error
