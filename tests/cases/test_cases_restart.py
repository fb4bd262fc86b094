"""Cases of restarts: what a new agent, a new kubelet or systemd leaves of running pods."""

from __future__ import annotations

import json
import mmap
from pathlib import Path

import pytest
from hami_node_agent.adapters.host_folder import HostFolder
from hami_node_agent.core.grant import HostLayout
from node_agent_world import REGISTER_KEY, World, container, new_world, slot, until


@pytest.mark.case("REG-09")
def test_a_new_library_leaves_the_one_that_running_processes_have_mapped(tmp_path: Path) -> None:
    source, folder = tmp_path / "libvgpu.so", tmp_path / "hook"
    layout = HostLayout(hook_path=str(folder), lock_dir=str(tmp_path / "lock"))
    source.write_bytes(b"old" * 4096)
    first = HostFolder(layout, "").install(str(source))
    installed = Path(layout.versioned_library(first))
    inode = installed.stat().st_ino
    with installed.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        HostFolder(layout, "").install(str(source))
        assert installed.stat().st_ino == inode, "unchanged content is not written again"
        source.write_bytes(b"new" * 4096)
        second = HostFolder(layout, "").install(str(source))
        assert second != first
        assert mapped[:] == b"old" * 4096
    assert installed.read_bytes() == b"old" * 4096


@pytest.mark.case("REG-09")
def test_also_under_one_version_the_old_content_stays_for_who_mapped_it(tmp_path: Path) -> None:
    source = tmp_path / "libvgpu.so"
    layout = HostLayout(hook_path=str(tmp_path / "hook"), lock_dir=str(tmp_path / "lock"))
    source.write_bytes(b"old" * 4096)
    HostFolder(layout, "v1").install(str(source))
    with (
        Path(layout.versioned_library("v1")).open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        source.write_bytes(b"new" * 4096)
        HostFolder(layout, "v1").install(str(source))
        assert mapped[:] == b"old" * 4096
    assert Path(layout.versioned_library("v1")).read_bytes() == b"new" * 4096


def _nvidia_specification(world: World) -> None:
    folder = world.root / "nvidia-cdi"
    folder.mkdir()
    devices = [
        {"name": str(number), "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{number}"}]}}
        for number in range(2)
    ]
    document = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}
    (folder / "nvidia.json").write_text(json.dumps(document))


@pytest.mark.case("REG-10")
async def test_cards_that_failed_while_kubelet_started_anew_are_offered_again_and_their_nodes_are_named() -> None:
    """`systemctl daemon-reload` takes device nodes from running containers that the runtime was not told of."""
    async with new_world() as world:
        _nvidia_specification(world)
        world.start_agent()
        async with world.kubelet(allocatable=20):
            world.bind_pod("p", slot((1, 3000, 0)), container(gpus=1))
            await world.runs("p")
            (written,) = (world.root / "cdi").glob("*.json")
            (device,) = json.loads(written.read_text())["devices"]
            assert [found["path"] for found in device["containerEdits"]["deviceNodes"]] == ["/dev/nvidia1"]
            world.sim_driver("lose", "0")
            await until(lambda: _healthy(world) == [False, True], "the card to be unhealthy")
        world.sim_driver("restore", "0")
        async with world.kubelet():
            await until(lambda: _healthy(world) == [True, True], "the card to be healthy")
            await world.allocatable(20)


def _healthy(world: World) -> list[bool]:
    return [card.get("health", False) for card in json.loads(world.annotation_of_node(REGISTER_KEY) or "[]")]
