"""Wakes rejected pods when capacity grew.

kube-scheduler tries a rejected pod again only after changes that it watches. After any other growth we touch one
annotation on those rejected pods that would fit now, beside each other. A growth that kube-scheduler watches too is
looked at a little later: only pods that it tried too early, before our own watch had the news, are still rejected then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import hami_engine as engine
from hami_chassis.clock import Clock
from hami_chassis.log import get_logger

from hami_scheduler.adapters.chores import ChoreList
from hami_scheduler.core.waking import RejectedPod, pods_to_wake
from hami_scheduler.metrics import SchedulerMetrics

log = get_logger("waker")

_WATCHED_DELAY_SECONDS = 1.0
_GATHER_SECONDS = 0.02  # a burst of changes is looked at once


class Waker:
    """An Alarm. Root task `run`."""

    def __init__(
        self,
        cluster: engine.Cluster,
        rejected: dict[str, RejectedPod],
        chores: ChoreList,
        *,
        metrics: SchedulerMetrics,
        clock: Clock,
        wake_seconds: float,
        in_charge: Callable[[], bool],
    ) -> None:
        """`rejected` is the bookkeeper's, by UID. A pod is woken at most once in `wake_seconds`."""
        self._cluster = cluster
        self._rejected = rejected
        self._chores = chores
        self._metrics = metrics
        self._clock = clock
        self._wake_seconds = wake_seconds
        self._in_charge = in_charge
        self._at_once, self._later = asyncio.Event(), asyncio.Event()
        self._causes: set[str] = set()
        self._woken_at: dict[str, float] = {}

    def capacity_grew(self, cause: str, *, watched: bool) -> None:
        """Takes note; `run` looks at the rejected pods."""
        if self._rejected:
            self._causes.add(cause)
            (self._later if watched else self._at_once).set()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_after(self._at_once, _GATHER_SECONDS))
            group.create_task(self._look_after(self._later, _WATCHED_DELAY_SECONDS))

    async def _look_after(self, asked: asyncio.Event, seconds: float) -> None:
        while True:
            await asked.wait()
            await self._clock.sleep(seconds)
            asked.clear()
            if self._in_charge():
                await self._look()

    async def _look(self) -> None:
        causes, self._causes = sorted(self._causes), set()
        now = self._clock.monotonic()
        # Also of pods that are not rejected at this moment: one that is tried again may be rejected again at once.
        self._woken_at = {uid: at for uid, at in self._woken_at.items() if now - at < self._wake_seconds}
        rejected = list(self._rejected.values())
        # Many pods take a while: beside the loop, which goes on answering.
        fitting = await asyncio.to_thread(pods_to_wake, self._cluster, rejected)
        for pod in fitting:
            if pod.uid not in self._rejected:
                continue
            if pod.uid in self._woken_at:
                self._later.set()
                continue
            self._woken_at[pod.uid] = now
            self._wake(pod, causes)

    def _wake(self, pod: RejectedPod, causes: list[str]) -> None:
        request = pod.request
        self._metrics.woken.inc()
        log.info("pod-woken", pod=f"{request.namespace}/{request.name}", causes=causes)
        self._chores.wake(
            namespace=request.namespace,
            name=request.name,
            uid=pod.uid,
            value=self._clock.now().isoformat(timespec="microseconds"),
            gone=lambda: self._forget(pod),
        )

    def _forget(self, pod: RejectedPod) -> None:
        """It went away before any watch of ours saw it."""
        if self._rejected.pop(pod.uid, None) is not None:
            self.capacity_grew("rejected-pod-gone", watched=False)
