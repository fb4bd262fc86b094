"""Which process of the host a slot's is, and writing that into a region that may change meanwhile."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

import pytest
from hami_monitor.adapters import region_writing
from hami_monitor.adapters.proc import ProcProcesses
from hami_monitor.adapters.region_files import RegionFiles, read_file
from hami_monitor.adapters.region_writing import RegionWriting
from hami_monitor.core.container_folder import FolderOwner, RegionPlace
from hami_monitor.core.host_pids import Candidate, Waiting, host_pid_of
from hami_monitor.core.process_trace import ProcessTrace, process_stat
from hami_monitor.core.region_layouts import EXTENSION_OFFSET, EXTENSION_OWNER_BYTES, EXTENSION_OWNERS, V0, V1
from hami_monitor.core.region_slots import RegionSlots, SlotHead, host_pid_offset
from hami_monitor.host_pid_watch import HostPidWatch
from hami_monitor.metrics import MonitorMetrics
from hami_sim.manual_clock import ManualClock
from monitor_builders import Slot, extended, pod, region_bytes, trace_of
from prometheus_client import CollectorRegistry

OWNER = FolderOwner(pod_uid="uid-p", container="main")
OTHER = FolderOwner(pod_uid="uid-q", container="main")
POD_ONLY = FolderOwner(pod_uid="uid-p", container="")
PLACE = RegionPlace(owner=OWNER, file="a.cache", inode=1)


def wanting(*, is_ours: bool = True, pid: int = 7, began: int = 100, namespace: int = 55) -> Waiting:
    slot = SlotHead(
        index=0, pid=pid, host_pid=0, began_at_ticks=began if is_ours else 0, pid_namespace=namespace if is_ours else 0
    )
    return Waiting(place=PLACE, layout="v1", is_ours=is_ours, slot=slot)


def process(
    host_pid: int = 7001,
    *,
    pid: int = 7,
    began: int = 100,
    owner: FolderOwner | None = OWNER,
    namespace: int = 55,
) -> Candidate:
    trace = trace_of(owner, host_pid, began=began, pids=(host_pid, pid))
    return Candidate(trace=trace, owner=owner, pid_namespace=namespace)


@pytest.mark.parametrize(
    ("one", "processes", "expected"),
    [
        pytest.param(wanting(), [process()], 7001, id="pid, start and namespace agree"),
        pytest.param(wanting(), [process(namespace=0)], 7001, id="the kernel does not tell the namespace"),
        pytest.param(wanting(), [process(owner=POD_ONLY)], 7001, id="only the pod can be told"),
        pytest.param(wanting(), [process(began=101)], None, id="another process with that pid"),
        pytest.param(wanting(), [process(pid=8)], None, id="another pid of that start"),
        pytest.param(wanting(), [process(namespace=56)], None, id="that pid in another namespace"),
        pytest.param(wanting(), [process(owner=OTHER)], None, id="another pod's"),
        pytest.param(wanting(), [process(owner=None)], None, id="nobody's"),
        pytest.param(wanting(), [process(7001), process(7002, namespace=0)], None, id="two that may be it"),
        pytest.param(wanting(), [], None, id="none"),
        pytest.param(wanting(is_ours=False), [process()], 7001, id="HAMi's, one of that pid"),
        pytest.param(wanting(is_ours=False), [process(owner=POD_ONLY)], None, id="HAMi's, perhaps another container's"),
        pytest.param(wanting(is_ours=False), [process(7001), process(7002)], None, id="HAMi's, two of that pid"),
    ],
)  # fmt: skip
def test_only_what_is_certain_is_told(one: Waiting, processes: list[Candidate], expected: int | None) -> None:
    assert host_pid_of(one, processes) == expected


class Node:
    """One container's region on a real file system, and processes that are told of."""

    def __init__(self, root: Path) -> None:
        self.containers = root
        self.file = root / "uid-p_main" / "a.cache"
        self.file.parent.mkdir()
        self.processes: list[Candidate] = []
        self.searches = 0
        self.registry = CollectorRegistry()
        known = asyncio.Event()
        known.set()
        self.watch = HostPidWatch(
            period_seconds=1.0,
            regions=RegionFiles(root),
            sink=RegionWriting(root),
            processes=self,
            pods=self,
            pods_known=known,
            metrics=MonitorMetrics(self.registry),
            clock=ManualClock(),
        )

    def values(self) -> list[object]:
        return [pod()]

    def search(
        self,
        began_at_ticks: Container[int],
        pids: Container[int],
        places: Iterable[RegionPlace],  # noqa: ARG002  # the port's
    ) -> list[tuple[ProcessTrace, int]]:
        self.searches += 1
        return [
            (one.trace, one.pid_namespace)
            for one in self.processes
            if one.trace.key.began_at_ticks in began_at_ticks or one.trace.pids[-1] in pids
        ]

    def write(self, *slots: Slot, is_ours: bool = True) -> None:
        data = region_bytes(version=(1, 3) if is_ours else (1, 2), slots=slots)
        self.file.write_bytes(extended(data, slots) if is_ours else data)

    def host_pids(self) -> list[int]:
        return [process.host_pid for process in read_file(self.file).processes]

    def put(self, offset: int, value: int, kind: str = "<i") -> None:
        with self.file.open("r+b") as file:
            file.seek(offset)
            file.write(struct.pack(kind, value))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_slots_of_our_library_are_told_at_once(node: Node) -> None:
    node.write(Slot(pid=7, began=100), Slot(pid=8, began=101), Slot(pid=9, began=102, status=0))
    node.processes = [process(7001), process(7002, pid=8, began=101), process(7003, pid=9, began=102)]
    await node.watch.look()
    assert node.host_pids() == [7001, 7002]
    await node.watch.look()
    assert node.searches == 1


async def test_hamis_library_is_left_to_find_it_itself_first(node: Node) -> None:
    node.write(Slot(pid=7), Slot(pid=8, host_pid=4444), is_ours=False)
    node.processes = [process(7001), process(7002, pid=8)]
    for _ in range(2):
        await node.watch.look()
        assert node.host_pids() == [0, 4444]
    await node.watch.look()
    assert node.host_pids() == [7001, 4444]


async def test_slots_that_match_nothing_do_not_keep_the_monitor_busy(node: Node) -> None:
    node.write(*(Slot(pid=number, began=number) for number in range(1, 101)))
    for _ in range(3000):
        node.watch._round({"uid-p": pod()}, (OWNER,))
    assert node.searches <= 110


def test_neither_another_file_nor_one_true_slot_makes_up_for_lies(node: Node) -> None:
    """A new region file and new lies before each round, and one process that can be matched again and again."""
    node.processes = [process(7001)]
    for number in range(600):
        node.file.unlink(missing_ok=True)
        first = 1000 * number
        node.write(Slot(pid=7, began=100), *(Slot(pid=first + one, began=first + one) for one in range(101, 201)))
        node.watch._round({"uid-p": pod()}, (OWNER,))
    assert node.searches <= 600 / 30 + 5


async def test_a_container_that_lied_is_told_once_it_says_the_truth(node: Node) -> None:
    node.write(*(Slot(pid=number, began=number) for number in range(1, 101)))
    for _ in range(35):
        await node.watch.look()
    node.write(Slot(pid=7, began=100))
    node.processes = [process(7001)]
    for _ in range(30):
        await node.watch.look()
    assert node.host_pids() == [7001]


def place_of(node: Node) -> tuple[RegionPlace, RegionSlots]:
    ((place, read),) = RegionFiles(node.containers).slots([OWNER]).items()
    return place, read


def owner_offset(slot: int) -> int:
    return EXTENSION_OFFSET + EXTENSION_OWNERS + slot * EXTENSION_OWNER_BYTES


@pytest.mark.parametrize(
    "change",
    [
        pytest.param((V1.slots, 8, "<i"), id="another pid"),
        pytest.param((V1.slots + V1.status, 0, "<i"), id="free"),
        pytest.param((V1.slots + 4, 4444, "<i"), id="it knows"),
        pytest.param((owner_offset(0), 101, "<Q"), id="another process of that pid"),
        pytest.param((owner_offset(0) + 8, 56, "<Q"), id="the pid of another namespace"),
    ],
)
def test_a_slot_that_changed_hands_is_not_told(node: Node, change: tuple[int, int, str]) -> None:
    node.write(Slot(pid=7, began=100))
    place, read = place_of(node)
    node.put(change[0], change[1], change[2])
    before = node.file.read_bytes()
    assert not RegionWriting(node.containers).write_host_pid(place, read.layout, read.slots[0], 7001)
    assert node.file.read_bytes() == before


def test_a_slot_that_changes_hands_in_the_middle_does_not_keep_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends and the next one takes the slot between the look and the write."""
    node.write(Slot(pid=7, began=100))
    place, read = place_of(node)
    really = region_writing.os.pwrite

    def taken_over(file: int, data: bytes, offset: int) -> int:
        written = really(file, data, offset)
        if struct.unpack("<i", data) == (7001,):
            node.put(owner_offset(0), 999, "<Q")
        return written

    monkeypatch.setattr(region_writing.os, "pwrite", taken_over)
    assert not RegionWriting(node.containers).write_host_pid(place, read.layout, read.slots[0], 7001)
    assert node.host_pids() == [0]


@pytest.mark.parametrize(("layout", "is_ours"), [(V0, False), (V1, False), (V1, True)])
def test_the_four_bytes_are_those_of_the_slot(tmp_path: Path, layout: object, is_ours: bool) -> None:
    node = Node(tmp_path)
    slots = [Slot(pid=5, began=1), Slot(pid=7, began=100)]
    data = region_bytes(layout=layout, version=(1, 3) if is_ours else (1, 2), slots=slots)  # type: ignore[arg-type]
    node.file.write_bytes(extended(data, slots) if is_ours else data)
    place, read = place_of(node)
    assert read.is_ours == is_ours
    before = node.file.read_bytes()
    assert RegionWriting(node.containers).write_host_pid(place, read.layout, read.slots[1], 0x01020304)
    after = node.file.read_bytes()
    differing = [offset for offset, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    start = host_pid_offset(layout, 1)  # type: ignore[arg-type]
    assert differing == [*range(start, start + 4)]


def test_all_processes_of_this_machine_can_be_searched() -> None:
    """This process, among them: by its start, and by its innermost pid."""
    stat = process_stat(Path("/proc/self/stat").read_text())
    assert stat is not None
    by_start: Mapping[int, int] = {
        trace.key.pid: namespace for trace, namespace in ProcProcesses().search({stat.began_at_ticks}, set(), ())
    }
    assert by_start[os.getpid()] == Path("/proc/self/ns/pid").stat().st_ino
    assert os.getpid() in {trace.key.pid for trace, _ in ProcProcesses().search(set(), {os.getpid()}, ())}
