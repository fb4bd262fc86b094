"""Our monitor's process over region files of HAMi's libraries: what it tells of them, and what it writes back.

The files are recordings of every layout. Nobody lives in them: a launch is what the library would write.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
import their_monitor
from hami_sim.fake_kube import FakeKube
from hami_sim.loopback_ports import choose_free_ports
from prometheus_client.parser import text_string_to_metric_families
from region_store import content
from test_stand_ins import LAYOUTS
from their_agent import ALLOCATED, NODE
from vectors import rows

BUILD = Path(__file__).parents[2] / "libvgpu/build"
VECTORS = Path(__file__).parents[1] / "data/vectors"
NODE_NAME = "sim-0"
PERIOD_SECONDS = 0.1
UINT64 = 2**64
CARD = "GPU-11111111-2222-3333-4444-000000000000"

Json = dict[str, Any]
Values = Mapping[tuple[str, ...], float]


class Words(NamedTuple):
    """Where a layout has what the monitor writes and is told."""

    recent: int
    switch: int
    priority: int
    uuids: int
    device_count: int


WORDS = {
    "v0": Words(1197888, 1197884, 1197892, 56, 48),
    "v1.1": Words(2008904, 2008900, 2008908, 64, 56),
    "v1.1-bis": Words(2008936, 2008932, 2008940, 96, 88),
    "v1.2": Words(2008904, 2008900, 2008908, 64, 56),
}


def written_of(row: Json) -> Json:
    """What was written into the file, however HAMi's monitor reads it."""
    found: Json = row.get("intended") or row["expect"].get("read") or {"devices": []}
    return found


def recorded() -> dict[str, Json]:
    """One recording of each layout in which a process holds memory of one named card or more."""
    found: dict[str, Json] = {}
    for row in rows(VECTORS / "node-region"):
        layout = row["layout"]
        devices = [each for each in written_of(row)["devices"] if each["uuid_valid"]]
        if layout in WORDS and devices and 0 < devices[0]["total"] < UINT64 // 2:
            found.setdefault(layout, row)
    return found


RECORDED = recorded()


class Node:
    """The folder of the containers, and their pods."""

    def __init__(self, root: Path, kube: FakeKube) -> None:
        self.root = root
        self.hook_path = root / "hook"
        self.kube = kube
        card = {"uuid": CARD, "name": "NVIDIA A100-SXM4-40GB", "memory_mib": 40960, "pci_bus_id": "00000000:01:00.0"}
        (root / "driver.json").write_text(json.dumps({"cards": [card]}))
        self.environment = {
            "PATH": os.environ["PATH"],
            "HAMI_SIM_DRIVER": str(root / "driver.json"),
            "HAMI_SIM_STATE": str(root / "state"),
        }

    def put(self, pod: str, data: bytes, card: str = CARD) -> Path:
        """A running pod with a region file. Returns the file."""
        self.kube.put(
            "pods",
            {
                "metadata": {
                    "name": pod,
                    "namespace": "team",
                    "uid": f"uid-{pod}",
                    "labels": {NODE: NODE_NAME},
                    "annotations": {ALLOCATED: f"{card},NVIDIA,1000,30:;"},
                },
                "spec": {"nodeName": NODE_NAME, "containers": [{"name": "main"}]},
                "status": {"phase": "Running"},
            },
        )
        folder = self.hook_path / f"vgpu/containers/uid-{pod}_main"
        folder.mkdir(parents=True)
        (folder / "libvgpu.so").touch()
        file = folder / "5f9a.cache"
        file.write_bytes(data)
        return file


class File:
    """One region file as its library sees it."""

    def __init__(self, path: Path, layout: str) -> None:
        self._path = path
        self._words = WORDS[layout]

    def _word(self, offset: int) -> int:
        with self._path.open("rb") as file:
            return int(struct.unpack("<i", os.pread(file.fileno(), 4, offset))[0])

    @property
    def recent(self) -> int:
        return self._word(self._words.recent)

    @property
    def switch(self) -> int:
        return self._word(self._words.switch)

    def launch(self) -> None:
        """Refreshed at a launch, unless the container is blocked: then it waits before it launches."""
        if self.recent >= 0:
            with self._path.open("r+b") as file:
                os.pwrite(file.fileno(), struct.pack("<i", 2), self._words.recent)


def idle_region(layout: str, priority: int) -> bytes:
    """A region of a container that has started CUDA on the one card and holds nothing."""
    size, _ = LAYOUTS[layout]
    words = WORDS[layout]
    data = bytearray(size)
    version = (1, 2) if layout == "v1.2" else (1, 1)
    struct.pack_into("<i", data, 0, their_monitor.MAGIC)
    if layout.startswith("v1"):
        struct.pack_into("<II", data, 4, *version)
    struct.pack_into("<Q", data, words.device_count, 1)
    struct.pack_into("96s", data, words.uuids, CARD.encode())
    for offset, value in ((words.recent, 2), (words.switch, 1), (words.priority, priority)):
        struct.pack_into("<i", data, offset, value)
    return bytes(data)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    fake = FakeKube()
    await fake.start()
    yield Node(tmp_path, fake)
    await fake.stop()


class Monitor:
    """The running service, seen from outside."""

    def __init__(self, url: str, client: aiohttp.ClientSession) -> None:
        self._url = url
        self._client = client

    async def is_ready(self) -> bool:
        try:
            async with self._client.get(f"{self._url}/readyz") as response:
                return response.status == 200
        except aiohttp.ClientConnectionError:
            return False

    async def series(self) -> Values:
        """Values by name, pod and the number of the card in the region."""
        async with self._client.get(f"{self._url}/metrics") as response:
            text = await response.text()
        return {
            (
                one.name,
                *(one.labels[label] for label in ("pod", "vdevice_index", "state") if label in one.labels),
            ): one.value
            for family in text_string_to_metric_families(text)
            for one in family.samples
        }


@asynccontextmanager
async def monitor_of(node: Node) -> AsyncIterator[Monitor]:
    (port,) = choose_free_ports(1)
    settings = {
        "node": {
            "name": NODE_NAME,
            "hook_path": str(node.hook_path),
            "driver_library_folder": str(BUILD / "sim"),
        },
        "sampling": {"period_seconds": PERIOD_SECONDS},
        "feedback": {"period_seconds": PERIOD_SECONDS, "hold_ticks": 0},
        "metrics": {"hami_names": True},
        "observation": {"port": port},
        "kube": {"kubeconfig": node.kube.url},
        "bus": {"servers": []},
    }
    file = node.root / "monitor.json"
    file.write_text(json.dumps(settings))
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("hami-monitor")), "serve", "--config", str(file), env=node.environment
    )
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(aiohttp.ClientSession())
        found = Monitor(f"http://127.0.0.1:{port}", client)
        try:
            await until(found.is_ready)
            yield found
        finally:
            process.terminate()
            assert await process.wait() == 0


async def until(holds: Callable[[], Any]) -> None:
    """Returns once it holds; the time limit is that of the test."""
    while True:
        found = holds()
        if await found if asyncio.iscoroutine(found) else found:
            return
        await asyncio.sleep(PERIOD_SECONDS / 5)


def test_there_is_a_recording_of_every_layout() -> None:
    assert RECORDED.keys() == WORDS.keys()


async def test_the_oldest_layout_is_called_unreadable_as_by_hami_s_monitor(node: Node) -> None:
    """It says neither version nor a size that HAMi's monitor takes."""
    row = next(row for row in rows(VECTORS / "node-region") if row["layout"] == "v0a")
    assert "error" in row["expect"]
    node.put("early", content(str(VECTORS), row["id"]))
    async with monitor_of(node) as monitor:

        async def said() -> bool:
            return (await monitor.series()).get(("hami_monitor_folders", "unreadable")) == 1

        await until(said)


async def test_every_layout_is_told_under_hami_s_names(node: Node) -> None:
    expected: dict[tuple[str, ...], float] = {}
    for layout, row in RECORDED.items():
        pod = layout.replace(".", "-")
        node.put(pod, content(str(VECTORS), row["id"]))
        written = written_of(row)
        for device in written["devices"][: written.get("device_num", 16)]:
            if device["uuid_valid"]:
                key = (pod, str(device["index"]))
                expected[("hami_vgpu_memory_used_bytes", *key)] = float(device["total"])
                expected[("hami_vgpu_memory_limit_bytes", *key)] = float(device["limit"])
                expected[("hami_container_device_utilization_ratio", *key)] = float(device["sm_util"])
    async with monitor_of(node) as monitor:

        async def all_told() -> bool:
            found = await monitor.series()
            return {key: found.get(key) for key in expected} == expected

        await until(all_told)


@pytest.mark.parametrize("layout", WORDS)
async def test_containers_of_hami_s_library_wait_for_more_urgent_ones(node: Node, layout: str) -> None:
    urgent = File(node.put("urgent", idle_region(layout, 0)), layout)
    patient = File(node.put("patient", idle_region(layout, 1)), layout)
    async with monitor_of(node):

        def blocked() -> bool:
            urgent.launch()
            patient.launch()
            return (patient.recent, patient.switch, urgent.switch) == (-1, 1, 0)

        await until(blocked)
        # The urgent one says nothing any more.
        await until(lambda: patient.recent >= 0)
        await until(lambda: patient.switch == 0)

        def contended_no_more() -> bool:
            patient.launch()
            return (patient.recent >= 0, patient.switch, urgent.recent) == (True, 0, 0)

        await until(contended_no_more)


async def test_a_container_of_hami_s_library_and_one_of_ours_wait_for_each_other(node: Node) -> None:
    """Ours is of layout 1.3: 1.2, and more behind it."""
    theirs = File(node.put("theirs", idle_region("v1.1", 0)), "v1.1")
    ours_data = bytearray(2044864)
    ours_data[:2008952] = idle_region("v1.2", 1)[:2008952]
    struct.pack_into("<I", ours_data, 8, 3)
    struct.pack_into("<8sQ", ours_data, 2008960, b"VGPUEXT1", 2044864 - 2008960)
    ours = File(node.put("ours", bytes(ours_data)), "v1.2")
    async with monitor_of(node):

        def blocked() -> bool:
            theirs.launch()
            ours.launch()
            return (ours.recent, theirs.recent >= 0) == (-1, True)

        await until(blocked)
    # The monitor is gone: nobody waits for it.
    assert ours.recent >= 0
