"""Brings the allocation stream up to date: after an outage that overflowed the outbox, and at the start of a term."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hami_chassis.bus import Bus
from hami_chassis.clock import Clock
from hami_chassis.errors import Transient
from hami_chassis.log import get_logger
from hami_chassis.retry import DEFAULT_BACKOFF
from hami_model import events, kube
from hami_model.events import streams, subjects

from hami_scheduler.bookkeeper import Bookkeeper
from hami_scheduler.core.announcements import Announcements
from hami_scheduler.core.catch_up import missing_events

log = get_logger("catch-up")


class CatchUp:
    """Root task `run`; `request` asks for one round."""

    def __init__(
        self,
        bus: Bus,
        bookkeeper: Bookkeeper,
        announcements: Announcements,
        *,
        pod_of: Callable[[str], kube.Pod | None],
        prefix: str,
        clock: Clock,
    ) -> None:
        self._bus = bus
        self._bookkeeper = bookkeeper
        self._announcements = announcements
        self._pod_of = pod_of
        self._prefix = prefix
        self._clock = clock
        self._due = asyncio.Event()

    def request(self) -> None:
        """Something may be missing in the stream."""
        self._due.set()

    def term_changed(self, in_charge: bool) -> None:
        """A new leader closes chains that it finds open."""
        if in_charge:
            self.request()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            number = 0
            while self._bookkeeper.in_charge:
                await self._bus.wait_connected()
                try:
                    stored = await self._stored()
                except Transient as error:
                    number += 1
                    log.warning("stream-not-read", error=str(error))
                    await self._clock.sleep(DEFAULT_BACKOFF.delay_seconds(number))
                    continue
                self._tell(stored)
                break

    async def _stored(self) -> list[events.AllocationEvent]:
        found: list[events.AllocationEvent] = []
        stream = streams.stream_name("ALLOCATION", prefix=self._prefix)
        async for message in self._bus.last_per_subject(stream, subjects.family("allocation", prefix=self._prefix)):
            try:
                event = events.decode(message.payload)
            except events.MalformedEvent as error:
                log.warning("stored-event-unreadable", subject=message.subject, error=str(error))
                continue
            if isinstance(event, events.AllocationEvent):
                found.append(event)
        return found

    def _tell(self, stored: list[events.AllocationEvent]) -> None:
        told = missing_events(stored, self._bookkeeper.ledger, self._pod_of, self._announcements, self._clock.now())
        self._bookkeeper.publish_all(told)
        log.info("stream-caught-up", stored=len(stored), published=len(told))
