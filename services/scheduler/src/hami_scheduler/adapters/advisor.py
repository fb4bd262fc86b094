"""Looks for the change that would have placed a rejected pod, off the path of decisions.

It is bounded: one look at a time, a bounded number of pods wait for one, and after each it rests a few times as long as
the look took. What finds no place is told without advice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import hami_engine as engine
from hami_chassis.clock import Clock

from hami_scheduler.core.advice import Case, Looked

WAITING_MAX: Final = 256
_RESTS: Final = 4


class Advisor:
    """An Adviser. Root task `run`."""

    def __init__(self, cluster: engine.Cluster, *, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._cases: asyncio.Queue[tuple[Case, Callable[[Looked], None]]] = asyncio.Queue(WAITING_MAX)

    def take(self, case: Case, tell: Callable[[Looked], None]) -> bool:
        """`tell` follows later, on the loop. False: too many wait already, and it never follows."""
        if self._cases.full():
            return False
        self._cases.put_nowait((case, tell))
        return True

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            case, tell = await self._cases.get()
            began = self._clock.monotonic()
            tell(await asyncio.to_thread(case.look, self._cluster))
            await self._clock.sleep(_RESTS * (self._clock.monotonic() - began))
