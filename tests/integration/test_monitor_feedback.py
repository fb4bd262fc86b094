"""Two containers of different priority on one card, with the real library: the monitor lets one launch before the
other."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from hami_sim.fake_kube import FakeKube

sys.path.insert(0, str(Path(__file__).parents[2] / "services" / "monitor" / "tests"))

from monitor_world import PERIOD_SECONDS, Monitor, SimulatedNode, monitor_of, pod

TICK = f"feedback.period_seconds={PERIOD_SECONDS}"
LAUNCH = ("launch", "--seconds", "3600")


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


def blocked(name: str) -> tuple[str, ...]:
    return ("hami_slice_blocked", name)


def launches(node: SimulatedNode, pid: int) -> int:
    return next((one["launches"] for one in node.books()["cards"][0]["processes"] if one["pid"] == pid), 0)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  # other processes make it so
        await asyncio.sleep(0.05)


async def goes_on(node: SimulatedNode, pid: int) -> None:
    before = launches(node, pid)
    await until(lambda: launches(node, pid) > before)


async def stands_still(node: SimulatedNode, pid: int, while_works: int) -> None:
    """Returns once it launched nothing in a time in which the other one launched some thousands of times.

    What it had begun when it was blocked may still come.
    """
    while True:
        ours, theirs = launches(node, pid), launches(node, while_works)
        await until(lambda theirs=theirs: launches(node, while_works) > theirs + 2000)
        if launches(node, pid) == ours:
            return


async def test_the_less_urgent_one_waits_while_the_urgent_one_works(node: SimulatedNode, kube: FakeKube) -> None:
    for name in ("urgent", "other"):
        kube.put("pods", pod(name, 0, 1000))
    other = node.start("other", 0, 1000, *LAUNCH, priority=1)
    async with monitor_of(node, kube, "", TICK) as monitor:
        await goes_on(node, other.pid)
        await monitor.until(lambda series: series.get(blocked("other")) == 0)
        urgent = node.start("urgent", 0, 1000, *LAUNCH, priority=0)
        await monitor.shows({blocked("other"): 1, blocked("urgent"): 0})
        await goes_on(node, urgent.pid)
        await stands_still(node, other.pid, while_works=urgent.pid)

        urgent.send_signal(signal.SIGKILL)
        urgent.wait()
        await monitor.until(lambda series: series[blocked("other")] == 0)
        await goes_on(node, other.pid)


async def test_a_monitor_that_starts_anew_blocks_again_and_one_that_ends_lets_go(
    node: SimulatedNode, kube: FakeKube
) -> None:
    for name in ("urgent", "other"):
        kube.put("pods", pod(name, 0, 1000))
    other = node.start("other", 0, 1000, *LAUNCH, priority=3)
    urgent = node.start("urgent", 0, 1000, *LAUNCH, priority=1)
    await goes_on(node, other.pid)
    await goes_on(node, urgent.pid)

    async def blocks(monitor: Monitor) -> None:
        await monitor.until(lambda series: series.get(blocked("other")) == 1)
        await goes_on(node, urgent.pid)
        await stands_still(node, other.pid, while_works=urgent.pid)

    async with monitor_of(node, kube, "", TICK) as monitor:
        await blocks(monitor)
    await goes_on(node, other.pid)
    async with monitor_of(node, kube, "", TICK) as monitor:
        await blocks(monitor)


async def test_switched_off_nobody_waits(node: SimulatedNode, kube: FakeKube) -> None:
    for name in ("urgent", "other"):
        kube.put("pods", pod(name, 0, 1000))
    other = node.start("other", 0, 1000, *LAUNCH, priority=1)
    urgent = node.start("urgent", 0, 1000, *LAUNCH, priority=0)
    async with monitor_of(node, kube, "", "feedback.enabled=false") as monitor:
        found = await monitor.until(lambda series: series["hami_monitor_folders", "read"] == 2)
        assert blocked("other") not in found
        for _ in range(3):
            await goes_on(node, urgent.pid)
            await goes_on(node, other.pid)
