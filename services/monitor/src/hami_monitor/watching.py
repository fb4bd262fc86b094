"""The two loops: the cards through the driver, and everything else once a period.

The driver has a loop of its own, since a call into a sick driver may take minutes: regions and pods are told meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from threading import Thread

from hami_chassis.clock import Clock
from hami_chassis.log import get_logger
from hami_model import events
from hami_model.limits_page import LimitsPage

from hami_monitor.core.announcements import enforcement_events, out_of_band_events, usage_events
from hami_monitor.core.card_users import OutOfBandProcess
from hami_monitor.core.container_folder import FolderOwner, FolderReading
from hami_monitor.core.enforcement import UnheldProcess
from hami_monitor.core.host import HostReading
from hami_monitor.core.process_trace import ProcessKey, ProcessTrace
from hami_monitor.core.sample import Sample, take_sample
from hami_monitor.metrics import MonitorMetrics
from hami_monitor.ports import EventSink, HostSource, ListablePods, OwnerSource, PageSource, RegionSource

log = get_logger("watching")

_STALE_PERIODS = 3


class HostWatch:
    """Root task `run`. Keeps the last view of the cards."""

    def __init__(self, source: HostSource, *, period_seconds: float, metrics: MonitorMetrics, clock: Clock) -> None:
        self._source = source
        self._period_seconds = period_seconds
        self._metrics = metrics
        self._clock = clock
        self._last = HostReading(problem="the driver has not answered yet")
        self._read_at: float | None = None
        self._logged = ""
        self.answers = 0
        """How often the driver has answered."""
        self.answered = asyncio.Event()

    async def run(self) -> None:
        while True:
            self._take(await _in_daemon_thread(self._source.read))
            await self._clock.sleep(self._period_seconds)

    def latest(self) -> HostReading:
        """A view that has grown old is none."""
        if self._read_at is None:
            return self._last
        age = self._clock.monotonic() - self._read_at
        if age > _STALE_PERIODS * self._period_seconds:
            return HostReading(problem=f"the driver has not answered for {age:.0f} s")
        return self._last

    def _take(self, reading: HostReading) -> None:
        self._last, self._read_at = reading, self._clock.monotonic()
        self.answers += 1
        for query, count in reading.failures.items():
            self._metrics.driver_failures.labels(query).inc(count)
        state = reading.problem or f"{len(reading.cards)} cards, failing queries: {sorted(reading.failures) or 'none'}"
        if state != self._logged:
            self._logged = state
            (log.warning if reading.problem or reading.failures else log.info)("driver", state=state)
        self.answered.set()


async def _in_daemon_thread(call: Callable[[], HostReading]) -> HostReading:
    """Like asyncio.to_thread, but a call that never returns does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[HostReading] = loop.create_future()

    def deliver(result: HostReading | None, error: Exception | None) -> None:
        if answer.done():
            return
        if result is not None:
            answer.set_result(result)
        elif error is not None:
            answer.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = call()
        except Exception as raised:  # noqa: BLE001  # handed to the task that waits for it
            error = raised
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(deliver, result, error)

    Thread(target=work, name="driver", daemon=True).start()
    return await answer


class Sampler:
    """Root task `run`. Keeps the last sample and announces each."""

    def __init__(
        self,
        *,
        node: str,
        period_seconds: float,
        regions: RegionSource,
        owners: OwnerSource,
        pages: PageSource,
        pods: ListablePods,
        pods_known: asyncio.Event,
        host: HostWatch,
        sink: EventSink | None,
        source: str,
        prefix: str,
        metrics: MonitorMetrics,
        clock: Clock,
    ) -> None:
        self._node = node
        self._period_seconds = period_seconds
        self._regions = regions
        self._owners = owners
        self._pages = pages
        self._pods = pods
        self._pods_known = pods_known
        self._host = host
        self._sink = sink
        self._source = source
        self._prefix = prefix
        self._metrics = metrics
        self._clock = clock
        self._problems: dict[FolderOwner, str] = {}
        self._suspected: frozenset[ProcessKey] = frozenset()
        self._suspected_out_of_band: frozenset[ProcessKey] = frozenset()
        """By the last sample that had another view of the cards: one view is no second witness of itself."""
        self._answers_seen = 0
        self._told: frozenset[ProcessKey] = frozenset()
        self._told_out_of_band: frozenset[ProcessKey] = frozenset()
        self._listed_since: frozenset[ProcessKey] = frozenset()
        """Suspects since whose finding the pods were listed."""
        self._listing: asyncio.Task[None] | None = None
        self.last: Sample | None = None

    async def run(self) -> None:
        await self._pods_known.wait()
        await self._wait_for_driver()
        try:
            while True:
                await self.look()
                await self._clock.sleep(self._period_seconds)
        finally:
            if self._listing is not None:
                self._listing.cancel()

    async def look(self) -> None:
        """Takes one sample and announces it. Where the machine has no room to read, the last one stays."""
        host, answers = self._host.latest(), self._host.answers
        pids = {process.pid for card in host.cards for process in card.processes or ()}
        began = self._clock.monotonic()
        try:
            folders, traces, pages = await asyncio.to_thread(self._read, pids)
        except OSError as error:
            log.warning("not-sampled", why=str(error))
            return
        if answers != self._answers_seen and self.last is not None:
            self._suspected = self.last.enforcement.suspects
            self._suspected_out_of_band = self._to_be_told_of(self.last)
        self._answers_seen = answers
        sample = take_sample(
            node=self._node,
            at_seconds=self._clock.now().timestamp(),
            pods=self._pods.values(),
            folders=folders,
            host=host,
            traces=traces,
            suspected=self._suspected,
            pages=pages,
            suspected_out_of_band=self._suspected_out_of_band,
        )
        self._metrics.sample_seconds.observe(self._clock.monotonic() - began)
        self._metrics.implausible.inc(sample.implausible)
        self._log_problems(folders)
        self.last = sample
        self._list_pods_for(sample.out_of_band.by_pods)
        unheld = tuple(enforcement_events(sample, told=self._told, source=self._source))
        self._told = _told_now(sample, self._told, sample.enforcement.unheld, sample.enforcement.suspects)
        self._log_unheld(unheld)
        outside = tuple(out_of_band_events(sample, told=self._told_out_of_band, source=self._source))
        self._told_out_of_band = _told_now(
            sample, self._told_out_of_band, sample.out_of_band.processes, sample.out_of_band.suspects
        )
        self._log_out_of_band(outside)
        if self._sink is not None:
            for event in (*usage_events(sample, source=self._source), *unheld, *outside):
                self._sink.publish(event.subject(self._prefix), events.encode(event), events.headers(event))

    def _to_be_told_of(self, before: Sample) -> frozenset[ProcessKey]:
        """Suspected by the sample before, those apart whose pod may be one that the watch has not told of."""
        found = before.out_of_band
        return found.suspects - (found.by_pods - self._listed_since)

    def _list_pods_for(self, suspects: frozenset[ProcessKey]) -> None:
        """Beside the loop: while the API server is away regions and cards are told all the same."""
        self._listed_since &= suspects
        found = suspects - self._listed_since
        if found and (self._listing is None or self._listing.done()):
            self._listing = asyncio.create_task(self._list_pods(found))

    async def _list_pods(self, suspects: frozenset[ProcessKey]) -> None:
        await self._pods.resync()
        self._listed_since |= suspects

    async def _wait_for_driver(self) -> None:
        """A period at most: so the first sample has its cards, and a sick driver holds nothing up."""
        waiters = [
            asyncio.ensure_future(self._host.answered.wait()),
            asyncio.ensure_future(self._clock.sleep(self._period_seconds)),
        ]
        try:
            await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiters:
                waiter.cancel()
            await asyncio.gather(*waiters, return_exceptions=True)

    def _read(
        self, pids: set[int]
    ) -> tuple[tuple[FolderReading, ...], Mapping[int, ProcessTrace], Mapping[FolderOwner, LimitsPage]]:
        folders = self._regions.scan()
        return folders, self._owners.trace(pids, folders), self._pages.pages(folder.owner for folder in folders)

    def _log_unheld(self, found: tuple[events.SliceNotEnforced, ...]) -> None:
        for event in found:
            # Whoever switched the library off knows.
            (log.info if event.reason == "opted-out" else log.warning)(
                "slice-not-enforced",
                pod=f"{event.pod.namespace}/{event.pod.name}",
                container=event.container,
                pid=event.pid,
                process=event.process,
                reason=event.reason,
                control_from=event.control_from,
            )

    def _log_out_of_band(self, found: tuple[events.OutOfBandUser, ...]) -> None:
        for event in found:
            log.warning(
                "out-of-band-user",
                pid=event.pid,
                process=event.process,
                user=event.user,
                pod=f"{event.pod.namespace}/{event.pod.name}" if event.pod is not None else "",
                cards=[card.card_id for card in event.cards],
            )

    def _log_problems(self, folders: tuple[FolderReading, ...]) -> None:
        """Each once, until it changes."""
        problems = {folder.owner: folder.problem for folder in folders if folder.problem}
        for owner, problem in problems.items():
            if self._problems.get(owner) != problem:
                log.warning("region-unreadable", pod_uid=owner.pod_uid, container=owner.container, problem=problem)
        self._problems = problems


def _told_now(
    sample: Sample,
    before: frozenset[ProcessKey],
    found: Iterable[UnheldProcess | OutOfBandProcess],
    suspects: frozenset[ProcessKey],
) -> frozenset[ProcessKey]:
    """Processes that were told of. Who is not seen because the driver does not say was told of all the same."""
    is_whole = not sample.host_problem and all(card.host.processes is not None for card in sample.cards)
    return frozenset(process.key for process in found) | (before & suspects if is_whole else before)
