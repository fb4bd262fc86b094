"""The node's lock while the watch of nodes, or what gives a lock back, is late."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from hami_model import keys
from hami_scheduler.config import BindSettings, UpkeepSettings
from hami_sim.fake_kube import FakeKube
from hami_sim.fake_kube.faults import Hold
from scheduler_builders import ALLOCATED_KEY, HANDSHAKE_KEY, Json, node, pod
from scheduler_service import Scheduler, eventually, running, series, settings_for

N1 = ["n1"]


@pytest.fixture
async def scheduler(fake_kube: FakeKube) -> AsyncIterator[Scheduler]:
    """A replica over a node whose hand-off is `lock`; a bind looks at a lock twice, and gives up."""
    fake_kube.put("nodes", node("n1", handoff="lock"))
    bind = BindSettings(timeout_seconds=20.0, lock_wait_seconds=0.001)
    upkeep = UpkeepSettings(node_pass_seconds=3600.0)  # it would stamp the node again while the watch is late
    async with running(settings_for(fake_kube.url, bind=bind, upkeep=upkeep)) as found:
        # The stamp is one more write on the node; it is out of the way then, and the scheduler has seen it.
        await eventually(lambda: HANDSHAKE_KEY in fake_kube.get("nodes", "n1")["metadata"]["annotations"])
        await nodes_are_seen(fake_kube, found)
        yield found


async def nodes_are_seen(fake: FakeKube, scheduler: Scheduler) -> None:
    """Returns when the watch has brought what the nodes are now."""
    name = f"plain-{len(fake.all('nodes'))}"
    fake.put("nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    there = len(fake.all("nodes"))

    async def brought() -> bool:
        _, text = await scheduler.observe("/metrics")
        return series(text, "hami_informer_objects", resource="nodes") == there

    await eventually(brought)


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


async def test_a_lock_that_only_the_watch_still_shows_is_nobodys(fake_kube: FakeKube, scheduler: Scheduler) -> None:
    """It was given back, and another pod has it."""
    created = fake_kube.put("pods", pod("a"))
    giving_back = await failed_bind(fake_kube, scheduler, created)
    await nodes_are_seen(fake_kube, scheduler)
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


def free_lock(fake: FakeKube) -> None:
    freed = fake.get("nodes", "n1")
    del freed["metadata"]["annotations"][keys.NODE_LOCK]
    fake.put("nodes", freed)


def is_woken(fake: FakeKube, name: str) -> bool:
    return keys.WAKE in fake.get("pods", name, "default")["metadata"].get("annotations", {})


async def test_a_freed_lock_wakes_the_pod_that_waited_for_it_in_vain(fake_kube: FakeKube, scheduler: Scheduler) -> None:
    first, second = fake_kube.put("pods", pod("a")), fake_kube.put("pods", pod("b"))
    await scheduler.filter(first, N1)
    await scheduler.bind(first, "n1")
    await nodes_are_seen(fake_kube, scheduler)
    await scheduler.filter(second, N1)
    assert "node lock contention" in (await scheduler.bind(second, "n1"))["Error"]
    assert not is_woken(fake_kube, "b")
    free_lock(fake_kube)
    await eventually(lambda: is_woken(fake_kube, "b"))


async def test_a_freed_lock_wakes_also_a_pod_that_no_watch_has_told_of(
    fake_kube: FakeKube, scheduler: Scheduler
) -> None:
    first = fake_kube.put("pods", pod("a"))
    await scheduler.filter(first, N1)
    await scheduler.bind(first, "n1")
    await nodes_are_seen(fake_kube, scheduler)
    fake_kube.pause_watches("pods")
    second = fake_kube.put("pods", pod("b"))
    await scheduler.filter(second, N1)
    assert "node lock contention" in (await scheduler.bind(second, "n1"))["Error"]
    free_lock(fake_kube)
    await eventually(lambda: is_woken(fake_kube, "b"))


async def test_a_lock_that_gets_free_while_a_bind_gives_up_wakes_its_pod(
    fake_kube: FakeKube, scheduler: Scheduler
) -> None:
    first, second = fake_kube.put("pods", pod("a")), fake_kube.put("pods", pod("b"))
    await scheduler.filter(first, N1)
    await scheduler.bind(first, "n1")
    await nodes_are_seen(fake_kube, scheduler)
    await scheduler.filter(second, N1)
    last_look = fake_kube.hold("get", "pods", nth=2)  # each look asks for the lock's owner
    binding = asyncio.create_task(scheduler.bind(second, "n1"))
    await last_look.reached.wait()
    free_lock(fake_kube)
    await nodes_are_seen(fake_kube, scheduler)
    last_look.release()
    assert "node lock contention" in (await binding)["Error"]
    await eventually(lambda: is_woken(fake_kube, "b"))
