"""Finding region files on a real file system, where containers put what they like."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hami_monitor.adapters.region_files import RegionFiles, read_file
from hami_monitor.core.container_folder import ENTRY_MAX, FolderReading, owner_of
from hami_monitor.core.region_layouts import UnreadableRegionError
from monitor_builders import CARD_A, CARD_B, Slot, region_bytes

UID = "9e859505-1510-4d39-8f63-391beb537291"


@pytest.fixture
def containers(tmp_path: Path) -> Path:
    folder = tmp_path / "containers"
    (folder / f"{UID}_main").mkdir(parents=True)
    return folder


def scan(containers: Path) -> FolderReading:
    (found,) = RegionFiles(containers).scan()
    return found


def own(containers: Path) -> Path:
    return containers / f"{UID}_main"


def test_no_folder_yet_is_no_container(tmp_path: Path) -> None:
    assert RegionFiles(tmp_path / "containers").scan() == ()


def test_a_folder_without_a_region_is_neither_read_nor_a_problem(containers: Path) -> None:
    found = scan(containers)
    assert (found.region, found.problem) == (None, "")


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        (f"{UID}_main", (UID, "main")),
        (f"{UID}_a_b", (UID, "a_b")),
        (f"{UID}_", None),
        ("_main", None),
        ("nothing", None),
        ("", None),
    ],
)
def test_folders_are_named_by_pod_and_container(name: str, owner: tuple[str, str] | None) -> None:
    found = owner_of(name)
    assert (None if found is None else (found.pod_uid, found.container)) == owner


@pytest.mark.case("MON-03")
def test_only_files_that_end_in_cache_are_regions(containers: Path) -> None:
    (own(containers) / "x.cache").write_bytes(region_bytes())
    for name in ("notes.txt", "debug.log", "a.cache.bak", "A.CACHE"):
        (own(containers) / name).write_bytes(b"x")
    found = scan(containers)
    assert (found.file, found.problem) == ("x.cache", "")


def test_three_files_are_not_guessed_among(containers: Path) -> None:
    for name in ("a.cache", "b.cache", "libvgpu.so"):
        (own(containers) / name).write_bytes(region_bytes())
    assert "2 region files" in scan(containers).problem


def test_one_bad_folder_leaves_the_others(containers: Path) -> None:
    (own(containers) / "a.cache").write_bytes(b"short")
    good = containers / "other_main"
    good.mkdir()
    (good / "a.cache").write_bytes(region_bytes())
    bad, read = RegionFiles(containers).scan()
    assert "too few" in bad.problem
    assert read.region is not None


def replace_by_link(path: Path) -> None:
    secret = path.parent.parent / "secret"
    secret.write_bytes(region_bytes())
    path.symlink_to(secret)


def replace_by_pipe(path: Path) -> None:
    os.mkfifo(path)


def replace_by_socket(path: Path) -> None:
    listening = socket.socket(socket.AF_UNIX)
    previous = Path.cwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        listening.bind(path.name)
    finally:
        os.chdir(previous)
        listening.close()


@pytest.mark.parametrize("replace", [replace_by_link, replace_by_pipe, replace_by_socket, Path.mkdir])
def test_what_is_no_regular_file_is_not_opened(containers: Path, replace: object) -> None:
    replace(own(containers) / "a.cache")  # type: ignore[operator]
    found = scan(containers)
    assert (found.region, found.problem) == (None, "a.cache: is no regular file")


def test_a_link_in_place_of_a_folder_is_not_followed(containers: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a.cache").write_bytes(region_bytes())
    (containers / "other_main").symlink_to(elsewhere)
    assert [found.owner.pod_uid for found in RegionFiles(containers).scan()] == [UID]


def test_a_file_of_a_tebibyte_is_read_like_any_other(containers: Path) -> None:
    file = own(containers) / "a.cache"
    file.write_bytes(region_bytes(slots=[Slot(used={0: 5})]))
    os.truncate(file, 1 << 40)
    found = scan(containers).region
    assert found is not None
    assert found.cards[0].used.total == 5


def test_a_replaced_file_is_seen_as_it_is_now(containers: Path) -> None:
    files, file = RegionFiles(containers), own(containers) / "a.cache"
    file.write_bytes(region_bytes(cards=(CARD_A,)))
    (before,) = files.scan()
    fresh = own(containers) / "fresh"
    fresh.write_bytes(region_bytes(cards=(CARD_B,)))
    fresh.replace(file)
    (after,) = files.scan()
    assert before.region is not None
    assert after.region is not None
    assert (before.region.cards[0].id, after.region.cards[0].id) == (CARD_A, CARD_B)
    assert before.inode != after.inode


def test_a_file_that_was_cut_is_a_problem_and_recovers(containers: Path) -> None:
    files, file = RegionFiles(containers), own(containers) / "a.cache"
    file.write_bytes(region_bytes())
    os.truncate(file, 100)
    (cut,) = files.scan()
    assert "cut short" in cut.problem
    file.write_bytes(region_bytes())
    (mended,) = files.scan()
    assert mended.region is not None


def test_a_folder_full_of_files_is_given_up(containers: Path) -> None:
    for number in range(ENTRY_MAX + 1):
        (own(containers) / f"{number}").touch()
    assert "more than" in scan(containers).problem


@pytest.mark.case("MON-04")
def test_folders_that_come_and_go_leave_nothing_open_or_mapped(tmp_path: Path) -> None:
    containers = tmp_path / "containers"
    containers.mkdir()
    files, content = RegionFiles(containers), region_bytes()[: 1 << 12]
    before = open_files(), mappings(tmp_path)
    for number in range(100):
        folder = containers / f"uid{number}_main"
        folder.mkdir()
        (folder / "a.cache").write_bytes(content)
        files.scan()
        (folder / "a.cache").unlink()
        folder.rmdir()
    assert (open_files(), mappings(tmp_path)) == before


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def mappings(below: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(below))


def test_one_file_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "a.cache"
    file.write_bytes(region_bytes())
    assert read_file(file).cards[0].id == CARD_A
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "b.cache")
    with pytest.raises(UnreadableRegionError):
        read_file(Path("/dev/null"))
