"""The node's lock while the watch of nodes, or what gives a lock back, is late."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
from hami_model import keys
from hami_scheduler.config import BindSettings, UpkeepSettings
from hami_sim.fake_kube import FakeKube
from hami_sim.fake_kube.faults import Hold
from scheduler_builders import ALLOCATED_KEY, HANDSHAKE_KEY, Json, node, pod
from scheduler_service import Scheduler, eventually, running, settings_for

N1 = ["n1"]


@pytest.fixture
async def scheduler(fake_kube: FakeKube) -> AsyncIterator[Scheduler]:
    """A replica over a node whose hand-off is `lock`; a bind gives up soon."""
    fake_kube.put("nodes", node("n1", handoff="lock"))
    bind = BindSettings(timeout_seconds=20.0, lock_wait_seconds=0.5)
    upkeep = UpkeepSettings(node_pass_seconds=3600.0)  # it would stamp the node again while the watch is late
    async with running(settings_for(fake_kube.url, bind=bind, upkeep=upkeep)) as found:
        # The stamp is one more write on the node; it is out of the way then.
        await eventually(lambda: HANDSHAKE_KEY in fake_kube.get("nodes", "n1")["metadata"]["annotations"])
        yield found


def lock_of(fake: FakeKube) -> str:
    return str(fake.get("nodes", "n1")["metadata"]["annotations"].get(keys.NODE_LOCK, ""))


async def failed_bind(fake: FakeKube, scheduler: Scheduler, created: Json) -> Hold:
    """The pod has taken the lock, and could not be bound. Giving the lock back stands still."""
    giving_back = fake.hold("patch", "nodes", nth=2)
    fake.fail("create", "pods/binding", 403)
    await scheduler.filter(created, N1)
    assert (await scheduler.bind(created, "n1"))["Error"] != ""
    await giving_back.reached.wait()
    assert lock_of(fake).endswith(",default,a")
    return giving_back


async def nothing_waits(scheduler: Scheduler) -> bool:
    return await scheduler.metric("hami_scheduler_chores_waiting") == 0


async def knows_nodes(scheduler: Scheduler, count: int) -> bool:
    return await scheduler.metric("hami_scheduler_nodes") == count


async def test_a_lock_that_only_the_watch_still_shows_is_nobodys(fake_kube: FakeKube, scheduler: Scheduler) -> None:
    """It was given back, and another pod has it."""
    created = fake_kube.put("pods", pod("a"))
    giving_back = await failed_bind(fake_kube, scheduler, created)
    fake_kube.put("nodes", node("n2"))
    await eventually(lambda: knows_nodes(scheduler, 2))  # so the watch has brought the lock, too
    fake_kube.pause_watches("nodes")
    giving_back.release()
    await eventually(lambda: lock_of(fake_kube) == "")
    waiting = {ALLOCATED_KEY: "n1-0,NVIDIA,1,0:;", keys.BIND_PHASE: keys.BIND_PHASE_ALLOCATING}
    fake_kube.put("pods", pod("b", node_name="n1", annotations={**waiting, keys.BIND_TIME: str(int(time.time()))}))
    other = fake_kube.get("nodes", "n1")
    other["metadata"]["annotations"][keys.NODE_LOCK] = f"{time.strftime('%FT%TZ', time.gmtime())},default,b"
    fake_kube.put("nodes", other)
    await scheduler.filter(created, N1)
    assert "node lock contention" in (await scheduler.bind(created, "n1"))["Error"]
    assert lock_of(fake_kube).endswith(",default,b")


async def test_what_gives_a_lock_back_late_leaves_the_one_of_the_next_bind(
    fake_kube: FakeKube, scheduler: Scheduler
) -> None:
    created = fake_kube.put("pods", pod("a"))
    giving_back = await failed_bind(fake_kube, scheduler, created)
    taken = lock_of(fake_kube)
    # Locks tell seconds, and kube-scheduler tries a pod again after a second at the earliest.
    await eventually(lambda: time.strftime("%FT%TZ", time.gmtime()) > taken)
    await scheduler.filter(created, N1)
    assert await scheduler.bind(created, "n1") == {"Error": ""}
    giving_back.release()
    await eventually(lambda: nothing_waits(scheduler))
    assert lock_of(fake_kube).endswith(",default,a")


async def test_a_lock_whose_taking_got_no_answer_is_given_back(fake_kube: FakeKube, scheduler: Scheduler) -> None:
    created = fake_kube.put("pods", pod("a"))
    await scheduler.filter(created, N1)
    fake_kube.cut("patch", "nodes", after_effect=True)
    assert "it may have happened" in (await scheduler.bind(created, "n1"))["Error"]
    assert fake_kube.count("create", "pods/binding") == 0
    await eventually(lambda: lock_of(fake_kube) == "")
