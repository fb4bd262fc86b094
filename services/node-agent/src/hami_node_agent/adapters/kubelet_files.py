"""Kubelet's device checkpoint, read anew at every question."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hami_chassis.errors import Transient
from kubelet_api.checkpoint import CheckpointError, CheckpointView, read_checkpoint
from kubelet_api.constants import CHECKPOINT_FILE


class KubeletCheckpointUnreadable(Transient):
    """Kubelet's checkpoint is not there or cannot be understood."""


class KubeletCheckpointFile:
    def __init__(self, plugins_folder: Path) -> None:
        self._path = plugins_folder / CHECKPOINT_FILE

    async def read(self) -> CheckpointView:
        return await asyncio.to_thread(self._read)

    def _read(self) -> CheckpointView:
        try:
            return read_checkpoint(self._path.read_bytes())
        except OSError as error:
            raise KubeletCheckpointUnreadable(f"{self._path}: {error.strerror}") from error
        except CheckpointError as error:
            raise KubeletCheckpointUnreadable(f"{self._path}: {error}") from error

    def problem(self) -> str:
        """Why late binding could not read it; empty where it can, or where kubelet has not written it yet."""
        if not self._path.parent.is_dir():
            return f"{self._path.parent} is no folder"
        try:
            if self._path.exists():
                self._read()
        except (KubeletCheckpointUnreadable, PermissionError) as error:
            return str(error)
        return ""
