"""`<hook path>/vgpu`: the library, its preload list, and for each container a folder of its own and a limits page."""

from __future__ import annotations

import hashlib
import re
import threading
from pathlib import Path
from typing import Final

from hami_chassis.errors import Permanent
from hami_chassis.log import get_logger
from hami_chassis.untrusted_folders import remove_tree
from hami_model.limits_page import layout as page_layout

from hami_node_agent.adapters import safe_folders
from hami_node_agent.adapters.host_files import HostFilesError, entries, in_thread, remove_unfinished, replace_file
from hami_node_agent.adapters.limits_pages import LimitsPages
from hami_node_agent.core import cdi_spec
from hami_node_agent.core.grant import LIBRARY_NAME, ContainerFiles, HostLayout, HostState

log = get_logger("host-folder")

_BY_CONTENT: Final = re.compile(rf"{re.escape(LIBRARY_NAME)}\.[0-9a-f]{{16}}")
"""Names that we made; whoever named a version otherwise removes it, too."""
_PROGRAM: Final = 0o755
_CONTAINER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}", re.ASCII)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class LibraryMissingError(Permanent):
    """There is no library to preload."""


class HostFolder:
    """`<hook path>/vgpu`: the library, its preload list, and a folder for each container."""

    def __init__(self, layout: HostLayout, library_version: str) -> None:
        self._layout = layout
        self._library_version = library_version
        self._library_file = ""
        self._installed = ""
        self._one_at_a_time = threading.Lock()
        """Of putting back what containers share."""
        self._pages = LimitsPages(Path(layout.limits))

    def install(self, library_file: str, *, needed: bool = True) -> str:
        """Puts the library and its preload list in place; returns the version. Raises OSError, LibraryMissingError:
        there is none, though it is `needed`.

        A library of another content has another name, and a file is replaced by rename only: what a running
        container has mapped or mounted stays as it is.
        """
        folder = Path(self._layout.folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._library_file = library_file
        safe_folders.make_private(Path(self._layout.containers))
        safe_folders.make_private(Path(self._layout.limits))
        safe_folders.make_shared(Path(self._layout.lock_dir))
        remove_unfinished(folder, lambda name: name.startswith(LIBRARY_NAME))
        if library_file:
            content = Path(library_file).read_bytes()
            self._installed = _digest(content)
            self._library_version = self._library_version or self._installed[:16]
            target = Path(self._layout.versioned_library(self._library_version))
            if not target.is_file() or target.read_bytes() != content:
                replace_file(target, content, mode=_PROGRAM)
        listed = Path(self._layout.preload_list)
        if not listed.is_file() or listed.read_bytes() != self._preload():
            replace_file(listed, self._preload())
        if needed and not Path(self._library()).is_file():
            raise LibraryMissingError(
                f"there is no library {self._library()}; set files.library_file to the {LIBRARY_NAME} to install"
            )
        return self._library_version

    def _preload(self) -> bytes:
        return f"{self._layout.library}\n".encode()

    def _library(self) -> str:
        """What we installed, even while it is not there: nothing else is handed out in its place."""
        if self._library_version:
            versioned = self._layout.versioned_library(self._library_version)
            if self._library_file or Path(versioned).is_file():
                return versioned
        return self._layout.library

    def state(self) -> HostState:
        return HostState(library=self._library(), has_license=Path(self._layout.license).is_file())

    def prepare_container(self, files: ContainerFiles) -> None:
        """Puts the container's folders and its limits page in place; what is in them stays, or changes in place.

        Raises OSError, HostFilesError.
        """
        pod_uid, container = files.pod_uid, files.container
        if not cdi_spec.is_pod_uid(pod_uid) or not _CONTAINER_NAME.fullmatch(container):
            raise HostFilesError(f"{pod_uid!r} and {container!r} are no UID and container name that could name a file")
        with self._one_at_a_time:
            self._put_back(files.library)
        safe_folders.make_shared(Path(self._layout.lock_dir))
        safe_folders.make_container_folder(
            Path(self._layout.containers),
            f"{pod_uid}_{container}",
            owner=files.owner,
            mount_folders=(page_layout.DIRECTORY,),
            mount_files=(LIBRARY_NAME,),
        )
        self._pages.put(files)

    def _put_back(self, library: str) -> None:
        """What somebody removed while we run, and the container needs. Raises OSError, HostFilesError."""
        for folder in (self._layout.containers, self._layout.limits):
            try:
                is_new = safe_folders.make_private(Path(folder))
            except OSError as error:
                raise HostFilesError(
                    f"{folder} can be no folder of ours: {error.strerror}; remove what lies in its place, so that it "
                    "is made anew"
                ) from error
            if is_new:
                log.warning("folder-put-back", path=folder)
        if library and not Path(library).is_file():
            self._put_library_back(library)
        if not Path(self._layout.preload_list).is_file():
            replace_file(Path(self._layout.preload_list), self._preload())
            log.warning("preload-list-put-back", path=self._layout.preload_list)

    def _put_library_back(self, library: str) -> None:
        gone = f"the library {library} is gone, with which the container is to be started"
        if not self._library_file or library != self._library():
            raise HostFilesError(
                f"{gone}: put it back; or set files.library_file to the {LIBRARY_NAME} to install, and delete the pod"
            )
        content = Path(self._library_file).read_bytes()
        if _digest(content) != self._installed:
            raise HostFilesError(f"{gone}, and {self._library_file} is another one by now: restart the node-agent")
        replace_file(Path(library), content, mode=_PROGRAM)
        log.warning("library-put-back", path=library)

    def refresh_page(self, files: ContainerFiles) -> None:
        """Changes the page of a container that may be running, if it has one that this agent can write.

        Raises OSError, HostFilesError.
        """
        self._pages.refresh(files)

    async def remove_libraries(self, used: frozenset[str]) -> None:
        await in_thread(lambda: self._remove_libraries(used))

    def _remove_libraries(self, used: frozenset[str]) -> None:
        kept = {self._library(), *used}
        for path in entries(Path(self._layout.folder)):
            if _BY_CONTENT.fullmatch(path.name) and str(path) not in kept:
                path.unlink(missing_ok=True)
                log.info("library-removed", path=str(path))

    async def remove_pod(self, pod_uid: str) -> None:
        await in_thread(lambda: self._remove_pod(pod_uid))

    def _remove_pod(self, pod_uid: str) -> None:
        for folder in self._container_folders():
            if folder.name.partition("_")[0] == pod_uid:
                remove_tree(folder)
        self._pages.remove_pod(pod_uid)

    async def owners(self) -> frozenset[str]:
        folders = await in_thread(lambda: [*self._container_folders(), *self._pages.folders()])
        return frozenset(folder.name.partition("_")[0] for folder in folders)

    def _container_folders(self) -> list[Path]:
        return [path for path in entries(Path(self._layout.containers)) if "_" in path.name]
