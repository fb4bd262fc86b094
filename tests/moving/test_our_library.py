"""HAMi's monitor over our library: real processes over the simulated driver, read and blocked by HAMi's rules."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import their_monitor
from their_monitor import Region

BUILD = Path(__file__).parents[2] / "libvgpu/build"
CARD = "GPU-11111111-2222-3333-4444-000000000000"
OTHER = "GPU-11111111-2222-3333-4444-000000000001"
MIB = 1 << 20
TICKS = 50
POLL_SECONDS = 0.05


class Node:
    """Containers as processes, each with the folder and the environment that a node agent gives it."""

    def __init__(self, root: Path) -> None:
        self.containers = root / "hook/vgpu/containers"
        self.containers.mkdir(parents=True)
        cards = [
            {"uuid": uuid, "name": "A100", "memory_mib": 40960, "pci_bus_id": f"00000000:0{number}:00.0"}
            for number, uuid in enumerate((CARD, OTHER), start=1)
        ]
        (root / "driver.json").write_text(json.dumps({"cards": cards}))
        self._environment = {
            "PATH": os.environ["PATH"],
            "HAMI_SIM_DRIVER": str(root / "driver.json"),
            "HAMI_SIM_STATE": str(root / "state"),
            "LD_LIBRARY_PATH": str(BUILD / "sim"),
            "LD_PRELOAD": str(BUILD / "lib/libvgpu.so"),
        }
        self.processes: list[subprocess.Popen[str]] = []

    def run(self, pod: str, *command: str, card: int = 0, priority: int = 1, cores: int = 50) -> subprocess.Popen[str]:
        """Starts a process in the container. The library's mount leaves an empty file beside the region."""
        folder = self.containers / f"{pod}-0000_main"
        if not folder.exists():
            folder.mkdir()
            (folder / "libvgpu.so").touch()
        process = subprocess.Popen(
            [BUILD / "bin/vgpu-workload", *command],
            env={
                **self._environment,
                "HAMI_SIM_VISIBLE_DEVICES": str(card),
                "CUDA_DEVICE_MEMORY_LIMIT_0": "4000m",
                "CUDA_DEVICE_SM_LIMIT": str(cores),
                "CUDA_TASK_PRIORITY": str(priority),
                "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(folder / "d2c7.cache"),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    async def region(self, pod: str) -> Region:
        """As HAMi's monitor finds and maps it, once its cards are named."""
        folder = self.containers / f"{pod}-0000_main"
        while True:
            file = their_monitor.file_of(folder)
            if file is not None and file.stat().st_size >= their_monitor.V1_SIZE:
                try:
                    found = Region.map(file)
                except their_monitor.NotLoadedError:  # the magic number is written last
                    found = None
                if found is not None and found.uuids:
                    return found
            await asyncio.sleep(POLL_SECONDS)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    found = Node(tmp_path)
    yield found
    found.end()


async def until_tick(regions: list[Region], holds: Callable[[], bool]) -> None:
    """Ticks until it holds; between two of them everybody has time to launch."""
    while True:
        their_monitor.tick(regions)
        if holds():
            return
        await asyncio.sleep(POLL_SECONDS)


async def until(holds: Callable[[], bool]) -> None:
    """Returns once it holds; the time limit is that of the test."""
    while True:
        if holds():
            return
        await asyncio.sleep(POLL_SECONDS / 10)


async def launched(region: Region) -> None:
    """Returns once the container launched a kernel after the last tick."""
    await until(lambda: region.recent == 2)


async def test_sums_limits_and_labels_are_there(node: Node) -> None:
    node.run("a", "alloc", "--mib", "1500", "--hold-until-signal")
    node.run("a", "alloc", "--mib", "700", "--hold-until-signal")
    region = await node.region("a")
    await until(lambda: region.used(0)["buffer"] == 2200 * MIB)
    used = region.used(0)
    assert used["total"] == used["context"] + used["module"] + used["buffer"] + used["offset"]
    assert (region.layout.parser, region.device_count, region.limit(0)) == ("v1", 1, 4000 * MIB)
    assert [uuid.rstrip(b"\0").decode() for uuid in region.uuids] == [CARD]
    assert (region.priority, region.switch, region.last_kernel > 0) == (1, 1, True)


async def test_a_container_waits_while_one_of_higher_priority_works_and_goes_on_after(node: Node) -> None:
    urgent = node.run("urgent", "launch", "--seconds", "3600", priority=0)
    node.run("patient", "launch", "--seconds", "3600", priority=1)
    regions = [await node.region("urgent"), await node.region("patient")]
    high, low = regions
    await launched(low)
    await launched(high)
    await until_tick(regions, lambda: low.recent == -1)
    assert (high.switch, low.switch) == (0, 1)

    # It stays blocked, and while it is, it launches nothing, which would show as a 2.
    for _ in range(TICKS):
        await launched(high)
        their_monitor.tick(regions)
        assert low.recent == -1

    urgent.kill()
    urgent.wait()
    await until_tick(regions, lambda: low.recent >= 0)
    await launched(low)


async def test_containers_of_one_priority_on_one_card_are_limited_and_one_alone_is_not(node: Node) -> None:
    first = node.run("first", "launch", "--seconds", "3600")
    node.run("second", "launch", "--seconds", "3600")
    regions = [await node.region("first"), await node.region("second")]
    for region in regions:
        await launched(region)
    await until_tick(regions, lambda: [region.switch for region in regions] == [1, 1])
    # With its switch at 0 or at 1: our library says every launch, so a neighbour that comes later is seen.
    first.kill()
    first.wait()
    await until_tick(regions, lambda: regions[1].switch == 0)
    node.run("first", "launch", "--seconds", "3600")
    await until_tick(regions, lambda: [region.switch for region in regions] == [1, 1])


async def test_on_another_card_nobody_is_blocked(node: Node) -> None:
    node.run("urgent", "launch", "--seconds", "3600", priority=0)
    node.run("patient", "launch", "--seconds", "3600", priority=1, card=1)
    regions = [await node.region("urgent"), await node.region("patient")]
    for _ in range(TICKS // 5):
        for region in regions:
            await launched(region)
        their_monitor.tick(regions)
        assert all(region.recent >= 0 for region in regions)
        assert [region.switch for region in regions] == [0, 0]


async def test_the_files_beside_the_region_do_not_disturb_it(node: Node) -> None:
    """HAMi's monitor refuses a folder with more than two files of these names."""
    node.run("a", "alloc", "--mib", "10", "--hold-until-signal")
    await node.region("a")
    folder = node.containers / "a-0000_main"
    counted = [path.name for path in folder.iterdir() if "libvgpu.so" in path.name or path.name.endswith(".cache")]
    assert sorted(counted) == ["d2c7.cache", "libvgpu.so"]
