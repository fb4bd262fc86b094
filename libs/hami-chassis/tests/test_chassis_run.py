"""Root tasks: one that ends ends the process, by name; stopping goes stage by stage."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hami_chassis.run import RootTask, Stage, supervise
from structlog.testing import capture_logs


async def for_ever() -> None:
    await asyncio.Event().wait()


async def ends() -> None:
    return


async def fails() -> None:
    raise KeyError("broken")


@pytest.mark.parametrize(
    ("run", "event"),
    [
        pytest.param(ends, "root-task-ended", id="a task that returns"),
        pytest.param(fails, "root-task-failed", id="a task that raises"),
    ],
)
async def test_a_root_task_that_ends_ends_the_process_and_is_named(run, event):
    with capture_logs() as logs:
        status = await supervise([RootTask("good", for_ever), RootTask("odd", run)], stop=asyncio.Event())
    assert status == 1
    assert [line["root_task"] for line in logs if line["event"] == event] == ["odd"]


async def test_a_task_that_cancels_itself_is_one_that_ended():
    async def cancels() -> None:
        raise asyncio.CancelledError

    assert await supervise([RootTask("odd", cancels), RootTask("good", for_ever)], stop=asyncio.Event()) == 1


async def test_stopping_goes_stage_by_stage():
    stopped: list[str] = []
    stop = asyncio.Event()

    def task(name: str, stage: Stage, pause: int) -> RootTask:
        async def run() -> None:
            try:
                await for_ever()
            finally:
                for _ in range(pause):
                    await asyncio.sleep(0)
                stopped.append(name)

        return RootTask(name, run, stage)

    tasks = [
        task("metrics", Stage.OBSERVATION, 0),
        task("bus", Stage.OUTBOX, 1),
        task("http", Stage.INTAKE, 7),
        task("lease", Stage.LEADERSHIP, 3),
        task("informer", Stage.SOURCES, 0),
        task("loop", Stage.WORK, 2),
        task("other-loop", Stage.WORK, 1),
    ]
    supervisor = asyncio.create_task(supervise(tasks, stop=stop))
    await asyncio.sleep(0.01)
    stop.set()
    assert await supervisor == 0
    assert stopped == ["http", "lease", "other-loop", "loop", "informer", "bus", "metrics"]


async def test_a_task_that_does_not_stop_in_its_time_is_named_and_cancelled_again():
    stop = asyncio.Event()

    async def stubborn() -> None:
        try:
            await for_ever()
        except asyncio.CancelledError:
            await for_ever()

    supervisor = asyncio.create_task(supervise([RootTask("stubborn", stubborn)], stop=stop, stage_grace_seconds=0.02))
    await asyncio.sleep(0.01)
    with capture_logs() as logs:
        stop.set()
        assert await supervisor == 1
    assert [line["root_task"] for line in logs if line["event"] == "root-task-did-not-stop"] == ["stubborn"]


async def test_a_task_that_fails_while_stopping_is_told():
    stop = asyncio.Event()

    async def fails_late() -> None:
        try:
            await for_ever()
        finally:
            raise KeyError("late")

    supervisor = asyncio.create_task(supervise([RootTask("late", fails_late)], stop=stop))
    await asyncio.sleep(0.01)
    with capture_logs() as logs:
        stop.set()
        assert await supervisor == 1
    assert "root-task-failed" in [line["event"] for line in logs]


async def test_names_are_unique():
    with pytest.raises(ValueError, match="names of their own"):
        await supervise([RootTask("a", for_ever), RootTask("a", for_ever)], stop=asyncio.Event())


PROGRAM = """
import asyncio, sys
from hami_chassis.log import LogSettings, configure_logging
from hami_chassis.run import RootTask, run_process
async def work():
    print("working", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        print("stopping", flush=True)
        await asyncio.sleep(float(sys.argv[1]))
        print("clean", flush=True)
async def build(stack):
    stack.callback(lambda: print("closed", flush=True))
    return [RootTask("work", work)]
configure_logging(LogSettings(), service="test")
sys.exit(run_process(build))
"""


@contextmanager
def started(pause_seconds: float) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(pause_seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_process_cleanly(number):
    with started(0) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        process.send_signal(number)
        assert process.stdout.read() == "stopping\nclean\nclosed\n"
        assert process.wait() == 0


def test_a_second_signal_ends_it_at_once():
    with started(3600) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 1
