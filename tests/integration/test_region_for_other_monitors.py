"""A region file of version 1.3, made by the real library, is all that a monitor of layout 1.2 asks for.

HAMi's monitors map the file and read fixed offsets. What they require, and what they add up, is written down here from
outside of our own reader: offsets in bytes, little-endian.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hami_monitor.core.region import Region, read_region
from hami_monitor.core.region_layouts import EXTENSION_MAGIC, V1

BUILD = Path(__file__).parents[2] / "libvgpu/build"
CARDS = ("GPU-11111111-2222-3333-4444-000000000000", "GPU-11111111-2222-3333-4444-000000000001")
MIB = 1 << 20

SIZE = 2008952
"""The least that is taken for this layout; libraries of it leave one zero byte more."""
EXTENSION = 2008960
LABEL_BYTES = 40
DEVICE_COUNT, UUIDS, LIMITS, CORE_LIMITS = 56, 64, 1600, 1728
SLOTS, SLOT_BYTES, SLOT_MAX = 1856, 1960, 1024
STATUS, USED, USED_BYTES = 1928, 8, 64
COUNT, SWITCH, RECENT, PRIORITY, LAST_KERNEL = 2008896, 2008900, 2008904, 2008908, 2008912


class View:
    """The file as those monitors see it."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()

    def int32(self, offset: int) -> int:
        (value,) = struct.unpack_from("<i", self.data, offset)
        return int(value)

    def uint64(self, offset: int) -> int:
        (value,) = struct.unpack_from("<Q", self.data, offset)
        return int(value)

    @property
    def slots_in_use(self) -> range:
        return range(min(max(self.int32(COUNT), 0), SLOT_MAX))

    def slot(self, index: int) -> bytes:
        return self.data[SLOTS + index * SLOT_BYTES : SLOTS + (index + 1) * SLOT_BYTES]

    def used(self, card: int, *, of_dead_too: bool) -> dict[str, int]:
        """Newer monitors skip slots of status 0; older ones add up all below the count."""
        fields = ("context", "module", "data", "offset", "total")
        sums = dict.fromkeys(fields, 0)
        for index in self.slots_in_use:
            slot = SLOTS + index * SLOT_BYTES
            if of_dead_too or self.int32(slot + STATUS) != 0:
                for number, field in enumerate(fields):
                    sums[field] += self.uint64(slot + USED + card * USED_BYTES + 8 * number)
        return sums

    def labels(self) -> list[str]:
        """Of the named cards, from the first 40 bytes of their 96."""
        names = [self.data[UUIDS + 96 * card :][:LABEL_BYTES] for card in range(16)]
        return [name.decode() for name in names if name[0] != 0]


class Container:
    """Processes under the library, over two simulated cards."""

    def __init__(self, root: Path) -> None:
        self.region = root / "8a1e.cache"
        cards = [
            {"uuid": card, "name": "A100", "memory_mib": 40960, "context_mib": 300, "pci_bus_id": f"00000000:0{n}:00.0"}
            for n, card in enumerate(CARDS, start=1)
        ]
        (root / "driver.json").write_text(json.dumps({"cards": cards}))
        self._environment = {
            "PATH": os.environ["PATH"],
            "HAMI_SIM_DRIVER": str(root / "driver.json"),
            "HAMI_SIM_STATE": str(root / "state"),
            "LD_LIBRARY_PATH": str(BUILD / "sim"),
        }
        self._limits = {
            "LD_PRELOAD": str(BUILD / "lib/libvgpu.so"),
            "CUDA_DEVICE_MEMORY_LIMIT_0": "4000m",
            "CUDA_DEVICE_MEMORY_LIMIT_1": "2000m",
            "CUDA_DEVICE_SM_LIMIT": "30",
            "CUDA_TASK_PRIORITY": "0",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(self.region),
        }
        self.processes: list[subprocess.Popen[str]] = []

    def hold(self, mib: int) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [BUILD / "bin/vgpu-workload", "alloc", "--mib", str(mib), "--hold-until-signal"],
            env=self._environment | self._limits,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline(), "the workload ended without a word"
        return process

    def look(self) -> View:
        return View(self.region)

    def booked(self) -> int:
        """Bytes on the first card by the driver's own books."""
        shown = subprocess.run(
            [BUILD / "bin/sim-driver", "books"], env=self._environment, check=True, capture_output=True, text=True
        )
        found: dict[str, Any] = json.loads(shown.stdout)
        return int(found["cards"][0]["used_bytes"])


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    found = Container(tmp_path)
    yield found
    for process in found.processes:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def read(data: bytes) -> Region:
    return read_region(len(data), lambda offset, length: data[offset : offset + length])


def test_the_file_is_taken_for_layout_1_2(container: Container) -> None:
    began = int(time.time())
    container.hold(100)
    view = container.look()
    assert struct.unpack_from("<iII", view.data) == (19920718, 1, 3)
    assert len(view.data) >= SIZE + 1
    assert view.data[SIZE] == 0
    assert view.data[EXTENSION:].startswith(EXTENSION_MAGIC)
    assert (view.uint64(DEVICE_COUNT), view.labels()) == (2, list(CARDS))
    assert [view.uint64(LIMITS + 8 * card) for card in range(3)] == [4000 * MIB, 2000 * MIB, 0]
    assert [view.uint64(CORE_LIMITS + 8 * card) for card in range(2)] == [30, 30]
    assert (view.int32(SWITCH), view.int32(PRIORITY)) == (1, 0)
    assert view.int32(RECENT) >= 0
    assert began <= view.uint64(LAST_KERNEL) <= time.time() + 1


def test_what_it_adds_up_is_what_the_driver_booked(container: Container) -> None:
    first, second = container.hold(1500), container.hold(700)
    view = container.look()
    assert view.int32(COUNT) == 2
    used = view.used(0, of_dead_too=False)
    assert used["total"] == container.booked()
    assert used["data"] == 2200 * MIB
    assert used["total"] == used["context"] + used["module"] + used["data"] + used["offset"]
    assert view.used(1, of_dead_too=True)["total"] == 0
    pids = {view.int32(SLOTS + index * SLOT_BYTES): index for index in view.slots_in_use}
    assert pids.keys() == {first.pid, second.pid}
    assert {view.int32(SLOTS + index * SLOT_BYTES + STATUS) for index in pids.values()} == {1}


def test_slots_of_ended_processes_are_zero_so_that_older_monitors_count_nobody_twice(container: Container) -> None:
    ended, killed, lives = container.hold(1500), container.hold(700), container.hold(300)
    ended.terminate()
    ended.wait()
    killed.kill()
    killed.wait()
    container.hold(50)
    view = container.look()
    pids = [view.int32(SLOTS + index * SLOT_BYTES) for index in view.slots_in_use]
    assert lives.pid in pids
    assert not {ended.pid, killed.pid} & set(pids)
    free = [index for index in view.slots_in_use if view.int32(SLOTS + index * SLOT_BYTES + STATUS) == 0]
    assert free, "two of three slots were given back, one was taken again"
    assert {view.slot(index) for index in free} == {bytes(SLOT_BYTES)}
    assert view.used(0, of_dead_too=True) == view.used(0, of_dead_too=False)
    assert view.used(0, of_dead_too=True)["total"] == container.booked()


def test_1_3_is_1_2_byte_for_byte(container: Container) -> None:
    """Cut to the older size and called 1.2 it says the same, but for what 1.2 cannot say."""
    container.hold(1500)
    data = container.look().data
    older = bytearray(data[: V1.size_bytes + 1])
    struct.pack_into("<I", older, 8, 2)
    new, old = read(data), read(bytes(older))
    assert (new.version, old.version) == ((1, 3), (1, 2))
    assert new.cards == old.cards
    assert [(slot.pid, slot.used_bytes) for slot in new.processes] == [
        (slot.pid, slot.used_bytes) for slot in old.processes
    ]
    assert [slot.began_at_ticks > 0 for slot in new.processes] == [True]
    assert [slot.began_at_ticks for slot in old.processes] == [0]
