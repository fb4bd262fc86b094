"""A process is a short list of named root tasks; when one ends, the process ends.

Stopping (SIGTERM, SIGINT, or a root task that ended) happens stage by stage, in the order of `Stage`: the tasks of a
stage are cancelled, given their time to finish, and only then comes the next stage.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from enum import IntEnum
from typing import Any, NamedTuple

import uvloop

from hami_chassis.log import get_logger

log = get_logger("run")


class Stage(IntEnum):
    """When a root task is stopped: lower stages first."""

    INTAKE = 0
    """Servers that take work from outside: no new work from here on."""
    LEADERSHIP = 1
    """The lease is given back, so that another one may start."""
    WORK = 2
    """Loops that act."""
    SOURCES = 3
    """Informers and subscriptions that feed the loops."""
    OUTBOX = 4
    """What still has to be announced: bus, Kubernetes Events."""
    OBSERVATION = 5
    """Health and metrics: they answer until the end."""


class RootTask(NamedTuple):
    """One named activity of the process. `run` ends by cancellation only; ending otherwise ends the process."""

    name: str
    run: Callable[[], Coroutine[Any, Any, None]]
    stage: Stage = Stage.WORK


Build = Callable[[AsyncExitStack], Awaitable[Sequence[RootTask]]]
"""Builds all objects and names the root tasks; what must be closed at the very end goes on the stack."""


def run_process(build: Build, *, stage_grace_seconds: float = 10.0) -> int:
    """Runs the process on uvloop until a signal or until a root task ends. Returns the exit status.

    0 after a signal, 1 when a root task ended by itself or could not be stopped in its time.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run_with_signals(build, stage_grace_seconds))


async def _run_with_signals(build: Build, stage_grace_seconds: float) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop_by(signal_name: str) -> None:
        if stop.is_set():
            log.error("stopped-by-second-signal", signal=signal_name)
            os._exit(1)
        log.info("stop-requested", signal=signal_name)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_by, number.name)
    try:
        async with AsyncExitStack() as stack:
            return await supervise(await build(stack), stop=stop, stage_grace_seconds=stage_grace_seconds)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def supervise(root_tasks: Sequence[RootTask], *, stop: asyncio.Event, stage_grace_seconds: float = 10.0) -> int:
    """Runs the root tasks until `stop` is set or one of them ends, then stops all in order of their stage."""
    names = [root.name for root in root_tasks]
    if len(set(names)) != len(names):
        raise ValueError(f"root tasks need names of their own: {sorted(names)}")
    failed = False
    async with asyncio.TaskGroup() as group:
        tasks = {root.name: group.create_task(_contained(root), name=f"root:{root.name}") for root in root_tasks}
        stop_waiter = group.create_task(_until_set(stop), name="stop")
        log.info("started", root_tasks=names)
        await asyncio.wait([stop_waiter, *tasks.values()], return_when=asyncio.FIRST_COMPLETED)
        for name, task in tasks.items():
            if task.done():
                failed = True
                _report_end(name, None if task.cancelled() else task.result())
        stop_waiter.cancel()
        for stage in Stage:
            members = {root.name: tasks[root.name] for root in root_tasks if root.stage is stage}
            failed |= not await _stop_stage(stage, members, stage_grace_seconds)
    log.info("stopped", failed=failed)
    return 1 if failed else 0


async def _until_set(stop: asyncio.Event) -> None:
    await stop.wait()


async def _contained(root: RootTask) -> Exception | None:
    """Runs one root task and returns what it raised, so that the group does not cancel the others out of order."""
    try:
        await root.run()
    except Exception as error:  # noqa: BLE001  # the boundary of the process: reported with its name, then it ends
        return error
    return None


def _report_end(name: str, error: Exception | None) -> None:
    if error is None:
        log.error("root-task-ended", root_task=name)
    else:
        log.error("root-task-failed", root_task=name, error=str(error), exc_info=error)


async def _stop_stage(stage: Stage, tasks: dict[str, asyncio.Task[Exception | None]], grace: float) -> bool:
    running = {name: task for name, task in tasks.items() if not task.done()}
    if not running:
        return True
    log.info("stopping", stage=stage.name.lower(), root_tasks=sorted(running))
    clean = True
    for task in running.values():
        task.cancel()
    await asyncio.wait(running.values(), timeout=grace)
    for name, task in running.items():
        if not task.done():
            clean = False
            log.error("root-task-did-not-stop", root_task=name, grace_seconds=grace)
            task.cancel()
        elif not task.cancelled() and (error := task.result()) is not None:
            clean = False
            _report_end(name, error)
    return clean
