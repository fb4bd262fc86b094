"""Looks once, before our sockets are made, for what NVIDIA's device plugin left, and tells it."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable
from pathlib import Path

from hami_chassis.kube.events import EventRecorder, ObjectReference
from hami_chassis.log import get_logger

from hami_node_agent.adapters.node import NodeWatch
from hami_node_agent.core import nvidia_remains
from hami_node_agent.core.device_lists import CDI_VENDOR
from hami_node_agent.core.nvidia_remains import Ours, Traces

log = get_logger("nvidia-remains")

_DIAL_SECONDS = 1.0


class NvidiaRemains:
    """`look` comes before anything of ours is there; root task `tell` says what it found."""

    def __init__(
        self,
        plugins_folder: Path,
        cdi_folders: tuple[Path, ...],
        ours: Ours,
        *,
        watch: NodeWatch,
        recorder: EventRecorder,
        node_name: str,
    ) -> None:
        self._plugins_folder = plugins_folder
        self._cdi_folders = cdi_folders
        self._ours = ours
        self._watch = watch
        self._recorder = recorder
        self._node_name = node_name
        self._sockets: dict[str, bool] = {}
        self._cdi_files: tuple[str, ...] = ()

    async def look(self) -> None:
        """Looks at the files of this machine."""
        self._cdi_files = await asyncio.to_thread(self._find_cdi_files)
        for path in await asyncio.to_thread(self._find_sockets):
            self._sockets[path.name] = await _answers(path)

    async def tell(self) -> None:
        """Root task: once the Node is known."""
        await self._watch.described.wait()
        view = self._watch.view
        traces = Traces(
            labels={} if view is None else view.labels,
            allocatable={} if view is None else view.allocatable,
            sockets=self._sockets,
            cdi_files=self._cdi_files,
        )
        for found in nvidia_remains.remains(traces, self._ours):
            log.warning("nvidia-device-plugin", reason=found.reason, message=found.message)
            about = ObjectReference(kind="Node", name=self._node_name, uid=self._node_name)
            self._recorder.emit(about, reason=found.reason, message=found.message, event_type="Warning")
        await asyncio.Event().wait()

    def _find_cdi_files(self) -> tuple[str, ...]:
        return tuple(str(path) for folder in self._cdi_folders for path in _entries(folder, _is_cdi_file))

    def _find_sockets(self) -> list[Path]:
        return _entries(self._plugins_folder, _is_nvidia_socket)


def _entries(folder: Path, wanted: Callable[[Path], bool]) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if wanted(path))
    except OSError:
        return []


def _is_cdi_file(path: Path) -> bool:
    return path.name.startswith(CDI_VENDOR) and path.suffix in (".json", ".yaml", ".yml")


def _is_nvidia_socket(path: Path) -> bool:
    return path.name.startswith("nvidia-") and stat.S_ISSOCK(path.lstat().st_mode)


async def _answers(path: Path) -> bool:
    """Whether somebody listens there."""
    try:
        async with asyncio.timeout(_DIAL_SECONDS):
            _, writer = await asyncio.open_unix_connection(path)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
