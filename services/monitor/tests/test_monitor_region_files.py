"""Finding region files on a real file system, where containers put what they like."""

from __future__ import annotations

import os
import socket
import stat
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hami_chassis.untrusted_folders import remove_tree
from hami_monitor.adapters.region_files import RegionFiles, read_file
from hami_monitor.core.container_folder import ENTRY_MAX, FolderOwner, FolderReading, folder_name, owner_of
from hami_monitor.core.region import read_region
from hami_monitor.core.region_layouts import V1, UnreadableRegionError
from hami_monitor.core.region_slots import read_slots
from hami_monitor.core.region_words import read_words
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


def replace_by_full_device(path: Path) -> None:
    make_device(path, os.makedev(1, 7))


def replace_by_null_device(path: Path) -> None:
    make_device(path, os.makedev(1, 3))


def make_device(path: Path, number: int) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, number)
    except PermissionError:
        pytest.skip("devices are made by root only")


def replace_by_socket(path: Path) -> None:
    listening = socket.socket(socket.AF_UNIX)
    previous = Path.cwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        listening.bind(path.name)
    finally:
        os.chdir(previous)
        listening.close()


@pytest.mark.parametrize(
    "replace",
    [
        replace_by_link,
        replace_by_pipe,
        replace_by_socket,
        replace_by_null_device,
        replace_by_full_device,
        Path.mkdir,
    ],
)
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


def test_a_region_that_stays_is_not_decoded_again_and_a_change_of_it_is_seen(containers: Path) -> None:
    files, file = RegionFiles(containers), own(containers) / "a.cache"
    file.write_bytes(region_bytes(slots=[Slot(used={0: 5})]))
    first, same = files.scan()[0].region, files.scan()[0].region
    assert first is not None
    assert same is not None
    assert same.cards is first.cards
    with file.open("r+b") as there:
        there.seek(V1.slots + V1.used.start + V1.used.total)
        there.write((6).to_bytes(8, "little"))
    changed = files.scan()[0].region
    assert changed is not None
    assert changed.cards[0].used.total == 6


def test_slots_that_know_their_host_pid_are_left_out(containers: Path) -> None:
    slots = [Slot(pid=1, host_pid=100), Slot(pid=2), Slot(pid=3, status=0)]
    (own(containers) / "a.cache").write_bytes(region_bytes(slots=slots))
    (read,) = RegionFiles(containers).slots([FolderOwner(pod_uid=UID, container="main")]).values()
    assert [(slot.index, slot.pid) for slot in read.slots] == [(1, 2)]


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
    for number in range(1000):
        folder = containers / f"uid{number}_main"
        folder.mkdir()
        (folder / "a.cache").write_bytes(content)
        files.scan()
        (folder / "a.cache").unlink()
        folder.rmdir()
    assert (open_files(tmp_path), mappings(tmp_path)) == ([], 0)


def open_files(below: Path) -> list[str]:
    """Those that this process has open there; what earlier tests left elsewhere may be closed at any time."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(entry.readlink()))
    return [name for name in found if name.startswith(str(below))]


def mappings(below: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(below))


def test_a_scan_that_races_with_removal_and_swaps_leaves_nothing_open(tmp_path: Path) -> None:
    """Folders, files and what they are change between any two looks."""
    containers = tmp_path / "containers"
    containers.mkdir()
    files, content, stop = RegionFiles(containers), region_bytes(), threading.Event()
    owners = [FolderOwner(pod_uid=f"uid{number}", container="main") for number in range(5)]

    def disturb() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            folder = containers / folder_name(owners[turn % len(owners)])
            remove_tree(folder)
            if turn % 7 == 0:
                folder.symlink_to(tmp_path)
                continue
            folder.mkdir()
            file = folder / "a.cache"
            if turn % 5 == 0:
                os.mkfifo(file)
                continue
            file.write_bytes(content)
            os.truncate(file, (100, len(content), 1 << 40)[turn % 3])

    disturbing = threading.Thread(target=disturb)
    disturbing.start()
    try:
        for _ in range(100):
            for reading in files.scan():
                assert reading.region is None or reading.region.cards[0].id == CARD_A
            files.words(owners)
            files.slots(owners)
    finally:
        stop.set()
        disturbing.join()
    assert (open_files(tmp_path), mappings(tmp_path)) == ([], 0)


@pytest.mark.parametrize("read", [RegionFiles.words, RegionFiles.slots])
def test_a_known_region_s_folder_that_became_a_link_is_not_followed(
    containers: Path, tmp_path: Path, read: Callable[[RegionFiles, list[FolderOwner]], object]
) -> None:
    (own(containers) / "a.cache").write_bytes(region_bytes())
    files, owner = RegionFiles(containers), FolderOwner(pod_uid=UID, container="main")
    files.scan()
    assert read(files, [owner])
    moved = tmp_path / "moved"
    own(containers).rename(moved)
    own(containers).symlink_to(moved)
    assert not read(files, [owner])


def test_a_region_with_two_names_is_read_as_the_same_file(containers: Path) -> None:
    """Only writing refuses it: what is read of a link to another's file is what that file's owner wrote."""
    (own(containers) / "a.cache").write_bytes(region_bytes())
    other = containers / "other_main"
    other.mkdir()
    os.link(own(containers) / "a.cache", other / "a.cache")
    first, second = RegionFiles(containers).scan()
    assert first.inode == second.inode
    assert first.region == second.region


def test_junk_of_any_number_and_size_takes_little_memory(containers: Path) -> None:
    for number in range(ENTRY_MAX * 2):
        (own(containers) / f"{number:05}{'x' * 100}").touch()
    huge = containers / "huge_main"
    huge.mkdir()
    (huge / "a.cache").write_bytes(region_bytes())
    os.truncate(huge / "a.cache", 1 << 40)
    files = RegionFiles(containers)
    tracemalloc.start()
    try:
        junk, read = sorted(files.scan(), key=lambda found: found.owner.pod_uid)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "more than" in junk.problem
    assert read.region is not None
    assert peak_bytes < 8 << 20


def test_a_name_that_is_no_text_is_told_as_text_of_one_line(containers: Path) -> None:
    (own(containers) / os.fsdecode(b"\xff\n\x1b.cache")).write_bytes(b"x")
    problem = scan(containers).problem
    assert problem.encode().startswith(b"\\\\xff\\n\\x1b.cache: ")


@pytest.mark.parametrize(("before", "after"), [(1 << 21, 100), (100, 1 << 21)])
@pytest.mark.parametrize("read", [read_region, read_words, read_slots])
def test_a_file_that_grows_or_shrinks_while_it_is_read_is_a_problem_or_read(
    read: Callable[..., object], before: int, after: int
) -> None:
    """At each read anew: the size that was seen is not the one that is there."""
    content = region_bytes()
    for change_at in range(6):
        calls = 0

        def read_at(offset: int, length: int, change_at: int = change_at) -> bytes:
            nonlocal calls
            calls += 1
            return content[: after if calls > change_at else before][offset : offset + length]

        try:
            read(len(content[:before]), read_at)
        except UnreadableRegionError:
            continue


def test_one_file_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "a.cache"
    file.write_bytes(region_bytes())
    assert read_file(file).cards[0].id == CARD_A
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "b.cache")
    with pytest.raises(UnreadableRegionError):
        read_file(Path("/dev/null"))
