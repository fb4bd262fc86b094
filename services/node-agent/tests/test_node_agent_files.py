"""Files of the host, and the command line."""
# ruff: noqa: ASYNC240  # what is looked at is small and local

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest
from hami_chassis.errors import Permanent
from hami_chassis.settings import SettingsError, load_settings
from hami_node_agent.adapters.configuration import nvidia_settings
from hami_node_agent.adapters.host_files import CdiFolder, CheckpointFile, HostFilesError, in_thread
from hami_node_agent.adapters.host_folder import HostFolder, LibraryMissingError
from hami_node_agent.config import NodeAgentSettings
from hami_node_agent.core.cdi_spec import OwnSpec
from hami_node_agent.core.grant import HostLayout
from hami_node_agent.core.handed_out import HandedOut, HandedPod
from hami_sim.manual_clock import ManualClock
from node_agent_world import SIMULATED_DRIVER, card_id


@pytest.fixture
def layout(tmp_path: Path) -> HostLayout:
    return HostLayout(hook_path=str(tmp_path / "hook"), lock_dir=str(tmp_path / "lock"))


def library(tmp_path: Path, content: bytes) -> str:
    path = tmp_path / "libvgpu.so"
    path.write_bytes(content)
    return str(path)


def slice_spec(content: bytes) -> OwnSpec:
    return OwnSpec(pod_uid="u1", name="a", content=content)


def test_another_library_comes_beside_the_one_that_runs(tmp_path: Path, layout: HostLayout) -> None:
    first = HostFolder(layout, "")
    version = first.install(library(tmp_path, b"one"))
    mounted = Path(first.state().library)
    with mounted.open("rb") as running:
        second = HostFolder(layout, "")
        assert second.install(library(tmp_path, b"two")) != version

        assert running.read() == b"one"
        assert mounted.read_bytes() == b"one"
        assert Path(second.state().library).read_bytes() == b"two"
    assert Path(layout.preload_list).read_text() == f"{layout.library}\n"


def test_the_same_library_is_left_alone(tmp_path: Path, layout: HostLayout) -> None:
    folder = HostFolder(layout, "7")
    folder.install(library(tmp_path, b"one"))
    before = Path(layout.versioned_library("7")).stat()

    folder.install(library(tmp_path, b"one"))

    assert Path(layout.versioned_library("7")).stat().st_ino == before.st_ino
    assert before.st_mode & 0o777 == 0o755


def test_without_a_library_there_is_no_start(layout: HostLayout) -> None:
    with pytest.raises(LibraryMissingError, match=r"files\.library_file"):
        HostFolder(layout, "").install("")


async def test_specifications_go_by_pod(tmp_path: Path) -> None:
    folder = CdiFolder(tmp_path, [tmp_path])
    for uid, name in (("u1", "a"), ("u1", "b"), ("u12", "c")):
        folder.write(OwnSpec(pod_uid=uid, name=name, content=b"{}"))
    (tmp_path / "nvidia.yaml").write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: [{name: '0'}]\n")
    (tmp_path / "broken.json").write_text("{")

    await folder.remove_pod("u1")

    assert await folder.owners() == {"u12"}
    assert [spec.kind for spec in folder.nvidia_specs()] == ["nvidia.com/gpu"]


def test_a_specification_that_says_the_same_stays(tmp_path: Path) -> None:
    folder, file = CdiFolder(tmp_path, []), tmp_path / "hami.io-slice_u1_a.json"
    inodes = []
    for content in (b"{}", b"{}", b"[]"):
        folder.write(slice_spec(content))
        assert file.read_bytes() == content
        inodes.append(file.stat().st_ino)
    assert (inodes[0] == inodes[1], inodes[1] == inodes[2]) == (True, False)


def test_what_is_no_specification_of_nvidia_s_keeps_none_from_being_read(tmp_path: Path) -> None:
    (tmp_path / "nvidia.yaml").write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: [{name: '0'}]\n")
    (tmp_path / "a-folder.json").mkdir()
    (tmp_path / "a-loop.json").symlink_to("a-loop.json")
    (tmp_path / "no-day.yaml").write_text("kind: 2001-02-30\n")
    (tmp_path / "deep.yaml").write_text("[" * 5000)
    (tmp_path / "no-text.yaml").write_bytes(b"\xff")
    assert [spec.kind for spec in CdiFolder(tmp_path, [tmp_path]).nvidia_specs()] == ["nvidia.com/gpu"]


async def test_two_agents_never_work_with_one_checkpoint(tmp_path: Path) -> None:
    clock, file = ManualClock(), tmp_path / "state" / "handed-out.json"
    async with AsyncExitStack() as first, AsyncExitStack() as second:
        await CheckpointFile(file).hold(first, clock)
        waiting = asyncio.ensure_future(CheckpointFile(file).hold(second, clock))
        await clock.wait_for_sleepers()
        await first.aclose()
        clock.advance(1)
        await waiting
        other = asyncio.ensure_future(CheckpointFile(file).hold(first, clock))
        await clock.wait_for_sleepers()
        clock.advance(60)
        with pytest.raises(Permanent, match="another node-agent works with this folder"):
            await other


async def test_a_checkpoint_that_cannot_be_read_is_kept_aside(tmp_path: Path) -> None:
    file = CheckpointFile(tmp_path / "handed-out.json")
    book = HandedOut({"u": HandedPod(namespace="n", name="p", allocation_id="a")})
    await file.write(book)
    assert dict(file.load().items()) == dict(book.items())

    (tmp_path / "handed-out.json").write_text("{")

    assert not file.load().uids()
    assert (tmp_path / "handed-out.json.unreadable").read_text() == "{"


def test_a_checkpoint_of_a_later_agent_is_neither_used_nor_moved(tmp_path: Path) -> None:
    later = '{"version": 7, "pods": {}}'
    file = tmp_path / "handed-out.json"
    file.write_text(later)

    with pytest.raises(Permanent, match=r"version 7.*later node-agent"):
        CheckpointFile(file).load()

    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"handed-out.json": later}


# ---- no room, and the end in the middle of a write ----------------------------------------------------------------


@contextmanager
def files_no_longer_than(size_bytes: int) -> Iterator[None]:
    """As on a disk without room, a write fails and the error names no file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_file_without_room_is_named_and_stays_as_it_was(tmp_path: Path) -> None:
    folder = CdiFolder(tmp_path, [])
    folder.write(slice_spec(b"before"))

    with (
        files_no_longer_than(1 << 20),
        pytest.raises(HostFilesError, match=r"hami\.io-slice_u1_a\.json: File too large"),
    ):
        await in_thread(lambda: folder.write(slice_spec(b"x" * (2 << 20))))

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"hami.io-slice_u1_a.json": b"before"}
    folder.write(slice_spec(b"after"))
    assert (tmp_path / "hami.io-slice_u1_a.json").read_bytes() == b"after"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
async def test_a_specification_that_cannot_be_opened_now_is_not_taken_for_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A container that starts meanwhile would be shown its cards another way than the node has."""
    (tmp_path / "nvidia.yaml").write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: [{name: '0'}]\n")
    folder = CdiFolder(tmp_path, [tmp_path])

    def no_room(path: Path) -> bytes:
        raise OSError(number, os.strerror(number), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", no_room)
        with pytest.raises(OSError, match=r"nvidia\.yaml"):
            folder.nvidia_specs()
    assert [spec.kind for spec in folder.nvidia_specs()] == ["nvidia.com/gpu"]


def test_what_an_agent_was_killed_in_goes_at_the_next_start(tmp_path: Path, layout: HostLayout) -> None:
    ours = [".hami.io-slice_u1_a.json.new", ".libvgpu.so.0123456789abcdef.new"]
    others = [".nvidia.yaml.new", "hami.io-slice_u1_a.json", "hami.io-slice_u1_b.json.new", "libvgpu.so.license"]
    folder = Path(layout.folder)
    for place in (tmp_path / "cdi", folder):
        place.mkdir(parents=True)
        for name in (*ours, *others):
            (place / name).write_bytes(b"half")

    CdiFolder(tmp_path / "cdi", []).prepare()
    HostFolder(layout, "").install(library(tmp_path, b"one"))

    assert not (tmp_path / "cdi" / ours[0]).exists()
    assert not (folder / ours[1]).exists()
    assert all((place / name).read_bytes() == b"half" for place in (tmp_path / "cdi", folder) for name in others)


# ---- the command line ----------------------------------------------------------------------------------------------


def command(*words: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    description = tmp_path / "driver.json"
    description.write_text(json.dumps({"cards": [{"uuid": card_id(0), "name": "Tesla T4", "memory_mib": 15360}]}))
    return subprocess.run(
        [sys.executable, "-m", "hami_node_agent.main", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HAMI_SIM_DRIVER": str(description), **environment},
    )


def test_inventory_prints_what_would_be_registered(tmp_path: Path) -> None:
    library_file = f"nvml.library_file={SIMULATED_DRIVER}/libnvidia-ml.so.1"

    done = command("inventory", "--set", library_file, tmp_path=tmp_path)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        {
            "id": card_id(0), "count": 10, "devmem": 15360, "devcore": 100, "type": "NVIDIA-Tesla T4",
            "mode": "hami-core", "health": True,
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        pytest.param(["serve"], "node.name must be set", id="no name"),
        pytest.param(["serve", "--set", "files.hook_path=relative"], "no absolute path", id="a relative path"),
        pytest.param(["serve", "--set", "handoff.mode=guess"], "handoff.mode", id="an unknown hand-off"),
        pytest.param(
            ["serve", "--set", "plugin.device_list_strategy=cdi"], "there is no such setting", id="an unknown setting"
        ),
        pytest.param(["inventory", "--set", "nvml.library_file=/nowhere.so"], "nvml.library_file", id="no driver"),
    ],
)
def test_wrong_use_is_refused_in_one_line(tmp_path: Path, words: list[str], reason: str) -> None:
    done = command(*words, tmp_path=tmp_path)

    assert done.returncode == 2
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("files.hook_path=/opt/my path", "files.hook_path"),
        ("files.hook_path=/opt/a:b", "files.hook_path"),
        ("files.library_version=../../x", "files.library_version"),
        ("health.probe_seconds=nan", "health.probe_seconds"),
        ("node.heartbeat_seconds=inf", "node.heartbeat_seconds"),
    ],
)
def test_a_setting_by_which_nothing_would_be_held_is_named(setting: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        load_settings(NodeAgentSettings, sets=[setting], environment={})


@pytest.mark.parametrize("name", ["", "gpu", "nvidia.com/", "nvidia.com/a b", "../x"])
def test_a_resource_that_kubelet_cannot_offer_is_named(tmp_path: Path, name: str) -> None:
    file = tmp_path / "device-config.yaml"
    file.write_text(f"nvidia: {{resourceCountName: '{name}'}}\n")
    settings = load_settings(NodeAgentSettings, sets=[f"node.device_config_file={file}"], environment={})
    with pytest.raises(Permanent, match="resourceCountName"):
        nvidia_settings(settings)
