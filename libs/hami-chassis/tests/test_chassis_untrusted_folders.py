"""Removing what others wrote: all of it, nothing else, with small means."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hami_chassis import untrusted_folders
from hami_chassis.untrusted_folders import opened, remove_tree


@contextmanager
def few_descriptors() -> Iterator[None]:
    """Not more than a handful beyond those that are open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 8, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def deep_chain(folder: Path, levels: int) -> None:
    folder.mkdir()
    above = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=above)
        below = os.open("d", os.O_RDONLY, dir_fd=above)
        os.close(above)
        above = below
    os.close(above)


def test_trees_files_and_links_go_and_what_links_point_to_stays(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    tree, link, file, pipe = (tmp_path / name for name in ("tree", "link", "file", "pipe"))
    (tree / "a" / "b").mkdir(parents=True)
    for place in (tree, tree / "a", tree / "a" / "b"):
        (place / "away").symlink_to(kept)
        (place / "gone").symlink_to("nowhere")
        os.mkfifo(place / "pipe")
    link.symlink_to(kept)
    file.touch()
    os.mkfifo(pipe)
    for path in (tree, link, file, pipe, tree, tmp_path / "no" / "parent"):
        remove_tree(path)
    assert list(tmp_path.iterdir()) == [kept]
    assert (kept / "file").exists()


def test_however_deep_a_tree_is_neither_stack_nor_descriptors_grow(tmp_path: Path) -> None:
    deep_chain(tmp_path / "tree", 1200)
    with few_descriptors():
        remove_tree(tmp_path / "tree")
    assert list(tmp_path.iterdir()) == []


def test_folders_of_many_entries_are_removed_by_and_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted_folders, "_BATCH", 10)
    for place in ("tree", "tree/a", "tree/b"):
        (tmp_path / place).mkdir()
        for number in range(35):
            (tmp_path / place / f"f{number}").touch()
    for number in range(35):
        (tmp_path / "tree" / "a" / f"d{number}" / "d").mkdir(parents=True)
    with few_descriptors():
        remove_tree(tmp_path / "tree")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_filled_while_it_is_emptied_ends_the_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "first").touch()
    unlink = os.unlink

    def unlink_and_refill(name: str, *, dir_fd: int) -> None:
        unlink(name, dir_fd=dir_fd)
        (tree / f"{name}+"[-100:]).touch()

    monkeypatch.setattr(untrusted_folders, "_ENTRIES_MAX", 50)
    monkeypatch.setattr(os, "unlink", unlink_and_refill)
    with pytest.raises(OSError, match="more and more files"):
        remove_tree(tree)


def test_a_folder_swapped_for_a_link_while_it_is_looked_at_is_not_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, tree = tmp_path / "kept", tmp_path / "tree"
    kept.mkdir()
    (kept / "file").touch()
    (tree / "inner").mkdir(parents=True)
    some_of = untrusted_folders._some_of

    def swap(folder: int) -> list[tuple[str, bool]]:
        found = some_of(folder)
        if found == [("inner", True)]:
            (tree / "inner").rmdir()
            (tree / "inner").symlink_to(kept)
        return found

    monkeypatch.setattr(untrusted_folders, "_some_of", swap)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        remove_tree(tree)
    monkeypatch.undo()
    remove_tree(tree)
    assert (kept / "file").exists()
    assert not tree.exists()


def test_a_link_in_place_of_a_folder_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(NotADirectoryError), opened(tmp_path / "link"):
        pass
