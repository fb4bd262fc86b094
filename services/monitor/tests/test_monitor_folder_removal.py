"""Folders of pods that are gone: removed when that is certain, and never otherwise."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from hami_chassis.errors import Transient
from hami_monitor.adapters.container_folders import ContainerFolders
from hami_monitor.adapters.proc import ProcProcesses
from hami_monitor.core.container_folder import FolderOwner
from hami_monitor.folder_removal import FolderRemoval
from hami_sim.manual_clock import ManualClock
from monitor_builders import MonitoredPod, pod
from structlog.testing import capture_logs


class Node:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.cached: list[MonitoredPod] = []
        self.listed: set[str] | Exception = set()
        self.lists = 0
        self.in_use: set[FolderOwner] = set()
        self.known = asyncio.Event()
        self.clock = ManualClock()
        self.store = ContainerFolders(root)
        self.removal = FolderRemoval(
            keep_seconds=300,
            folders=self.store,
            users=self,
            pods=self,
            pods_known=self.known,
            pod_list=self,
            clock=self.clock,
        )

    def values(self) -> list[MonitoredPod]:
        return self.cached

    async def kubelet_uids(self) -> set[str]:
        self.lists += 1
        if isinstance(self.listed, Exception):
            raise self.listed
        return self.listed

    def using(self, owners: Iterable[FolderOwner]) -> set[FolderOwner]:
        return self.in_use & set(owners)

    def add(self, name: str, age_seconds: float = 1000) -> Path:
        folder = self.root / f"uid-{name}_main"
        folder.mkdir()
        (folder / "a.cache").write_bytes(b"x")
        changed = time.time() - age_seconds
        os.utime(folder, (changed, changed))
        return folder


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_what_nobody_needs_is_removed(node: Node) -> None:
    gone, fresh, known, late = node.add("gone"), node.add("fresh", 200), node.add("known"), node.add("late")
    node.cached = [pod("known")]
    node.listed = {"uid-known", "uid-late"}
    await node.removal.look()
    assert [folder.exists() for folder in (gone, fresh, known, late)] == [False, True, True, True]


async def test_without_candidates_the_api_server_is_not_asked(node: Node) -> None:
    node.add("fresh", 10)
    await node.removal.look()
    assert node.lists == 0


@pytest.mark.case("MON-15")
async def test_while_the_api_server_does_not_answer_nothing_is_removed(node: Node) -> None:
    folder = node.add("unknown")
    node.listed = Transient("the API server is away")
    for _ in range(3):
        await node.removal.look()
    assert folder.exists()
    node.listed = set()
    await node.removal.look()
    assert not folder.exists()


@pytest.mark.case("MON-15")
async def test_before_the_pods_are_known_nothing_is_removed(node: Node) -> None:
    folder = node.add("unknown")
    running = asyncio.create_task(node.removal.run())
    await asyncio.sleep(0)
    node.clock.advance(3600)
    await asyncio.sleep(0)
    assert node.lists == 0
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert folder.exists()


async def test_a_pod_that_was_deleted_by_force_keeps_its_folder_while_it_runs(node: Node) -> None:
    folder = node.add("forced")
    node.in_use = {FolderOwner(pod_uid="uid-forced", container="main")}
    with capture_logs() as logs:
        await node.removal.look()
        await node.removal.look()
    assert folder.exists()
    assert [entry["event"] for entry in logs] == ["folder-kept"]
    node.in_use = set()
    await node.removal.look()
    assert not folder.exists()


async def test_a_clock_that_is_set_forward_makes_no_folder_old(node: Node) -> None:
    """What was not there, or was touched since, at the look before cannot be older than that look."""
    long_there, touched = node.add("long-there"), node.add("touched", 10)
    await node.removal.look()
    assert not long_there.exists()

    fresh = node.add("fresh", age_seconds=7200)
    changed = time.time() - 3600
    os.utime(touched, (changed, changed))
    for _ in range(2):
        await node.removal.look()

    assert fresh.exists()
    assert touched.exists()


async def test_links_are_not_followed(node: Node, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "precious").write_bytes(b"x")
    folder = node.add("gone")
    (folder / "link").symlink_to(elsewhere)
    (node.root / "uid-linked_main").symlink_to(elsewhere)
    changed = time.time() - 1000
    os.utime(folder, (changed, changed))
    await node.removal.look()
    assert not folder.exists()
    assert (elsewhere / "precious").exists()
    assert (node.root / "uid-linked_main").is_symlink()


async def test_a_tree_deeper_than_any_stack_is_removed(node: Node) -> None:
    deep = node.add("deep")
    inner = os.open(deep, os.O_RDONLY)
    for _ in range(1200):  # more than a program recurses
        os.mkdir("d", dir_fd=inner)
        below = os.open("d", os.O_RDONLY, dir_fd=inner)
        os.close(inner)
        inner = below
    os.close(inner)
    changed = time.time() - 1000
    os.utime(deep, (changed, changed))
    await node.removal.look()
    assert not deep.exists()


async def test_what_cannot_be_removed_is_told_once_and_holds_up_no_other(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, gone = node.add("a"), node.add("b")
    rmdir = os.rmdir

    def busy(name: str, *, dir_fd: int | None = None) -> None:
        """As of a folder that something is mounted upon."""
        if name == stuck.name:
            raise OSError(errno.EBUSY, "Device or resource busy")
        rmdir(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", busy)
    with capture_logs() as logs:
        await node.removal.look()
        changed = time.time() - 1000
        os.utime(stuck, (changed, changed))
        await node.removal.look()
    assert not gone.exists()
    assert [entry["event"] for entry in logs if entry["pod_uid"] == "uid-a"] == ["folder-kept"]


async def test_a_folder_that_the_agent_removes_first_is_no_trouble(node: Node) -> None:
    ContainerFolders(node.root).remove(FolderOwner(pod_uid="uid-none", container="main"))


def test_processes_of_a_pod_are_seen_by_their_control_group(tmp_path: Path) -> None:
    uid = "9e859505-1510-4d39-8f63-391beb537291"
    for pid, cgroup in ((10, f"0::/kubepods/besteffort/pod{uid}/{'a' * 64}\n"), (11, "0::/system.slice\n")):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "cgroup").write_text(cgroup)
    owners = [FolderOwner(pod_uid=one, container="main") for one in (uid, "other")]
    assert ProcProcesses(tmp_path).using(owners) == {owners[0]}


def test_processes_are_seen_by_the_folder_that_they_have_mounted(tmp_path: Path) -> None:
    owner = FolderOwner(pod_uid="u", container="main")
    (tmp_path / "10").mkdir()
    (tmp_path / "10/mountinfo").write_text("1 2 0:1 /usr/local/vgpu/containers/u_main /usr/local/vgpu rw - ext4 a rw\n")
    assert ProcProcesses(tmp_path).using([owner]) == {owner}
