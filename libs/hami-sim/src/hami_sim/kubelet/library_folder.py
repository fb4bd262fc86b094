"""A preloaded library and what is mounted beside it, for a container without mounts of its own.

A library may look for files beside itself, so its folder must be the container's own: the folder that is mounted there,
with hard links to the files and links to the folders that are mounted inside it. What those files call by its path in
the container is found there by a link of that name, which goes when the pod is forgotten.
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import msgspec

from hami_sim.kubelet.launch import Bind, host_paths

_LINKS = "links-at-container-paths"


class LibraryFolder(msgspec.Struct, frozen=True):
    """Where a preloaded library lies in the container, and what is mounted inside that folder."""

    outer: Bind
    inner: tuple[Bind, ...]

    def place_of(self, bind: Bind) -> Path:
        """Where an inner mount comes to lie on the machine."""
        return Path(self.outer.source) / PurePosixPath(bind.target).relative_to(self.outer.target)


def library_folders(binds: list[Bind], preload_file: str) -> Iterator[LibraryFolder]:
    """Folders of the libraries that a mounted /etc/ld.so.preload names, where folders are mounted beside them."""
    for folder in sorted({str(PurePosixPath(word).parent) for word in re.split(r"[\s:]+", preload_file) if word}):
        outer = next((bind for bind in reversed(binds) if bind.target == folder), None)
        inner = tuple(bind for bind in binds if bind.target.startswith(f"{folder}/"))
        if outer is not None and any(Path(bind.source).is_dir() for bind in inner):
            yield LibraryFolder(outer, inner)


def put_together(folders: list[LibraryFolder], environment: Mapping[str, str], pod_dir: Path) -> None:
    """Makes the folders whole. Raises OSError."""
    for folder in folders:
        for bind in folder.inner:
            _place(Path(bind.source), folder.place_of(bind))
        for value in environment.values():
            if value.startswith(f"{folder.outer.target}/"):
                _link_at_container_path(Path(value), Path(host_paths(value, [folder.outer])), pod_dir)


def forget(pod_dir: Path) -> None:
    """Removes what `put_together` linked outside of the pod's own folders."""
    try:
        links = (pod_dir / _LINKS).read_text().splitlines()
    except FileNotFoundError:
        return
    for link in links:
        if Path(link).is_symlink():
            Path(link).unlink()


def _place(source: Path, place: Path) -> None:
    aside = place.with_name(f".{place.name}.new")
    aside.unlink(missing_ok=True)
    if source.is_dir():
        aside.symlink_to(source, target_is_directory=True)
        if place.is_dir() and not place.is_symlink():
            place.rmdir()
    else:
        try:
            os.link(source, aside)
        except OSError:  # another file system
            shutil.copy(source, aside)
    aside.replace(place)


def _link_at_container_path(path: Path, there: Path, pod_dir: Path) -> None:
    if os.path.lexists(path) or not path.parent.is_dir():
        return
    pod_dir.mkdir(parents=True, exist_ok=True)
    with (pod_dir / _LINKS).open("a") as file:
        file.write(f"{path}\n")
    path.symlink_to(there)
