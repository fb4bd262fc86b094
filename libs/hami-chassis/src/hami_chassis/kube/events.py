"""Kubernetes Events, written behind the back of the caller: bounded, merged, and never in its way."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from datetime import datetime
from typing import Literal

import msgspec

from hami_chassis.clock import Clock
from hami_chassis.errors import Permanent, Transient
from hami_chassis.kube.client import KubeClient
from hami_chassis.kube.errors import AlreadyExists, NotFound
from hami_chassis.kube.objects import MetadataOnly
from hami_chassis.kube.resources import EVENTS
from hami_chassis.log import get_logger
from hami_chassis.metrics import ChassisMetrics
from hami_chassis.retry import DEFAULT_BACKOFF, Backoff

log = get_logger("kube-events")

MAX_MESSAGE_CHARACTERS = 1023  # the API refuses 1,024 and more
_MERGE_SECONDS = 600.0  # the same thing within ten minutes is one Event with a count
_MAX_REMEMBERED = 4096
_TRIES = 4
_LAST_TRIES = 2  # of a stopping process; the second one is for a write that was cut off and had happened


class ObjectReference(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What an Event is about."""

    api_version: str = "v1"
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _Key(msgspec.Struct, frozen=True):
    about: ObjectReference
    event_type: str
    reason: str
    message: str


class _Written(msgspec.Struct):
    """An Event that is or will be at the server."""

    name: str
    count: int
    first: str
    last: str
    at: float
    created: bool = False
    queued: bool = True


class EventRecorder:
    """`emit` returns at once; the root task `run` writes. Every Event that is lost is counted."""

    def __init__(
        self,
        client: KubeClient,
        *,
        component: str,
        instance: str,
        metrics: ChassisMetrics,
        clock: Clock,
        max_queued: int = 1000,
        backoff: Backoff = DEFAULT_BACKOFF,
    ) -> None:
        self._client = client
        self._component = component
        self._instance = instance
        self._clock = clock
        self._ends = metrics.kube_events
        self._max_queued = max_queued
        self._backoff = backoff
        self._known: OrderedDict[_Key, _Written] = OrderedDict()
        self._queue: asyncio.Queue[_Key] = asyncio.Queue()
        self._serial = 0

    def emit(
        self, about: ObjectReference, *, reason: str, message: str, event_type: Literal["Normal", "Warning"] = "Normal"
    ) -> bool:
        """Takes one Event. False when the queue is full: the Event is lost, and counted as dropped."""
        key = _Key(about, event_type, reason, shorten(message))
        now = self._clock.monotonic()
        stamp = _second_time(self._clock.now())
        written = self._known.get(key)
        if written is not None and now - written.at < _MERGE_SECONDS:
            written.count += 1
            written.last, written.at = stamp, now
            self._ends.labels("merged").inc()
            if written.queued:
                return True
        elif self._queue.qsize() >= self._max_queued:
            self._ends.labels("dropped").inc()
            return False
        else:
            self._serial += 1
            # A name is at most 253 characters; the suffix is unique to this process and this Event.
            name = f"{about.name[:200]}.{int(self._clock.now().timestamp() * 1e6):x}.{self._serial:x}"
            written = _Written(name=name, count=1, first=stamp, last=stamp, at=now)
            self._known[key] = written
        if self._queue.qsize() >= self._max_queued:
            return True  # the count goes out with the next one of its kind
        written.queued = True
        self._known.move_to_end(key)
        self._queue.put_nowait(key)
        self._forget_oldest()
        return True

    async def run(self) -> None:
        """Writes until cancelled; then writes what is queued, for as long as the grace of the stage lasts."""
        writing: _Key | None = None
        try:
            while True:
                writing = await self._queue.get()
                await self._write(writing, tries=_TRIES)
                writing = None
        except asyncio.CancelledError:
            if writing is not None:
                await self._write(writing, tries=_LAST_TRIES)
            while not self._queue.empty():
                await self._write(self._queue.get_nowait(), tries=_LAST_TRIES)
            raise

    def _forget_oldest(self) -> None:
        while len(self._known) > _MAX_REMEMBERED:
            key, written = next(iter(self._known.items()))
            if written.queued:
                return
            del self._known[key]

    async def _write(self, key: _Key, *, tries: int) -> None:
        written = self._known[key]
        written.queued = False
        for number in range(1, tries + 1):
            try:
                await (self._patch(key, written) if written.created else self._create(key, written))
            except AlreadyExists:
                written.created = True  # a create without an answer had happened: only the count is missing
            except NotFound:
                written.created = False  # it has aged out at the server: write it anew
            except Transient as error:
                if number < tries:
                    await self._clock.sleep(max(self._backoff.delay_seconds(number), error.retry_after_seconds or 0.0))
            except Permanent as error:
                log.warning("event-refused", reason=key.reason, about=key.about.name, error=str(error))
                break
            else:
                written.created = True
                self._ends.labels("written").inc()
                return
        self._ends.labels("failed").inc()
        if not written.queued and self._known.get(key) is written:  # else it was said again meanwhile
            del self._known[key]

    async def _create(self, key: _Key, written: _Written) -> None:
        namespace = key.about.namespace or "default"
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": written.name, "namespace": namespace},
            "involvedObject": key.about,
            "type": key.event_type,
            "reason": key.reason,
            "message": key.message,
            "count": written.count,
            "firstTimestamp": written.first,
            "lastTimestamp": written.last,
            "source": {"component": self._component, "host": self._instance},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
        }
        await self._client.create(EVENTS, body, namespace=namespace, into=MetadataOnly)

    async def _patch(self, key: _Key, written: _Written) -> None:
        await self._client.patch(
            EVENTS,
            written.name,
            {"count": written.count, "lastTimestamp": written.last},
            namespace=key.about.namespace or "default",
            into=MetadataOnly,
        )


def shorten(message: str) -> str:
    """The message within the limit of the API; what is cut off is marked."""
    if len(message) <= MAX_MESSAGE_CHARACTERS:
        return message
    return message[: MAX_MESSAGE_CHARACTERS - 1] + "…"


def _second_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
