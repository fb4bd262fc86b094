"""A thread for each card: what hangs there is told of, and holds up nobody."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from hami_node_agent.adapters.nvml_threads import DriverThread, NotAnsweringError


async def test_answers_and_errors_come_to_who_asked() -> None:
    thread = DriverThread("card A")

    assert await thread.call(lambda: 7, 60) == 7
    with pytest.raises(ZeroDivisionError):
        await thread.call(lambda: 1 // 0, 60)
    assert thread.is_idle


async def test_while_a_call_hangs_nobody_waits_again_and_afterwards_all_is_well() -> None:
    thread, other, release = DriverThread("card A"), DriverThread("card B"), threading.Event()
    with pytest.raises(NotAnsweringError, match="card A: the driver has not answered"):
        await thread.call(release.wait, 0.01)

    assert (thread.is_overdue, other.is_overdue) == (True, False)
    with pytest.raises(NotAnsweringError, match="has not come back yet"):
        await thread.call(lambda: 7, 60)
    assert await other.call(lambda: 8, 60) == 8
    release.set()
    while thread.is_overdue:
        await other.call(lambda: None, 60)

    assert await thread.call(lambda: 9, 60) == 9


async def test_an_answer_that_came_while_the_agent_itself_stood_still_counts() -> None:
    """As where the machine was paused: it is no fault of the card."""
    thread, next_one_began = DriverThread("card"), threading.Event()
    answer = asyncio.create_task(thread.call(lambda: 7, 0.05))
    after_it = asyncio.create_task(thread.call(next_one_began.set, 60))
    await asyncio.sleep(0)  # they are under way
    assert next_one_began.wait(60)  # nothing of the agent runs until the answer is there
    time.sleep(0.1)  # noqa: ASYNC251  # and the time is over
    assert await answer == 7
    await after_it
    assert not thread.is_overdue
    thread.close()
