"""Whose process: what /proc says, as text and for real."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest
from hami_monitor.adapters.proc import ProcProcesses
from hami_monitor.adapters.region_files import RegionFiles
from hami_monitor.core.container_folder import FolderOwner
from hami_monitor.core.process_trace import RegionFileId, owner_by_maps, pod_by_cgroup, start_time
from hypothesis import given
from hypothesis import strategies as st
from monitor_builders import region_bytes

UID = "9e859505-1510-4d39-8f63-391beb537291"
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


def test_the_start_time_behind_any_name() -> None:
    fields = " ".join(str(number) for number in range(3, 53))
    assert start_time(f"12 (a) b (c) {fields}\n") == "22"
    assert start_time("") is None


@given(st.text(), st.lists(st.text()))
def test_no_text_is_an_error(text: str, lines: list[str]) -> None:
    pod_by_cgroup(text)
    start_time(text)
    owner_by_maps(lines, FILES)


def test_a_process_that_maps_a_region_belongs_to_its_container(tmp_path: Path) -> None:
    folder = tmp_path / f"{UID}_main"
    folder.mkdir()
    (folder / "a.cache").write_bytes(region_bytes())
    folders = RegionFiles(tmp_path).scan()
    processes = ProcProcesses()
    assert processes.owners([os.getpid()], folders).get(os.getpid()) != OWNER
    with (folder / "a.cache").open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert processes.owners([os.getpid()], folders) == {os.getpid(): OWNER}
    assert processes.owners([os.getpid()], folders) == {os.getpid(): OWNER}, "a process keeps its container"


def test_a_process_that_is_gone_belongs_to_nobody() -> None:
    assert ProcProcesses().owners([2**22 + 1], ()) == {}


def test_the_control_group_names_the_pod_where_nothing_is_mapped(tmp_path: Path) -> None:
    process = tmp_path / "41"
    process.mkdir()
    (process / "stat").write_text("41 (app) " + " ".join(str(number) for number in range(3, 53)))
    (process / "cgroup").write_text(f"0::/kubepods/burstable/pod{UID}/0123abc\n")
    assert ProcProcesses(tmp_path).owners([41], ()) == {41: FolderOwner(pod_uid=UID, container="")}
