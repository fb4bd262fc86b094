"""CDI specifications of whole cards, from a driver's folder."""

from __future__ import annotations

import asyncio
import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hami_model.cards import Card
from hami_model.ids import CardId
from hami_node_agent.adapters.driver_files import CardSpecs, FoldersBelow, find_driver_files
from hami_node_agent.core.device_lists import DeviceRules, VisibleDevice
from hami_node_agent.core.driver_spec import DriverFiles, DriverFilesMissingError, HostRoots
from hami_node_agent.core.inventory import Inventory, OfferedCard
from hami_node_agent.core.machine_devices import MachineDevices
from hami_sim.manual_clock import ManualClock
from node_agent_world import until

SCHEMA = json.loads((Path(__file__).parents[3] / "tests" / "data" / "cdi" / "schema.json").read_text())
VERSION = "550.54.14"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
CARDS = (
    VisibleDevice(uuid="GPU-a", index="0", nodes=("/dev/nvidia3",)),
    VisibleDevice(uuid="GPU-b", index="1", nodes=("/dev/nvidia4",)),
)
CARD = Card(
    id=CardId("GPU-a"),
    index=0,
    slots=1,
    memory_mib=1024,
    cores_percent=100,
    model="NVIDIA-A",
    numa=0,
    mode="hami-core",
    healthy=True,
)
CHANNEL = "/dev/nvidia-caps-imex-channels/channel0"
OPERATOR = HostRoots(driver="/run/nvidia/driver", devices="/run/nvidia/driver", hook_file="/opt/nvidia-cdi-hook")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A driver's folder as GPU Operator mounts it."""
    files = [
        f"{LIBRARIES}/libcuda.so.{VERSION}", f"{LIBRARIES}/libcuda.so.1", f"{LIBRARIES}/libnvidia-ml.so.{VERSION}",
        f"{LIBRARIES}/libother.so.1.2.3", f"{LIBRARIES}/vdpau/libvdpau_nvidia.so.{VERSION}", "usr/bin/nvidia-smi",
        "run/nvidia-persistenced/socket", f"lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin", "etc/cufile.json",
    ]  # fmt: skip
    for file in files:
        (tmp_path / "root" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / file).touch()
    return tmp_path / "root"


def finding(root: Path) -> Callable[[], DriverFiles]:
    return functools.partial(find_driver_files, FoldersBelow(str(root)), str(root))


def written(root: Path, rules: DeviceRules, machine: MachineDevices, roots: HostRoots = OPERATOR) -> dict[str, Any]:
    """Documents by the file's name, each held against the public schema."""
    folder = root.parent / "cdi"
    folder.mkdir(exist_ok=True)
    CardSpecs(folder, rules, machine, finding(root), roots=roots).write(CARDS)
    found = {path.name: json.loads(path.read_text()) for path in sorted(folder.iterdir())}
    for document in found.values():
        jsonschema.validate(document, SCHEMA)
    return found


async def test_a_specification_that_could_not_be_written_is_written_once_there_is_room(root: Path) -> None:
    """Nothing about the cards changes meanwhile."""
    folder, clock = root.parent / "cdi", ManualClock()
    specs = CardSpecs(folder, DeviceRules(strategies=("cdi-cri",)), MachineDevices(), finding(root), roots=OPERATOR)
    running = asyncio.create_task(specs.run(clock))
    folder.write_text("in its place")

    specs.changed(Inventory(offered=(OfferedCard(card=CARD, minor=3, numa_node=None, kubelet_ids=1),)), ())
    await clock.wait_for_sleepers()
    clock.advance(60)
    await clock.wait_for_sleepers()
    assert folder.is_file()
    folder.unlink()
    clock.advance(60)

    (found,) = await until(lambda: [*folder.iterdir()], "the specification")
    assert [device["name"] for device in json.loads(found.read_text())["devices"]] == ["GPU-a"]
    await clock.wait_for_sleepers()
    shutil.rmtree(folder)
    clock.advance(60)
    await until(found.is_file, "the specification that somebody removed")
    running.cancel()


async def test_a_driver_of_another_version_is_written_into_the_specification(root: Path) -> None:
    """While it is being replaced there is none, and what was written stays."""
    folder, clock, libraries = root.parent / "cdi", ManualClock(), root / LIBRARIES
    specs = CardSpecs(folder, DeviceRules(strategies=("cdi-cri",)), MachineDevices(), finding(root), roots=OPERATOR)
    specs.changed(Inventory(offered=(OfferedCard(card=CARD, minor=3, numa_node=None, kubelet_ids=1),)), ())
    (found,) = folder.iterdir()
    before = found.read_text()
    assert f"libcuda.so.{VERSION}" in before
    running = asyncio.create_task(specs.run(clock))
    await clock.wait_for_sleepers()

    for name in ("libcuda.so", "libnvidia-ml.so"):
        (libraries / f"{name}.{VERSION}").rename(libraries / f"aside-{name}")
    clock.advance(60)
    await clock.wait_for_sleepers()
    assert found.read_text() == before
    for name in ("libcuda.so", "libnvidia-ml.so"):
        (libraries / f"aside-{name}").rename(libraries / f"{name}.580.1.2")
    clock.advance(60)
    after = await until(lambda: (text := found.read_text()) != before and text, "the specification of the new driver")

    mounts = [mount["hostPath"] for mount in json.loads(after)["containerEdits"]["mounts"]]
    assert f"/run/nvidia/driver/{LIBRARIES}/libcuda.so.580.1.2" in mounts
    assert not [path for path in mounts if f".so.{VERSION}" in path]
    running.cancel()


def test_cards_have_their_nodes_and_all_the_driver_s_files_at_the_host_s_paths(root: Path) -> None:
    rules = DeviceRules(strategies=("cdi-cri",), control_nodes=("/dev/nvidiactl",))

    found = written(root, rules, MachineDevices())

    assert list(found) == ["k8s.device-plugin.nvidia.com-gpu.json"]
    document = found["k8s.device-plugin.nvidia.com-gpu.json"]
    assert document["kind"] == "k8s.device-plugin.nvidia.com/gpu"
    assert document["devices"][1] == {
        "name": "GPU-b",
        "containerEdits": {
            "deviceNodes": [{"path": "/dev/nvidia4", "hostPath": "/run/nvidia/driver/dev/nvidia4"}],
        },
    }
    general = document["containerEdits"]
    assert general["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert general["deviceNodes"] == [{"path": "/dev/nvidiactl", "hostPath": "/run/nvidia/driver/dev/nvidiactl"}]
    mounts = {mount["containerPath"]: mount["hostPath"] for mount in general["mounts"]}
    inside = [
        f"/{LIBRARIES}/libcuda.so.{VERSION}", f"/{LIBRARIES}/libnvidia-ml.so.{VERSION}",
        f"/{LIBRARIES}/vdpau/libvdpau_nvidia.so.{VERSION}", "/usr/bin/nvidia-smi",
        f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin", "/run/nvidia-persistenced/socket",
    ]  # fmt: skip
    assert mounts == {path: f"/run/nvidia/driver{path}" for path in inside}
    assert [hook["args"] for hook in general["hooks"]] == [
        ["nvidia-cdi-hook", "create-symlinks", "--link", f"libcuda.so.1::/{LIBRARIES}/libcuda.so"],
        ["nvidia-cdi-hook", "update-ldcache", "--folder", f"/{LIBRARIES}", "--folder", f"/{LIBRARIES}/vdpau"],
    ]


def test_on_a_plain_host_paths_are_the_same_and_nvidia_ctk_has_a_word_more(root: Path) -> None:
    found = written(root, DeviceRules(strategies=("cdi-cri",), id_strategy="index"), MachineDevices(), HostRoots())

    document = found["k8s.device-plugin.nvidia.com-gpu.json"]
    assert [device["name"] for device in document["devices"]] == ["0", "1"]
    assert document["devices"][0]["containerEdits"] == {"deviceNodes": [{"path": "/dev/nvidia3"}]}
    assert document["containerEdits"]["hooks"][0]["args"][:3] == ["nvidia-ctk", "hook", "create-symlinks"]


def test_what_there_is_besides_cards_has_a_class_of_its_own(root: Path) -> None:
    rules = DeviceRules(
        strategies=("cdi-annotations",),
        features=("gdrcopy", "gds", "mofed"),
        features_found=frozenset({"gds", "mofed"}),
        imex_channels=(0,),
    )
    machine = MachineDevices(
        nodes=frozenset({CHANNEL, "/dev/nvidia-fs0", "/dev/infiniband/uverbs1", "/dev/infiniband/rdma_cm"}),
        files=frozenset({"/etc/cufile.json"}),
    )

    found = written(root, rules, machine, HostRoots(hook_file=""))

    edits = {name.removeprefix("k8s.device-plugin.nvidia.com-"): found[name]["devices"] for name in found}
    assert edits["imex-channel.json"] == [{"name": "0", "containerEdits": {"deviceNodes": [{"path": CHANNEL}]}}]
    assert [node["path"] for node in edits["mofed.json"][0]["containerEdits"]["deviceNodes"]] == [
        "/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs1",
    ]  # fmt: skip
    assert edits["gds.json"][0]["name"] == "all"
    assert [mount["containerPath"] for mount in edits["gds.json"][0]["containerEdits"]["mounts"]] == [
        "/etc/cufile.json"
    ]
    assert set(edits) == {"gpu.json", "imex-channel.json", "gds.json", "mofed.json"}
    assert "hooks" not in found["k8s.device-plugin.nvidia.com-gpu.json"]["containerEdits"]


def test_without_the_driver_s_library_it_is_said_where_to_look(tmp_path: Path) -> None:
    with pytest.raises(DriverFilesMissingError, match=r"nvml.driver_root"):
        find_driver_files(FoldersBelow(str(tmp_path)), str(tmp_path))
