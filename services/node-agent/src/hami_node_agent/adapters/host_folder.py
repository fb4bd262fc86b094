"""`<hook path>/vgpu`: the library, its preload list, and for each container a folder of its own and a limits page."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

from hami_chassis.errors import Permanent
from hami_chassis.log import get_logger
from hami_chassis.untrusted_folders import remove_tree
from hami_model.limits_page import layout as page_layout

from hami_node_agent.adapters import safe_folders
from hami_node_agent.adapters.host_files import HostFilesError, in_thread, remove_unfinished, replace_file
from hami_node_agent.adapters.limits_pages import LimitsPages
from hami_node_agent.core import cdi_spec
from hami_node_agent.core.grant import LIBRARY_NAME, ContainerFiles, HostLayout, HostState

log = get_logger("host-folder")

_BY_CONTENT: Final = re.compile(rf"{re.escape(LIBRARY_NAME)}\.[0-9a-f]{{16}}")
"""Names that we made; whoever named a version otherwise removes it, too."""
_CONTAINER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}", re.ASCII)


class LibraryMissingError(Permanent):
    """There is no library to preload."""


class HostFolder:
    """`<hook path>/vgpu`: the library, its preload list, and a folder for each container."""

    def __init__(self, layout: HostLayout, library_version: str) -> None:
        self._layout = layout
        self._library_version = library_version
        self._pages = LimitsPages(Path(layout.limits))

    def install(self, library_file: str, *, needed: bool = True) -> str:
        """Puts the library and its preload list in place; returns the version. Raises OSError, LibraryMissingError:
        there is none, though it is `needed`.

        A library of another content has another name, and a file is replaced by rename only: what a running
        container has mapped or mounted stays as it is.
        """
        folder = Path(self._layout.folder)
        folder.mkdir(parents=True, exist_ok=True)
        safe_folders.make_private(Path(self._layout.containers))
        safe_folders.make_private(Path(self._layout.limits))
        safe_folders.make_shared(Path(self._layout.lock_dir))
        remove_unfinished(folder, lambda name: name.startswith(LIBRARY_NAME))
        if library_file:
            content = Path(library_file).read_bytes()
            self._library_version = self._library_version or hashlib.sha256(content).hexdigest()[:16]
            target = Path(self._layout.versioned_library(self._library_version))
            if not target.is_file() or target.read_bytes() != content:
                replace_file(target, content, mode=0o755)
        preload = f"{self._layout.library}\n".encode()
        listed = Path(self._layout.preload_list)
        if not listed.is_file() or listed.read_bytes() != preload:
            replace_file(listed, preload)
        if needed and not Path(self._library()).is_file():
            raise LibraryMissingError(
                f"there is no library {self._library()}; set files.library_file to the {LIBRARY_NAME} to install"
            )
        return self._library_version

    def _library(self) -> str:
        if self._library_version:
            versioned = self._layout.versioned_library(self._library_version)
            if Path(versioned).is_file():
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
        safe_folders.make_shared(Path(self._layout.lock_dir))
        safe_folders.make_container_folder(
            Path(self._layout.containers),
            f"{pod_uid}_{container}",
            owner=files.owner,
            mount_folders=(page_layout.DIRECTORY,),
            mount_files=(LIBRARY_NAME,),
        )
        self._pages.put(files)

    def refresh_page(self, files: ContainerFiles) -> None:
        """Changes the page of a container that may be running, if it has one that this agent can write.

        Raises OSError, HostFilesError.
        """
        self._pages.refresh(files)

    async def remove_libraries(self, used: frozenset[str]) -> None:
        await in_thread(lambda: self._remove_libraries(used))

    def _remove_libraries(self, used: frozenset[str]) -> None:
        kept = {self._library(), *used}
        for path in Path(self._layout.folder).iterdir():
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
        return [path for path in Path(self._layout.containers).iterdir() if "_" in path.name]
