"""The limits pages of all containers of the node: made before a start, changed in place, kept open, removed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from hami_chassis.log import get_logger
from hami_chassis.untrusted_folders import remove_tree
from hami_model.limits_page import MalformedLimitsPage, layout

from hami_node_agent.adapters.host_files import HostFilesError, entries
from hami_node_agent.adapters.limits_file import LimitsFile, OtherContainerError
from hami_node_agent.core.grant import ContainerFiles

log = get_logger("limits-pages")


_LEASED: Final = "the container holds a lease on its limits page, which ends within a minute"


class LimitsPages:
    """`<limits>/<pod UID>_<container>/page`. Calls may come from several threads; none of them waits for a container.

    A page stays open while its container may live: who has it open for writing is told of nobody's lease.
    """

    def __init__(self, limits: Path) -> None:
        self._limits = limits
        self._open: dict[str, LimitsFile] = {}
        self._one_at_a_time = threading.Lock()

    def put(self, files: ContainerFiles) -> None:
        """Before a start: the container's page says what is wanted. One that cannot be changed to that is replaced, as
        the processes that had it are gone.

        Raises OSError, HostFilesError: it cannot be made, or somebody's lease keeps it from being opened for a while.
        """
        path = self._path(files)
        with self._one_at_a_time:
            try:
                self._drop_if_removed(path)
                try:
                    self._of(path).change(files.page)
                except (FileNotFoundError, MalformedLimitsPage, OtherContainerError) as error:
                    if not isinstance(error, FileNotFoundError):
                        log.warning("limits-page-replaced", path=str(path), reason=str(error))
                    self._keep(path, LimitsFile.create(path, files.page, synced=False))
            except BlockingIOError as error:
                raise HostFilesError(f"{path}: {_LEASED}") from error
            except MalformedLimitsPage as error:
                raise HostFilesError(f"{path}: the limits page cannot be written: {error}") from error

    def refresh(self, files: ContainerFiles) -> None:
        """The same for a container that may be running: what it cannot be told in place it learns at its next start.

        A container without a page gets none, as nothing is mounted into it. Raises OSError, HostFilesError.
        """
        path = self._path(files)
        with self._one_at_a_time:
            try:
                if self._of(path).change(files.page):
                    log.info("limits-page-changed", pod_uid=files.pod_uid, container=files.container)
            except FileNotFoundError:
                return
            except BlockingIOError as error:
                raise HostFilesError(f"{path}: {_LEASED}") from error
            except (MalformedLimitsPage, OtherContainerError) as error:
                log.warning("limits-page-left", path=str(path), reason=str(error))

    def _path(self, files: ContainerFiles) -> Path:
        return self._limits / f"{files.pod_uid}_{files.container}" / layout.FILE

    def _of(self, path: Path) -> LimitsFile:
        name = path.parent.name
        if name not in self._open:
            self._open[name] = LimitsFile(path)
        return self._open[name]

    def _drop_if_removed(self, path: Path) -> None:
        """A page that somebody removed holds those that have it mapped, and nobody who starts."""
        page = self._open.get(path.parent.name)
        if page is not None and not page.is_in_place():
            log.warning("limits-page-was-removed", path=str(path))
            self._open.pop(path.parent.name).close()

    def _keep(self, path: Path, page: LimitsFile) -> None:
        before = self._open.pop(path.parent.name, None)
        if before is not None:
            before.close()
        self._open[path.parent.name] = page

    def folders(self) -> list[Path]:
        return [path for path in entries(self._limits) if "_" in path.name]

    def remove_pod(self, pod_uid: str) -> None:
        with self._one_at_a_time:
            for folder in self.folders():
                if folder.name.partition("_")[0] == pod_uid:
                    page = self._open.pop(folder.name, None)
                    if page is not None:
                        page.close()
                    remove_tree(folder)
