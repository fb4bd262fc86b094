"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class ManualClock:
    """Implements `hami_chassis.clock.Clock`. `advance` wakes the sleepers whose time has come, in its order."""

    def __init__(self, *, now: datetime = _BEGIN) -> None:
        self._now = now
        self._elapsed = 0.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []
        self._changed = asyncio.Event()

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (self._elapsed + seconds, waiter)
        self._sleepers.append(entry)
        self._changed.set()
        try:
            await waiter
        finally:
            if entry in self._sleepers:
                self._sleepers.remove(entry)

    def advance(self, seconds: float) -> None:
        """Moves both clocks on."""
        self._elapsed += seconds
        self._now += timedelta(seconds=seconds)
        for entry in sorted(self._sleepers, key=lambda each: each[0]):
            if entry[0] <= self._elapsed:
                self._sleepers.remove(entry)
                if not entry[1].done():
                    entry[1].set_result(None)

    @property
    def sleeping(self) -> int:
        """How many wait for their time."""
        return len(self._sleepers)

    async def wait_for_sleepers(self, count: int = 1) -> None:
        """Returns once that many wait: whatever was going on has come to rest."""
        while len(self._sleepers) < count:
            self._changed.clear()
            await self._changed.wait()
