"""Whose process: what /proc says, as text and for real."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest
from hami_monitor.adapters.proc import ProcProcesses
from hami_monitor.adapters.region_files import RegionFiles
from hami_monitor.core.container_folder import FolderOwner, FolderReading
from hami_monitor.core.process_trace import (
    ProcessKey,
    ProcessStat,
    ProcessTrace,
    RegionFileId,
    container_by_cgroup,
    namespaced_pids,
    owner_by_maps,
    owner_by_mounts,
    pod_by_cgroup,
    process_stat,
)
from hypothesis import given
from hypothesis import strategies as st
from monitor_builders import region_bytes

UID = "9e859505-1510-4d39-8f63-391beb537291"
CONTAINER = "0123456789abcdef" * 4
OWNER = FolderOwner(pod_uid=UID, container="main")
FILES = {RegionFileId(77, "a.cache"): OWNER}


@pytest.mark.parametrize(
    ("text", "uid"),
    [
        (f"0::/kubepods/burstable/pod{UID}/0123abc\n", UID),
        (f"0::/kubepods.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/cri-containerd-0.scope\n", UID),
        ("0::/kubepods/pod0123456789abcdef0123456789abcdef/x\n", "0123456789abcdef0123456789abcdef"),
        ("0::/system.slice/podman.service\n", None),
        ("", None),
    ],
)
def test_the_pod_of_a_control_group(text: str, uid: str | None) -> None:
    assert pod_by_cgroup(text) == uid


@pytest.mark.parametrize(
    ("line", "owner"),
    [
        ("7f00-7f01 rw-s 00000000 00:2a 77 /usr/local/vgpu/a.cache\n", OWNER),
        ("7f00-7f01 rw-s 00000000 00:2a 78 /usr/local/vgpu/a.cache\n", None),
        ("7f00-7f01 rw-s 00000000 00:2a 77 /usr/local/vgpu/b.cache\n", None),
        ("7f00-7f01 rw-p 00000000 00:00 0\n", None),
        ("7f00-7f01 rw-p 00000000 00:00 0 [heap]\n", None),
    ],
)
def test_the_container_of_a_mapping(line: str, owner: FolderOwner | None) -> None:
    assert owner_by_maps(["55-56 r-xp 0 00:2a 9 /bin/app\n", line], FILES) == owner


FIELDS = "R " + " ".join(str(number) for number in range(4, 53))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"12 (app) {FIELDS}\n", ProcessStat(name="app", is_running=True, began_at_ticks=22)),
        (f"12 (a) b (c) {FIELDS}\n", ProcessStat(name="a) b (c", is_running=True, began_at_ticks=22)),
        (f"12 (app) {FIELDS.replace('R', 'Z')}\n", ProcessStat(name="app", is_running=False, began_at_ticks=22)),
        ("12 (app) R 1 2\n", None),
        (f"12 (app) {FIELDS.replace(' 22 ', ' ² ')}\n", None),
        ("", None),
    ],
    ids=["plain", "a name of parentheses", "ended", "cut short", "no number", "nothing"],
)
def test_name_state_and_start(text: str, found: ProcessStat | None) -> None:
    assert process_stat(text) == found


@pytest.mark.parametrize(
    ("text", "pids"),
    [
        ("Name:\tapp\nNSpid:\t4242\t17\n", (4242, 17)),
        ("NSpid:\t4242\n", (4242,)),
        ("Name:\t\x0bNSpid:\t5 7\nNSpid:\t4242\t17\n", (4242, 17)),
        ("Name:\t\u2028NSpid:\t5 7\nNSpid:\t4242\t17\n", (4242, 17)),
        ("Name:\tapp\n", ()),
        ("", ()),
    ],
)
def test_the_pids_in_each_namespace(text: str, pids: tuple[int, ...]) -> None:
    assert namespaced_pids(text) == pids


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"0::/kubepods/burstable/pod{UID}/{CONTAINER}\n", CONTAINER),
        (f"0::/../kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope\n", CONTAINER),
        (f"0::/kubepods/pod{UID}\n", None),
        (f"0::/system.slice/{CONTAINER}\n", None),
    ],
)
def test_the_container_of_a_control_group(text: str, found: str | None) -> None:
    assert container_by_cgroup(text) == found


@pytest.mark.parametrize(
    ("root", "owner"),
    [
        (f"/usr/local/vgpu/containers/{UID}_main", OWNER),
        (f"/vgpu/containers/{UID}_main", OWNER),
        (f"/with\\040blank/containers/{UID}_main", OWNER),
        (f"/usr/local/vgpu/containers/{UID}_other", None),
        (f"/home/{UID}_main", None),
        (f"/home/containers/{UID}_main\x0bx", None),
        (f"/usr/local/vgpu/containers/{UID}_main/x", None),
        ("/", None),
    ],
)
def test_the_container_of_a_mount(root: str, owner: FolderOwner | None) -> None:
    mounts = ["22 1 8:1 / / rw - ext4 /dev/sda1 rw\n", f"23 22 8:1 {root} /usr/local/vgpu rw - ext4 /dev/sda1 rw\n"]
    assert owner_by_mounts(mounts, {OWNER}) == owner


@given(st.text(), st.lists(st.text()))
def test_no_text_is_an_error(text: str, lines: list[str]) -> None:
    pod_by_cgroup(text)
    container_by_cgroup(text)
    process_stat(text)
    namespaced_pids(text)
    owner_by_maps(lines, FILES)
    owner_by_mounts(lines, {OWNER})


def test_a_process_that_maps_a_region_belongs_to_its_container(tmp_path: Path) -> None:
    folder = tmp_path / f"{UID}_main"
    folder.mkdir()
    (folder / "a.cache").write_bytes(region_bytes())
    folders = RegionFiles(tmp_path).scan()
    processes, pid = ProcProcesses(), os.getpid()
    assert processes.trace([pid], folders)[pid].folder is None
    with (folder / "a.cache").open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert processes.trace([pid], folders)[pid].folder == OWNER
    assert processes.trace([pid], folders)[pid].folder == OWNER, "a process keeps its container"


def test_a_process_that_is_gone_is_not_told_of() -> None:
    assert ProcProcesses().trace([2**22 + 1], ()) == {}


def test_what_the_kernel_tells_of_this_process() -> None:
    pid = os.getpid()
    found = ProcProcesses().trace([pid], ())[pid]
    assert found.key.pid == pid
    assert found.key.began_at_ticks > 0
    assert found.pids[0] == pid


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A process 41 as kubelet and runtime start it, whose memory and mounts nobody may see."""
    process = tmp_path / "41"
    process.mkdir()
    (process / "stat").write_text(f"41 (app) {FIELDS}")
    (process / "status").write_text("Name:\tapp\nNSpid:\t41\t7\n")
    (process / "cgroup").write_text(f"0::/kubepods/burstable/pod{UID}/{CONTAINER}\n")
    return tmp_path


def test_the_control_group_is_enough(proc: Path) -> None:
    assert ProcProcesses(proc).trace([41], ()) == {
        41: ProcessTrace(
            key=ProcessKey(41, 22), name="app", pids=(41, 7), cgroup_pod_uid=UID, cgroup_container_id=CONTAINER
        )
    }


def test_a_process_that_has_ended_is_not_told_of(proc: Path) -> None:
    (proc / "41/stat").write_text(f"41 (app) {FIELDS.replace('R', 'Z')}")
    assert ProcProcesses(proc).trace([41], ()) == {}


def test_the_folder_that_is_mounted_names_the_container(proc: Path) -> None:
    mounted = f"23 22 8:1 /usr/local/vgpu/containers/{UID}_main /usr/local/vgpu rw - ext4 /dev/sda1 rw\n"
    (proc / "41/mountinfo").write_text(mounted)
    assert ProcProcesses(proc).trace([41], [FolderReading(owner=OWNER)])[41].folder == OWNER
