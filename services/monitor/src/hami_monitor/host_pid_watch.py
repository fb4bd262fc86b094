"""The loop that tells libraries the host's pids of their processes; see core.host_pids.

Every round reads a few bytes of each region. /proc is searched only while some slot does not know, and less and less
often for one that cannot be matched.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from hami_chassis.clock import Clock
from hami_chassis.log import get_logger

from hami_monitor.core.container_folder import FolderOwner
from hami_monitor.core.enforcement import owner_of_process
from hami_monitor.core.host_pids import Candidate, Waiting, host_pid_of, waiting
from hami_monitor.core.pods import MonitoredPod, live_containers, without_impostors
from hami_monitor.metrics import MonitorMetrics
from hami_monitor.ports import HostPidSink, PodSource, ProcessSearch, SlotSource
from hami_monitor.rounds import look_for_ever, told_if_not_written

log = get_logger("host-pids")

_EVERY_ROUND: Final = 5
_SELDOM: Final = 30
"""Rounds: the first five all search for a slot, later each thirtieth."""
_MISSES_MAX: Final = 50
"""Slots that could not be matched, of one container, since all that it had could be. For who writes slots of processes
that there are not, /proc is searched each thirtieth round only."""
_LIBRARYS_OWN_ROUNDS: Final = 2
"""For which HAMi's library may still find the pid itself."""


class HostPidWatch:
    """Root task `run`."""

    def __init__(
        self,
        *,
        period_seconds: float,
        regions: SlotSource,
        sink: HostPidSink,
        processes: ProcessSearch,
        pods: PodSource,
        pods_known: asyncio.Event,
        metrics: MonitorMetrics,
        clock: Clock,
    ) -> None:
        self._period_seconds = period_seconds
        self._regions = regions
        self._sink = sink
        self._processes = processes
        self._pods = pods
        self._pods_known = pods_known
        self._metrics = metrics
        self._clock = clock
        self._rounds: dict[Waiting, int] = {}
        self._misses: dict[FolderOwner, int] = {}
        """A container may put another file in the place of its region at any moment."""
        self._round_number = 0

    async def run(self) -> None:
        await look_for_ever(self.look, period_seconds=self._period_seconds, once=self._pods_known, clock=self._clock)

    async def look(self) -> None:
        """One round. Where the machine has no room to read, there is none."""
        pods = without_impostors(self._pods.values())
        by_uid = {pod.kubelet_uid: pod for pod in pods}
        try:
            await asyncio.to_thread(self._round, by_uid, tuple(live_containers(pods)))
        except OSError as error:
            log.warning("regions-not-read", why=str(error))

    def _round(self, pods: Mapping[str, MonitoredPod], owners: Collection[FolderOwner]) -> None:
        read = self._regions.slots(owners)
        rounds = {one: self._rounds.get(one, 0) for one in waiting(read)}
        self._rounds = {one: before + 1 for one, before in rounds.items()}
        living = set(owners)
        self._misses = {owner: misses for owner, misses in self._misses.items() if owner in living}
        self._round_number += 1
        due = [one for one, before in rounds.items() if self._is_due(one, before)]
        if not due:
            return
        began = {one.slot.began_at_ticks for one in due if one.is_ours} - {0}
        pids = {one.slot.pid for one in due if one.slot.began_at_ticks == 0}
        candidates: dict[int, list[Candidate]] = {}
        for trace, namespace in self._processes.search(began, pids, read):
            found = Candidate(trace=trace, owner=owner_of_process(trace, pods), pid_namespace=namespace)
            candidates.setdefault(trace.innermost_pid, []).append(found)
        missing: Counter[FolderOwner] = Counter()
        for one in due:
            host_pid = host_pid_of(one, candidates.get(one.slot.pid, ()))
            if host_pid is None:
                missing[one.place.owner] += 1
            else:
                self._tell(one, host_pid)
        for owner in {one.place.owner for one in due}:
            self._misses[owner] = self._misses.get(owner, 0) + missing[owner] if missing[owner] else 0

    def _is_due(self, one: Waiting, rounds: int) -> bool:
        """`rounds` in which it has been waiting."""
        if not one.is_ours and rounds < _LIBRARYS_OWN_ROUNDS:
            return False
        if self._misses.get(one.place.owner, 0) >= _MISSES_MAX:
            return self._round_number % _SELDOM == 0
        return rounds < _EVERY_ROUND or rounds % _SELDOM == 0

    def _tell(self, one: Waiting, host_pid: int) -> None:
        owner = one.place.owner
        who = {"pod_uid": owner.pod_uid, "container": owner.container, "pid": one.slot.pid, "host_pid": host_pid}
        with told_if_not_written(self._metrics, **who):
            if self._sink.write_host_pid(one.place, one.layout, one.slot, host_pid):
                self._metrics.words_written.inc()
                log.info("host-pid-told", **who)
