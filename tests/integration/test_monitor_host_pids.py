"""Containers with PID namespaces of their own share a card: they get what they are promised once the monitor has told
the library the host's pids, and less before.

The machine's time is virtual from the moment on that both programs begin, so the numbers do not depend on this one.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from hami_monitor.adapters.region_files import read_file
from hami_monitor.core.region import RegionProcess
from hami_monitor.core.region_layouts import UnreadableRegionError
from hami_sim.fake_kube import FakeKube

sys.path.insert(0, str(Path(__file__).parents[2] / "services" / "monitor" / "tests"))

from monitor_world import BUILD, SimulatedNode, monitor_of, pod

OWN_PIDS = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
VIRTUAL_SECONDS = 20
KERNEL_MICROSECONDS = 1000


def may_have_own_pids() -> bool:
    return subprocess.run([*OWN_PIDS, "true"], check=False, capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not may_have_own_pids(), reason="a PID namespace needs CAP_SYS_ADMIN")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SimulatedNode]:
    found = SimulatedNode(tmp_path)
    yield found
    found.end()


@pytest.fixture
async def kube() -> AsyncIterator[FakeKube]:
    fake = FakeKube()
    await fake.start()
    yield fake
    await fake.stop()


def start(node: SimulatedNode, name: str, number: int, percent: int, *, awaits_monitor: bool) -> subprocess.Popen[str]:
    """A program that keeps the card's queue full; it begins when both are ready."""
    folder = node.folder(name)
    folder.mkdir()
    settings = {
        "HAMI_SIM_CLOCK": "virtual",
        "HAMI_SIM_CLOCK_PARTIES": "4",
        "HAMI_SIM_VISIBLE_DEVICES": "0",
        "LD_LIBRARY_PATH": str(BUILD / "sim"),
        "LD_PRELOAD": f"{BUILD / 'lib/libvgpu.so'} {BUILD / 'sim/libsimclock.so'}",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "1000m",
        "CUDA_DEVICE_SM_LIMIT": str(percent),
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(folder / "region.cache"),
        **({"VGPU_TEST_AWAITS_HOST_PID": "1"} if awaits_monitor else {}),
    }
    program = f"{2 * number} 0 0 {KERNEL_MICROSECONDS} 0 1 0 0 {VIRTUAL_SECONDS}"
    nothing = "0 0 0"
    process = subprocess.Popen(
        [*OWN_PIDS, "env", *(f"{key}={value}" for key, value in settings.items()),
         BUILD / "tests/test_share", "share", program, nothing, nothing, nothing],
        env=node.environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    node.processes.append(process)
    return process


def shares(processes: list[subprocess.Popen[str]]) -> list[float]:
    """Percent of the card's time that each got."""
    found = []
    for process in processes:
        said, _ = process.communicate()
        served = re.fullmatch(r"served (\d+) launches \d+\n", said)
        assert served is not None, said
        found.append(int(served[1]) / (VIRTUAL_SECONDS * 1e7))
    return found


def slots(node: SimulatedNode, name: str) -> tuple[RegionProcess, ...]:
    """Live ones; none while there is no region yet."""
    try:
        return read_file(node.folder(name) / "region.cache").processes
    except (FileNotFoundError, UnreadableRegionError):
        return ()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  # other processes make it so
        await asyncio.sleep(0.05)


def on_card(node: SimulatedNode) -> set[int]:
    """Pids on the host. To look is also what makes a driver know them."""
    return {process["pid"] for process in node.books()["cards"][0]["processes"]}


@pytest.mark.parametrize(("first", "second"), [(50, 50), (10, 90)])
async def test_containers_get_their_shares_once_the_monitor_has_told_the_hosts_pids(
    node: SimulatedNode, kube: FakeKube, first: int, second: int
) -> None:
    percents = {"a": first, "b": second}
    processes = []
    for number, (name, percent) in enumerate(percents.items()):
        kube.put("pods", pod(name, 0, 1000, percent))
        processes.append(start(node, name, number, percent, awaits_monitor=True))
    await until(lambda: len(on_card(node)) == 2)
    pids = on_card(node)
    assert all(slot.host_pid == 0 for name in percents for slot in slots(node, name))
    # A look through the driver would take this machine's time for the virtual one's.
    node.environment = {key: value for key, value in node.environment.items() if key != "HAMI_SIM_DRIVER"}
    async with monitor_of(node, kube, "", "host_pids.period_seconds=0.2"):
        got = await asyncio.to_thread(shares, processes)
    assert got == pytest.approx([first, second], abs=2)
    assert len(pids) == 2


async def test_while_nobody_tells_they_get_less(node: SimulatedNode) -> None:
    """What the test above would see if nothing was told."""
    processes = [start(node, name, number, 50, awaits_monitor=False) for number, name in enumerate(("a", "b"))]
    got = await asyncio.to_thread(shares, processes)
    assert all(share < 40 for share in got)


async def test_each_slot_is_told_its_own_pid_and_a_new_process_too(node: SimulatedNode, kube: FakeKube) -> None:
    """Both containers have the same pids in their namespaces."""
    hold = ("alloc", "--mib", "10", "--hold-until-signal")
    for name in ("a", "b"):
        kube.put("pods", pod(name, 0, 1000))
        node.start(name, 0, 1000, *hold, wrapper=OWN_PIDS)
    async with monitor_of(node, kube, "", "host_pids.period_seconds=0.2"):
        await until(lambda: all(slots(node, name) and slots(node, name)[0].host_pid for name in ("a", "b")))
        told = {name: slots(node, name)[0] for name in ("a", "b")}
        assert told["a"].pid == told["b"].pid
        assert {slot.host_pid for slot in told.values()} == on_card(node)
        node.start("b", 0, 1000, *hold, wrapper=OWN_PIDS)
        await until(lambda: len(slots(node, "b")) == 2 and all(slot.host_pid for slot in slots(node, "b")))
        await until(lambda: len(on_card(node)) == 3)
        assert {slot.host_pid for name in ("a", "b") for slot in slots(node, name)} == on_card(node)
