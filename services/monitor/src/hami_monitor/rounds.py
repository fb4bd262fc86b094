"""What the monitor's loops have in common: they look again and again, and tell of regions that could not be written."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from hami_chassis.clock import Clock
from hami_chassis.log import get_logger

from hami_monitor.core.region_words import RegionMovedError
from hami_monitor.metrics import MonitorMetrics

log = get_logger("rounds")


async def look_for_ever(
    look: Callable[[], Awaitable[None]], *, period_seconds: float, once: asyncio.Event, clock: Clock
) -> NoReturn:
    """`look`, a pause, and so on; the first time when `once` is set."""
    await once.wait()
    while True:
        await look()
        await clock.sleep(period_seconds)


@contextmanager
def told_if_not_written(metrics: MonitorMetrics, **who: object) -> Iterator[None]:
    """Around the writing of one region: a container can take its file away at any moment, which is no fault of ours."""
    try:
        yield
    except RegionMovedError as error:
        metrics.write_failures.labels("replaced").inc()
        log.info("region-not-written", why=str(error), **who)
    except OSError as error:
        metrics.write_failures.labels("refused").inc()
        log.warning("region-not-written", why=error.strerror, **who)
