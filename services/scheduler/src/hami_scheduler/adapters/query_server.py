"""Answers queries on the bus, while this process leads: followers would answer from a book without reservations.

The micro protocol shares queries out among all that serve them, so a follower must not serve at all: the service has
a connection of its own that lives as long as the term.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import TypeVar

import msgspec
from hami_chassis.bus import Bus, BusSettings, Endpoint, Message, MicroService, Reply
from hami_chassis.errors import Permanent, Transient
from hami_chassis.metrics import ChassisMetrics
from hami_model import kube
from hami_model.events import subjects
from prometheus_client import CollectorRegistry

from hami_scheduler.bookkeeper import Bookkeeper
from hami_scheduler.core import explanations, plans, queries, snapshots

_PAYLOAD_MAX = 1_000_000  # NATS takes 1 MiB unless told otherwise, headers included
_Q = TypeVar(
    "_Q", queries.StateQuestion, explanations.ExplainQuestion, plans.WhatIfQuestion, snapshots.SnapshotQuestion
)


class QueryServer:
    """Root task `run`."""

    def __init__(
        self,
        bookkeeper: Bookkeeper,
        *,
        settings: BusSettings,
        prefix: str,
        find_pod: Callable[[str, str], Awaitable[kube.Pod | None]],
    ) -> None:
        """`find_pod(namespace, name)`: the live pod of that name. It may raise Transient and Permanent."""
        self._bookkeeper = bookkeeper
        self._settings = settings
        self._prefix = prefix
        self._find_pod = find_pod
        self._changed = asyncio.Event()
        self._snapshots = snapshots.Snapshots()

    def term_changed(self, _in_charge: bool) -> None:
        """Begins or ends to answer."""
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        serving: asyncio.Task[None] | None = None
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                if serving is not None and serving.done():
                    serving.result()  # a defect in it ends the process
                wanted = self._bookkeeper.in_charge and bool(self._settings.servers)
                if wanted and serving is None:
                    serving = asyncio.create_task(self._bus().run())
                    serving.add_done_callback(lambda _task: self._changed.set())
                elif serving is not None and not wanted:
                    await _ended(serving)
                    serving = None
        finally:
            if serving is not None:
                await _ended(serving)

    def _bus(self) -> Bus:
        # Counts of this connection would only hide those of the one that carries the events.
        bus = Bus(self._settings, name="scheduler-queries", metrics=ChassisMetrics(CollectorRegistry()))
        endpoints = {
            "state": self._state,
            "explain": self._explain,
            "what-if": self._what_if,
            "snapshot": self._snapshot,
        }
        bus.serve(
            MicroService(
                name="hami-scheduler",
                version=version("hami-scheduler"),
                description="The scheduler's book: what is held, why a pod waits, what would fit.",
                endpoints=[
                    Endpoint(name=name, subject=subjects.query(name, prefix=self._prefix), answer=answer)
                    for name, answer in endpoints.items()
                ],
            )
        )
        return bus

    async def _state(self, message: Message) -> Reply:
        asked = _question(message, queries.StateQuestion)
        if isinstance(asked, Reply):
            return asked
        return _reply(queries.state(self._bookkeeper.ledger, asked, len(self._bookkeeper.rejected)))

    async def _explain(self, message: Message) -> Reply:
        asked = _question(message, explanations.ExplainQuestion)
        if isinstance(asked, Reply):
            return asked
        try:
            pod = await self._find_pod(asked.namespace, asked.name)
        except (Transient, Permanent) as error:
            return Reply(
                error_code="503",
                error_description=f"pod {asked.namespace}/{asked.name} is not known, and the API server does not say "
                f"whether there is such a pod: {error}",
            )
        if pod is None:
            return Reply(
                error_code="404",
                error_description=f"no live pod {asked.namespace}/{asked.name} asks for cards or holds some",
            )
        ledger = self._bookkeeper.ledger
        found = explanations.prepare(ledger, pod, asked)
        if isinstance(found, explanations.Waiting):
            # Thousands of nodes take a while: beside the loop, which goes on answering.
            told = await asyncio.to_thread(found.look)
            found = found.answer(told, lambda uid: explanations.named_pod(ledger, uid))
        return _reply(found)

    async def _what_if(self, message: Message) -> Reply:
        asked = _question(message, plans.WhatIfQuestion)
        if isinstance(asked, Reply):
            return asked
        # Many pods take a while: beside the loop, which goes on answering.
        return _reply(await asyncio.to_thread(plans.what_if, self._bookkeeper.ledger, asked))

    async def _snapshot(self, message: Message) -> Reply:
        asked = _question(message, snapshots.SnapshotQuestion)
        if isinstance(asked, Reply):
            return asked
        if asked.ticket:
            part = self._snapshots.part(asked)
            if part is None:
                return Reply(
                    error_code="404", error_description="this snapshot is not kept any more; ask for a new one"
                )
            return _reply(part)
        cluster = self._bookkeeper.ledger.cluster
        if asked.recorded:
            recorded = await asyncio.to_thread(snapshots.write_recorded, cluster, anonymise=asked.anonymise)
            if recorded is None:
                return Reply(error_code="404", error_description="nothing is recorded: set placement.record_steps")
            return _reply(self._snapshots.keep(recorded))
        questions = snapshots.waiting(cluster, self._bookkeeper.rejected.values())
        written = await asyncio.to_thread(snapshots.write, cluster, questions, anonymise=asked.anonymise)
        return _reply(self._snapshots.keep(written))


def _question(message: Message, into: type[_Q]) -> _Q | Reply:
    try:
        return msgspec.json.decode(message.payload or b"{}", type=into)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Reply(error_code="400", error_description=f"the question cannot be read: {error}")


def _reply(answer: msgspec.Struct) -> Reply:
    payload = msgspec.json.encode(answer)
    if len(payload) > _PAYLOAD_MAX:
        return Reply(error_code="413", error_description="the answer is too large for one message; ask for less")
    return Reply(payload=payload)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
