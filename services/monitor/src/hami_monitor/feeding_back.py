"""The loop that tells containers of one card apart by priority; see core.feedback."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from hami_chassis.clock import Clock
from hami_chassis.log import get_logger
from hami_model.limits_page import LimitsPage

from hami_monitor.core.container_folder import FolderOwner, RegionPlace
from hami_monitor.core.feedback import Activity, Contender, Feedback, Verdict, changes, decide, released
from hami_monitor.core.pods import MonitoredContainer, MonitoredPod, live_containers, without_impostors
from hami_monitor.core.region_words import RegionWords, WordChange
from hami_monitor.metrics import MonitorMetrics
from hami_monitor.ports import PageSource, PodSource, WordSink, WordSource
from hami_monitor.rounds import look_for_ever, told_if_not_written

log = get_logger("feedback")


class FeedbackLoop:
    """Root task `run`. Keeps the last outcome. When it ends it lets every container go on."""

    def __init__(
        self,
        *,
        period_seconds: float,
        hold_ticks: int,
        regions: WordSource,
        sink: WordSink,
        pages: PageSource,
        pods: PodSource,
        pods_known: asyncio.Event,
        metrics: MonitorMetrics,
        clock: Clock,
    ) -> None:
        self._period_seconds = period_seconds
        self._hold_ticks = hold_ticks
        self._regions = regions
        self._sink = sink
        self._pages = pages
        self._pods = pods
        self._pods_known = pods_known
        self._metrics = metrics
        self._clock = clock
        self._activities: dict[FolderOwner, Activity] = {}
        self.pods: Mapping[FolderOwner, MonitoredPod] = {}
        """Of the last outcome's containers."""
        self.last = Feedback()

    async def run(self) -> None:
        await self._pods_known.wait()  # before that there is nobody to let go
        try:
            await look_for_ever(
                self.look, period_seconds=self._period_seconds, once=self._pods_known, clock=self._clock
            )
        finally:
            self.release()

    async def look(self) -> None:
        """One look at all regions, and what follows from it. Where the machine has no room to read, nothing does."""
        held = live_containers(without_impostors(self._pods.values()))
        tick = asyncio.ensure_future(asyncio.to_thread(self._tick, held))
        try:
            found = await asyncio.shield(tick)
        except asyncio.CancelledError:
            await asyncio.wait([tick])  # it would block again whoever is let go meanwhile
            raise
        except OSError as error:
            log.warning("regions-not-read", why=str(error))
            return
        self._log(found, held)
        self.pods = {owner: pod for owner, (pod, _) in held.items()}
        self.last = found

    def release(self) -> None:
        """Nobody waits for a monitor that is gone, and everybody is held to his share. The library does the first by
        itself, after a while, where there was no time for this."""
        try:
            read = self._regions.words(live_containers(without_impostors(self._pods.values())))
        except OSError as error:
            log.warning("regions-not-read", why=str(error))
            return
        for place, words in read.items():
            self._write(place, words, released(words))

    def _tick(self, held: Mapping[FolderOwner, tuple[MonitoredPod, MonitoredContainer]]) -> Feedback:
        read = self._regions.words(held)
        pages = self._pages.pages(place.owner for place in read)
        found = decide(
            self._activities,
            [
                _contender(place.owner, held[place.owner][1], words, pages.get(place.owner))
                for place, words in read.items()
            ],
            hold_ticks=self._hold_ticks,
        )
        self._activities = found.activities
        for (place, words), verdict in zip(read.items(), found.verdicts, strict=True):
            self._write(place, words, changes(words, verdict))
        return found

    def _write(self, place: RegionPlace, words: RegionWords, wanted: tuple[WordChange, ...]) -> None:
        if not wanted:
            return
        with told_if_not_written(self._metrics, container=place.owner.container, pod_uid=place.owner.pod_uid):
            self._metrics.words_written.inc(self._sink.write(place, words.layout, wanted))

    def _log(self, found: Feedback, held: Mapping[FolderOwner, tuple[MonitoredPod, MonitoredContainer]]) -> None:
        """What has changed."""
        before = {verdict.owner: verdict for verdict in self.last.verdicts}
        for verdict in found.verdicts:
            old = before.get(verdict.owner)
            pod = held[verdict.owner][0]
            who = {
                "pod": f"{pod.ref.namespace}/{pod.ref.name}",
                "pod_uid": pod.uid,
                "container": verdict.owner.container,
            }
            if verdict.is_blocked != (old is not None and old.is_blocked):
                log.info("blocked" if verdict.is_blocked else "unblocked", **who, **_by(verdict, held))
            if old is None or verdict.is_contended != old.is_contended:
                log.debug("cores-held" if verdict.is_contended else "cores-free", **who)


def _by(verdict: Verdict, held: Mapping[FolderOwner, tuple[MonitoredPod, MonitoredContainer]]) -> dict[str, str]:
    if verdict.blocked_by is None:
        return {}
    urgent = held[verdict.blocked_by][0].ref
    return {"by": f"{urgent.namespace}/{urgent.name}"}


def _contender(
    owner: FolderOwner, container: MonitoredContainer, words: RegionWords, page: LimitsPage | None
) -> Contender:
    """A region may name any card and any priority: only cards that the container holds count, and the page's priority
    where there is one."""
    held = {str(held.card_id) for held in container.slices}
    return Contender(
        owner=owner,
        card_ids=words.card_ids & held,
        priority=words.priority if page is None else page.priority,
        words=words,
    )
