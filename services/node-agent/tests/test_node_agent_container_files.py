"""What lies on the host for one container: its folder, which the tenant writes in, and its limits page."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hami_chassis.errors import Transient
from hami_model.limits_page import CardLimits, LimitsPage, layout
from hami_node_agent.adapters import limits_file
from hami_node_agent.adapters.host_files import replace_file
from hami_node_agent.adapters.host_folder import HostFolder
from hami_node_agent.adapters.limits_file import LimitsFile
from hami_node_agent.core.grant import ContainerFiles, HostLayout

CARD = "GPU-11111111-2222-3333-4444-000000000000"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")


def files(memory_mib: int = 10, *, region: str = "r", owner: tuple[int, int] | None = None) -> ContainerFiles:
    page = LimitsPage(
        region_file=f"/usr/local/vgpu/{region}.cache",
        cards=(CardLimits(uuid=CARD, memory_limit_bytes=memory_mib << 20),),
    )
    return ContainerFiles(pod_uid="u1", container="main", page=page, owner=owner)


@pytest.fixture
def host(tmp_path: Path) -> HostLayout:
    return HostLayout(hook_path=str(tmp_path / "hook"), lock_dir=str(tmp_path / "tmp" / "lock"))


@pytest.fixture
def folder(tmp_path: Path, host: HostLayout) -> HostFolder:
    return started(tmp_path, host)


def started(tmp_path: Path, host: HostLayout, content: bytes = b"library") -> HostFolder:
    """What an agent that starts sees."""
    library = tmp_path / "libvgpu.so"
    library.write_bytes(content)
    found = HostFolder(host, "")
    found.install(str(library))
    return found


def own_folder(host: HostLayout) -> Path:
    return Path(host.container_dir("u1", "main"))


def page_path(host: HostLayout) -> Path:
    return Path(host.limits_dir("u1", "main")) / layout.FILE


def lock_dir(host: HostLayout) -> Path:
    return Path(host.lock_dir)


def present(*paths: str) -> list[bool]:
    return [Path(path).exists() for path in paths]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


# ---- folders -------------------------------------------------------------------------------------------------------


def test_only_the_container_reaches_the_folder_that_all_its_users_write_in(
    folder: HostFolder, host: HostLayout
) -> None:
    folder.prepare_container(files())

    assert (mode(Path(host.containers)), mode(Path(host.limits)), mode(own_folder(host))) == (0o700, 0o700, 0o777)
    assert mode(lock_dir(host)) == 0o777
    assert (mode(page_path(host).parent), mode(page_path(host))) == (0o755, 0o644)


@as_root
def test_a_user_that_the_specification_names_owns_the_folder(folder: HostFolder, host: HostLayout) -> None:
    folder.prepare_container(files(owner=(1000, 2000)))

    status = own_folder(host).stat()
    assert (status.st_uid, status.st_gid, mode(own_folder(host))) == (1000, 2000, 0o755)
    assert {path.name: path.stat().st_uid for path in own_folder(host).iterdir()} == {"limits": 0, "libvgpu.so": 0}


@pytest.mark.parametrize("name", ["limits", "libvgpu.so"])
def test_what_a_runtime_mounts_upon_is_no_link_of_a_tenant_s(
    folder: HostFolder, host: HostLayout, tmp_path: Path, name: str
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    (victim / "kept").touch()
    folder.prepare_container(files())
    place = own_folder(host) / name
    place.rmdir() if place.is_dir() else place.unlink()
    place.symlink_to(victim)

    folder.prepare_container(files())

    assert not place.is_symlink()
    assert (mode(victim), [path.name for path in victim.iterdir()]) == (0o700, ["kept"])


def test_a_link_in_the_place_of_the_folder_is_not_followed(
    folder: HostFolder, host: HostLayout, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    own_folder(host).symlink_to(victim)
    lock_dir(host).rmdir()
    lock_dir(host).symlink_to(victim)

    folder.prepare_container(files())

    assert mode(victim) == 0o700
    assert not own_folder(host).is_symlink()
    assert not lock_dir(host).is_symlink()


async def test_removal_follows_no_link(folder: HostFolder, host: HostLayout, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "kept").touch()
    folder.prepare_container(files())
    (own_folder(host) / "away").symlink_to(victim)
    (own_folder(host) / "deep").mkdir()
    (own_folder(host) / "deep" / "away").symlink_to(victim)

    await folder.remove_pod("u1")

    assert not own_folder(host).exists()
    assert not page_path(host).parent.exists()
    assert (victim / "kept").exists()
    assert await folder.owners() == frozenset()


async def test_a_tree_deeper_than_any_stack_is_removed(folder: HostFolder, host: HostLayout) -> None:
    folder.prepare_container(files())
    before = os.open(own_folder(host), os.O_RDONLY)
    for number in range(2500):
        os.mkdir("deep", dir_fd=before)
        if number % 100 == 0:
            os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=before))
        inner = os.open("deep", os.O_RDONLY, dir_fd=before)
        os.close(before)
        before = inner
    os.close(before)

    await folder.remove_pod("u1")

    assert not own_folder(host).exists()


def test_a_lock_folder_that_was_cleaned_away_comes_back(folder: HostFolder, host: HostLayout) -> None:
    lock_dir(host).rmdir()

    folder.prepare_container(files())

    assert lock_dir(host).is_dir()


# ---- the page ------------------------------------------------------------------------------------------------------


def test_the_page_stays_and_changes_in_place(folder: HostFolder, host: HostLayout, tmp_path: Path) -> None:
    folder.prepare_container(files(10))
    inode = page_path(host).stat().st_ino

    folder.prepare_container(files(20))
    assert limits_file.read(page_path(host)).page == files(20).page
    restarted = started(tmp_path, host)
    restarted.refresh_page(files(30))
    assert limits_file.read(page_path(host)).page == files(30).page
    restarted.prepare_container(files(40))

    assert limits_file.read(page_path(host)).page == files(40).page
    assert page_path(host).stat().st_ino == inode


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"\xff" * layout.PAGE_BYTES, id="another version"),
        pytest.param(b"", id="cut short by a crash"),
        pytest.param(b"x" * (2 * layout.PAGE_BYTES), id="another size"),
    ],
)
def test_a_page_of_another_version_stays_for_who_runs_and_is_new_for_who_starts(
    folder: HostFolder, host: HostLayout, content: bytes
) -> None:
    page_path(host).parent.mkdir()
    page_path(host).write_bytes(content)
    inode = page_path(host).stat().st_ino

    folder.refresh_page(files())
    assert (page_path(host).read_bytes(), page_path(host).stat().st_ino) == (content, inode)
    folder.prepare_container(files())

    assert limits_file.read(page_path(host)).page == files().page
    assert page_path(host).stat().st_ino != inode


def test_another_allocation_s_page_is_replaced_at_the_start(folder: HostFolder, host: HostLayout) -> None:
    folder.prepare_container(files(region="first"))
    inode = page_path(host).stat().st_ino

    folder.prepare_container(files(region="second"))

    assert limits_file.read(page_path(host)).page == files(region="second").page
    assert page_path(host).stat().st_ino != inode


def test_a_container_without_a_page_is_given_none_while_it_runs(folder: HostFolder, host: HostLayout) -> None:
    folder.refresh_page(files())
    assert not page_path(host).parent.exists()


@contextmanager
def leased(path: Path) -> Iterator[None]:
    """A process of the container, which can read the page, holds a lease on it. Raises OSError."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # by which the kernel asks for it back
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        yield
    finally:
        os.close(descriptor)
        signal.signal(signal.SIGIO, before)


def test_a_lease_on_a_page_that_is_not_open_is_waited_for_by_nobody(folder: HostFolder, host: HostLayout) -> None:
    """As an agent finds it that starts: the container's own start is tried again, others go on."""
    LimitsFile.create(page_path(host), files().page).close()
    with leased(page_path(host)):
        with pytest.raises(Transient, match="lease"):
            folder.prepare_container(files(20))
        with pytest.raises(Transient, match="lease"):
            folder.refresh_page(files(20))
    folder.prepare_container(files(20))
    assert limits_file.read(page_path(host)).page == files(20).page


def test_nobody_can_have_a_lease_on_a_page_that_is_open(folder: HostFolder, host: HostLayout) -> None:
    folder.prepare_container(files())
    with pytest.raises(BlockingIOError), leased(page_path(host)):
        pass


# ---- the library ---------------------------------------------------------------------------------------------------


async def test_libraries_of_before_go_when_no_container_may_be_started_with_them(
    tmp_path: Path, host: HostLayout
) -> None:
    paths = []
    for content in (b"one", b"two", b"three"):
        folder = started(tmp_path, host, content)
        paths.append(folder.state().library)
    foreign = host.versioned_library("v2.10.0")
    replace_file(Path(foreign), b"of another maker")

    await folder.remove_libraries(frozenset({paths[1]}))

    assert present(*paths, foreign) == [False, True, True, True]
