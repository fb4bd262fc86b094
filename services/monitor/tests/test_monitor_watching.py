"""The two loops: what a sick driver, an API server that is not there and hostile folders do to a sample."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

import msgspec
import pytest
from hami_model import events
from hami_model.limits_page import LimitsPage
from hami_monitor.core.container_folder import FolderOwner, FolderReading
from hami_monitor.core.host import HostProcess, HostReading
from hami_monitor.core.pods import MonitoredPod
from hami_monitor.core.process_trace import ProcessTrace
from hami_monitor.core.sample import Sample
from hami_monitor.metrics import MonitorMetrics
from hami_monitor.watching import HostWatch, Sampler
from hami_sim.manual_clock import ManualClock
from monitor_builders import CARD_A, NODE, Slot, folder, host_card, pod, region, trace_of
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

PERIOD_SECONDS = 5.0


class Regions:
    def __init__(self) -> None:
        self.folders: tuple[FolderReading, ...] = (folder(found=region(slots=[Slot(used={0: 7})])),)
        self.trouble: OSError | None = None

    def scan(self) -> tuple[FolderReading, ...]:
        if self.trouble is not None:
            raise self.trouble
        return self.folders


class Owners:
    def __init__(self) -> None:
        self.asked: list[set[int]] = []

    def trace(self, pids: Iterable[int], folders: Iterable[FolderReading]) -> Mapping[int, ProcessTrace]:
        self.asked.append(set(pids))
        return {pid: trace_of(found.owner, pid) for pid in self.asked[-1] for found in folders}


class NoPages:
    def pages(self, _owners: Iterable[FolderOwner]) -> Mapping[FolderOwner, LimitsPage]:
        return {}


class Driver:
    def __init__(self) -> None:
        self.reading = HostReading(cards=(host_card(),))
        self.answers = threading.Event()
        self.answers.set()

    def read(self) -> HostReading:
        self.answers.wait()
        return self.reading


class Pods:
    def __init__(self) -> None:
        self.pods = [pod()]
        self.at_the_server = [pod()]
        self.server_answers = asyncio.Event()
        self.asked = asyncio.Event()

    def values(self) -> Iterable[MonitoredPod]:
        return list(self.pods)

    async def resync(self) -> None:
        self.asked.set()
        await self.server_answers.wait()
        self.pods = self.at_the_server


class Sink:
    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes, Mapping[str, str]]] = []

    def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> None:
        self.sent.append((subject, payload, headers))


class Watched:
    """Both loops over doubles of everything outside."""

    def __init__(self, *, with_events: bool = True) -> None:
        self._seen: Sample | None = None
        self.registry = CollectorRegistry()
        self.clock, self.metrics = ManualClock(), MonitorMetrics(self.registry)
        self.regions, self.owners, self.driver, self.pods, self.sink = Regions(), Owners(), Driver(), Pods(), Sink()
        self.pods_known = asyncio.Event()
        self.host = HostWatch(self.driver, period_seconds=PERIOD_SECONDS, metrics=self.metrics, clock=self.clock)
        self.sampler = Sampler(
            node=NODE,
            period_seconds=PERIOD_SECONDS,
            regions=self.regions,
            pages=NoPages(),
            owners=self.owners,
            pods=self.pods,
            pods_known=self.pods_known,
            host=self.host,
            sink=self.sink if with_events else None,
            source="/hami/monitor/n1",
            prefix="hami",
            metrics=self.metrics,
            clock=self.clock,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self.host.run()), asyncio.create_task(self.sampler.run())]
        try:
            yield
        finally:
            self.driver.answers.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def sampled(self, sleeping: int = 2) -> Sample:
        """The first sample that nobody has looked at, once the loops have come to rest."""
        while True:
            last = self.sampler.last
            if last is not None and last is not self._seen and self.clock.sleeping == sleeping:
                self._seen = last
                return last
            await asyncio.sleep(0.001)

    async def next_period(self) -> Sample:
        self.clock.advance(PERIOD_SECONDS)
        return await self.sampled()

    @property
    def subjects(self) -> list[str]:
        return [subject for subject, _, _ in self.sink.sent]


async def test_every_period_has_a_sample_and_its_events() -> None:
    watched = Watched()
    watched.pods_known.set()
    async with watched.running():
        found = await watched.sampled()
        assert found.slices[0].memory_used_bytes == 7
        assert watched.subjects == ["hami.v1.usage.team.n1.uid-p", "hami.v1.usage-node.n1"]
        await watched.next_period()
    ids = [headers["ce-id"] for _, _, headers in watched.sink.sent]
    assert len(ids) == len(set(ids)) == 4
    assert isinstance(events.decode(watched.sink.sent[-1][1]), events.UsageNodeSampled)


@pytest.mark.case("MON-15")
async def test_nothing_is_told_before_the_pods_are_known() -> None:
    watched = Watched()
    async with watched.running():
        await watched.host.answered.wait()
        assert watched.sampler.last is None
        watched.pods_known.set()
        await watched.sampled()


async def test_events_can_be_switched_off() -> None:
    watched = Watched(with_events=False)
    watched.pods_known.set()
    async with watched.running():
        await watched.sampled()
    assert watched.sink.sent == []


async def test_a_driver_that_hangs_holds_up_its_cards_only() -> None:
    watched = Watched()
    watched.pods_known.set()
    watched.driver.answers.clear()
    async with watched.running():
        await watched.clock.wait_for_sleepers(1)
        watched.clock.advance(PERIOD_SECONDS)  # as long as a first sample waits for its cards
        found = await watched.sampled(sleeping=1)
        assert found.slices[0].memory_used_bytes == 7
        assert "not answered yet" in found.host_problem
        assert watched.subjects == ["hami.v1.usage.team.n1.uid-p"]


async def test_a_view_of_the_cards_that_has_grown_old_is_none() -> None:
    watched = Watched()
    watched.driver.answers.clear()
    task = asyncio.create_task(watched.host.run())
    watched.driver.answers.set()
    await watched.host.answered.wait()
    assert watched.host.latest().problem == ""
    watched.driver.answers.clear()
    watched.clock.advance(4 * PERIOD_SECONDS)
    assert watched.host.latest().problem == "the driver has not answered for 20 s"
    watched.driver.answers.set()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_defect_of_the_driver_adapter_ends_the_loop() -> None:
    watched = Watched()
    watched.driver.answers = None  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        await watched.host.run()


async def test_failing_queries_are_counted_by_name() -> None:
    watched = Watched()
    watched.driver.reading = HostReading(cards=(host_card(),), failures={"power": 2})
    async with watched.running():
        await watched.host.answered.wait()
    assert watched.registry.get_sample_value("hami_monitor_driver_failures_total", {"query": "power"}) == 2


async def test_processes_of_all_cards_are_looked_up() -> None:
    watched = Watched()
    watched.pods_known.set()
    process = HostProcess(pid=5, memory_used_bytes=7)
    watched.driver.reading = HostReading(cards=(host_card("GPU-1", 0, process), host_card("GPU-2", 1, process)))
    async with watched.running():
        found = await watched.sampled()
        assert watched.owners.asked == [{5}]
        user = found.cards[0].users[5]
        assert user.pod is not None
        assert user.pod.name == "p"


async def test_a_problem_is_logged_once_until_it_changes() -> None:
    watched = Watched()
    watched.pods_known.set()
    watched.regions.folders = (folder(problem="cut"),)
    with capture_logs() as logs:
        async with watched.running():
            await watched.sampled()
            await watched.next_period()
            watched.regions.folders = (folder(problem="other"),)
            await watched.next_period()
    assert [entry["problem"] for entry in logs if entry["event"] == "region-unreadable"] == ["cut", "other"]


async def test_a_process_without_a_slot_is_told_of_once_from_the_second_sample_on() -> None:
    watched = Watched()
    watched.pods_known.set()
    watched.driver.reading = HostReading(cards=(host_card(CARD_A, 0, HostProcess(pid=5, memory_used_bytes=7)),))

    def told() -> list[events.SliceNotEnforced]:
        found = [events.decode(payload) for _, payload, _ in watched.sink.sent]
        return [event for event in found if isinstance(event, events.SliceNotEnforced)]

    with capture_logs() as logs:
        async with watched.running():
            await watched.sampled()
            assert told() == []
            for _ in range(3):
                await watched.next_period()
            (event,) = told()
            assert (event.pod.name, event.container, event.pid, event.reason) == ("p", "main", 5, "no-slot")
            assert event.cards == (events.CardMemory(card_id=CARD_A, memory_used_bytes=7),)
            assert event.subject() == "hami.v1.usage.team.n1.uid-p.not-enforced"
            watched.driver.reading = HostReading(cards=(host_card(CARD_A, 0),))
            for _ in range(2):
                found = await watched.next_period()
            assert found.enforcement.unheld == ()
    assert [entry["reason"] for entry in logs if entry["event"] == "slice-not-enforced"] == ["no-slot"]


def not_enforced(watched: Watched) -> list[int]:
    found = [events.decode(payload) for _, payload, _ in watched.sink.sent]
    return [event.pid for event in found if isinstance(event, events.SliceNotEnforced)]


async def test_while_the_driver_hangs_nobody_is_suspected_twice_by_the_same_view_of_the_cards() -> None:
    """As a process that has given its slot back, and whose end hangs in the driver."""
    watched = Watched()
    watched.pods_known.set()
    watched.driver.reading = HostReading(cards=(host_card(CARD_A, 0, HostProcess(pid=5, memory_used_bytes=7)),))
    async with watched.running():
        await watched.sampled()
        watched.driver.answers.clear()
        for _ in range(2):
            watched.clock.advance(PERIOD_SECONDS)
            found = await watched.sampled(sleeping=1)
            assert {suspect.pid for suspect in found.enforcement.suspects} == {5}
        assert not_enforced(watched) == []
        watched.driver.answers.set()
        for _ in range(3):
            await watched.next_period()
        assert not_enforced(watched) == [5]


@pytest.mark.parametrize("allocated", [None, ""], ids=["a slice that is not enforced", "out of band"])
async def test_who_was_told_of_is_not_told_of_again_because_the_driver_was_silent(allocated: str | None) -> None:
    watched = Watched()
    watched.pods_known.set()
    watched.pods.server_answers.set()
    if allocated is not None:
        watched.pods.pods = watched.pods.at_the_server = [pod(allocated=allocated)]
    told = HostReading(cards=(host_card(CARD_A, 0, HostProcess(pid=5, memory_used_bytes=7)),))
    silent = HostReading(cards=(msgspec.structs.replace(told.cards[0], processes=None),))
    async with watched.running():
        await watched.sampled()
        for reading in (told, silent, told, HostReading(problem="uninitialised"), told):
            watched.driver.reading = reading
            for _ in range(4):
                await watched.next_period()
    expected = [("other-pod", 5)] if allocated is not None else []
    assert out_of_band(watched) == expected
    assert not_enforced(watched) == ([] if allocated is not None else [5])


def out_of_band(watched: Watched) -> list[tuple[str, int]]:
    found = [events.decode(payload) for _, payload, _ in watched.sink.sent]
    return [(event.user, event.pid) for event in found if isinstance(event, events.OutOfBandUser)]


async def test_a_pod_that_the_watch_has_not_told_of_is_not_out_of_band() -> None:
    """However long the watch is late: a list of the pods says whose the process is."""
    watched = Watched()
    watched.pods_known.set()
    watched.pods.pods = []
    watched.driver.reading = HostReading(cards=(host_card(CARD_A, 0, HostProcess(pid=5, memory_used_bytes=7)),))
    async with watched.running():
        await watched.sampled()
        for _ in range(3):
            found = await watched.next_period()
            assert found.cards[0].users[5].kind == "other-pod"
        await watched.pods.asked.wait()
        watched.pods.server_answers.set()
        for _ in range(3):
            found = await watched.next_period()
        assert found.cards[0].users[5].kind == "slice"
    assert out_of_band(watched) == []


async def test_a_process_of_a_pod_without_a_slice_is_told_of_once_the_pods_were_listed() -> None:
    watched = Watched()
    watched.pods_known.set()
    watched.pods.pods = watched.pods.at_the_server = [pod(allocated="")]
    watched.driver.reading = HostReading(cards=(host_card(CARD_A, 0, HostProcess(pid=5, memory_used_bytes=7)),))
    async with watched.running():
        for _ in range(3):
            await watched.sampled()
            watched.clock.advance(PERIOD_SECONDS)
        assert out_of_band(watched) == []
        await watched.pods.asked.wait()
        watched.pods.server_answers.set()
        for _ in range(3):
            await watched.next_period()
    assert out_of_band(watched) == [("other-pod", 5)]
