"""The limits pages of all containers of the node: made before a start, changed in place, kept open, removed."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from hami_chassis.log import get_logger
from hami_model.limits_page import MalformedLimitsPage, layout

from hami_node_agent.adapters.host_files import HostFilesError
from hami_node_agent.adapters.limits_file import LimitsFile, OtherContainerError
from hami_node_agent.core.grant import ContainerFiles

log = get_logger("limits-pages")


class LimitsPages:
    """`<limits>/<pod UID>_<container>/page`. Calls block, and may come from several threads; one container's calls
    come one at a time."""

    def __init__(self, limits: Path) -> None:
        self._limits = limits
        self._open: dict[str, LimitsFile] = {}
        self._table = threading.Lock()

    def put(self, files: ContainerFiles) -> None:
        """The container's page says what is wanted, for processes that run and that come. Raises OSError,
        HostFilesError: a page that cannot be made, or that somebody's lease keeps from being opened for a while."""
        name = f"{files.pod_uid}_{files.container}"
        path = self._limits / name / layout.FILE
        try:
            page = self._opened(name, path)
            if page is not None and self._changed(page, path, files):
                return
            self._keep(name, LimitsFile.create(path, files.page, synced=False))
        except BlockingIOError as error:
            raise HostFilesError(
                f"{path}: the container holds a lease on its limits page, which ends within a minute"
            ) from error
        except MalformedLimitsPage as error:
            raise HostFilesError(f"{path}: the limits page cannot be written: {error}") from error

    def _opened(self, name: str, path: Path) -> LimitsFile | None:
        with self._table:
            known = self._open.get(name)
        if known is not None:
            return known
        try:
            found = LimitsFile(path)
        except FileNotFoundError:
            return None
        except MalformedLimitsPage as error:
            log.warning("limits-page-replaced", path=str(path), reason=str(error))
            return None
        self._keep(name, found)
        return found

    def _changed(self, page: LimitsFile, path: Path, files: ContainerFiles) -> bool:
        try:
            page.change(files.page)
        except (MalformedLimitsPage, OtherContainerError) as error:
            log.warning("limits-page-replaced", path=str(path), reason=str(error))
            return False
        return True

    def _keep(self, name: str, page: LimitsFile) -> None:
        with self._table:
            before = self._open.pop(name, None)
            self._open[name] = page
        if before is not None:
            before.close()

    def folders(self) -> list[Path]:
        return [path for path in self._limits.iterdir() if "_" in path.name]

    def remove_pod(self, pod_uid: str) -> None:
        for folder in self.folders():
            if folder.name.partition("_")[0] == pod_uid:
                with self._table:
                    page = self._open.pop(folder.name, None)
                if page is not None:
                    page.close()
                shutil.rmtree(folder, ignore_errors=True)
