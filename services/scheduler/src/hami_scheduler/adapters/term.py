"""Terms of leadership: when this process may decide, and when not any more.

    lease won ─▶ wait until every earlier leader's Bindings have ended ─▶ consistent lists ─▶ in charge ─▶ lease lost

The wait falls away where the earlier leader gave the lease back. Each win begins a new term: what belongs to an
earlier one is cancelled, so its readiness never counts in a later one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

from hami_chassis.clock import Clock
from hami_chassis.kube.leader import Leadership as Won
from hami_chassis.log import get_logger

from hami_scheduler.adapters.informers import Informers
from hami_scheduler.bookkeeper import Bookkeeper
from hami_scheduler.metrics import SchedulerMetrics

log = get_logger("term")


class Term:
    """Told by the elector (`won`, `lost`); root task `run`."""

    def __init__(
        self,
        bookkeeper: Bookkeeper,
        informers: Informers,
        *,
        wait_seconds: float,
        metrics: SchedulerMetrics,
        clock: Clock,
        listeners: Sequence[Callable[[bool], None]],
    ) -> None:
        """`wait_seconds`: how long an earlier leader's Bindings may still arrive after its lease was won from it.

        `listeners` are told when this process is in charge, and when not any more.
        """
        self._bookkeeper = bookkeeper
        self._informers = informers
        self._wait_seconds = wait_seconds
        self._metrics = metrics
        self._clock = clock
        self._listeners = listeners
        self._won: Won | None = None
        self._number = 0
        self._changed = asyncio.Event()

    def won(self, leadership: Won) -> None:
        """The lease is ours."""
        self._number += 1
        self._won = leadership
        self._changed.set()

    def lost(self) -> None:
        """The lease is not ours any more: nothing is decided from this moment on."""
        self._number += 1
        self._won = None
        self._bookkeeper.end_term()
        self._tell(False)
        self._changed.set()

    async def run(self) -> None:
        """Begins terms until cancelled."""
        beginning: asyncio.Task[None] | None = None
        number = 0
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                if beginning is not None and beginning.done():
                    beginning.result()  # a defect in it ends the process
                if number == self._number:
                    continue
                number = self._number
                if beginning is not None:
                    await _cancelled(beginning)
                    beginning = None
                if self._won is not None:
                    beginning = asyncio.create_task(self._begin(self._won, number))
                    beginning.add_done_callback(lambda _task: self._changed.set())
        finally:
            if beginning is not None:
                await _cancelled(beginning)

    async def _begin(self, won: Won, number: int) -> None:
        if not won.was_released:
            log.info("waiting-out-earlier-leader", earlier=won.previous_holder, seconds=self._wait_seconds)
            await self._clock.sleep(self._wait_seconds)
        await self._informers.resync()
        if number != self._number:
            return
        self._bookkeeper.begin_term(self._informers.pods.values())
        for node in list(self._informers.nodes.values()):
            self._bookkeeper.node_seen(node)
        self._tell(True)

    def _tell(self, in_charge: bool) -> None:
        self._metrics.in_charge.set(int(in_charge))
        for listener in self._listeners:
            listener(in_charge)


class SoleLeader:
    """Leadership where there is no election: this process is certainly the only scheduler."""

    @property
    def is_leader(self) -> bool:
        return True

    def remaining_seconds(self) -> float:
        return math.inf


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
