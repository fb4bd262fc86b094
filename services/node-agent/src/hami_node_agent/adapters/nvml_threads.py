"""Threads for calls of the driver: one for each card, so that a card whose calls hang holds up no other."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from hami_chassis.errors import Transient

T = TypeVar("T")

_PORTIONS = 4
"""In which an answer is waited for. While this process itself stands still, as on a machine that is paused, one of them
runs out at most, and the driver has the others."""


class NotAnsweringError(Transient):
    """The driver has not come back from a call."""


class _Job(msgspec.Struct):
    work: Callable[[], Any]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class DriverThread:
    """Calls one after the other. Nobody waits for the thread at the process's end: a call of the driver may hang."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._under_way = 0
        """Calls that are begun or wait to be; only the loop's thread counts."""
        self._is_overdue = False
        threading.Thread(target=self._work, name=name, daemon=True).start()

    @property
    def is_overdue(self) -> bool:
        """A call took longer than its caller waited, and has not come back."""
        return self._is_overdue

    @property
    def is_idle(self) -> bool:
        return self._under_way == 0

    async def call(self, work: Callable[[], T], timeout_seconds: float) -> T:
        """What `work` answers. Raises what it raises, and NotAnsweringError; at once while an earlier call hangs.

        `timeout_seconds` are those of a process that runs.
        """
        if self._is_overdue:
            raise NotAnsweringError(f"{self._name}: an earlier call of the driver has not come back yet")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._under_way += 1
        self._jobs.put(_Job(work, future, loop))
        try:
            for _ in range(_PORTIONS):
                done, _pending = await asyncio.wait((future,), timeout=timeout_seconds / _PORTIONS)
                if done:
                    return future.result()
        except asyncio.CancelledError:
            future.add_done_callback(_retrieve)
            raise
        self._is_overdue = True
        future.add_done_callback(_retrieve)
        raise NotAnsweringError(f"{self._name}: the driver has not answered in {timeout_seconds:g} s")

    def close(self) -> None:
        """The thread ends after what it is doing."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            result, error = None, None
            try:
                result = job.work()
            except BaseException as raised:  # noqa: BLE001  # goes to whoever waits
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                job.loop.call_soon_threadsafe(self._came_back, job.future, result, error)

    def _came_back(self, future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
        self._under_way -= 1
        self._is_overdue = self._is_overdue and not self.is_idle
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Nobody waits for the answer any more; what it raised is not to be reported as lost."""
    if not future.cancelled():
        future.exception()
