"""What the scheduler does while its watch lags behind what it has written or was told itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec
import pytest
from hami_model import device_config, events, keys, kube
from hami_model.ids import AllocationId
from hami_scheduler.config import BindSettings, PlacementSettings
from hami_scheduler.core.announcements import Announcements
from hami_scheduler.core.catch_up import missing_events
from hami_scheduler.core.explanations import ExplainQuestion, explain
from hami_scheduler.core.filter import filter_pod
from hami_scheduler.core.ledger import Ledger
from hami_sim.fake_kube import FakeKube
from scheduler_builders import ALLOCATED_KEY, node, pod
from scheduler_service import Scheduler, eventually, running, series, settings_for

NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def used_mib(scheduler: Scheduler) -> float:
    _, text = await scheduler.observe("/metrics")
    return (series(text, "hami_scheduler_card_memory_allocated_bytes", card="n1-0") or 0.0) / 2**20


async def test_a_pod_that_the_server_says_is_bound_stays_in_the_book_though_no_watch_told_of_it(
    fake_kube: FakeKube,
) -> None:
    fake_kube.put("nodes", node("n1"))
    async with running(settings_for(fake_kube.url)) as scheduler:
        fake_kube.pause_watches("pods")
        created = fake_kube.put("pods", pod("a", memory=8000))
        await scheduler.filter(created, ["n1"])
        fake_kube.cut("create", "pods/binding", after_effect=True)
        assert await scheduler.bind(created, "n1") == {"Error": ""}
        # The book is compared with the pods that are held, and the server is asked of this one.
        await fake_kube.wait_for_requests("get", "pods", fake_kube.count("get", "pods") + 2)
        assert await used_mib(scheduler) == 8000
        other = fake_kube.put("pods", pod("b", memory=8000))
        assert (await scheduler.filter(other, ["n1"]))["NodeNames"] is None


# ---- annotate at filter ------------------------------------------------------------------------------------------


@pytest.fixture
async def early(fake_kube: FakeKube) -> AsyncIterator[Scheduler]:
    fake_kube.put("nodes", node("n1"))
    async with running(settings_for(fake_kube.url, placement=PlacementSettings(annotate_at="filter"))) as found:
        yield found


async def withdrawn(scheduler: Scheduler) -> bool:
    _, text = await scheduler.observe("/metrics")
    return series(text, "hami_scheduler_chores_total", what="withdraw", end="done") == 1.0


async def test_an_early_annotation_whose_writing_got_no_answer_goes(fake_kube: FakeKube, early: Scheduler) -> None:
    created = fake_kube.put("pods", pod("a", memory=8000))
    fake_kube.cut("patch", "pods", after_effect=True)
    assert "could not be written" in (await early.filter(created, ["n1"]))["Error"]
    await eventually(lambda: not fake_kube.get("pods", "a", "default")["metadata"].get("annotations"))


async def test_what_takes_an_early_annotation_away_leaves_what_was_bound_since(
    fake_kube: FakeKube, early: Scheduler
) -> None:
    created = fake_kube.put("pods", pod("a", memory=8000))
    fake_kube.pause_watches("pods")
    fake_kube.cut("patch", "pods", after_effect=True)
    removal = fake_kube.hold("patch", "pods", nth=2)
    assert "could not be written" in (await early.filter(created, ["n1"]))["Error"]
    await removal.reached.wait()
    assert (await early.filter(created, ["n1"]))["NodeNames"] == ["n1"]
    assert await early.bind(created, "n1") == {"Error": ""}
    removal.release()
    await eventually(lambda: withdrawn(early))
    fake_kube.resume_watches("pods")
    assert fake_kube.get("pods", "a", "default")["metadata"]["annotations"][ALLOCATED_KEY] == "n1-0,NVIDIA,8000,0:;"
    assert await used_mib(early) == 8000


async def test_an_early_annotation_that_comes_late_leaves_a_pod_that_was_bound_meanwhile(
    fake_kube: FakeKube, early: Scheduler
) -> None:
    """As by the next leader, while this one stood still."""
    created = fake_kube.put("pods", pod("a", memory=8000))
    hold = fake_kube.hold("patch", "pods")
    filtering = asyncio.create_task(early.filter(created, ["n1"]))
    await hold.reached.wait()
    theirs = {ALLOCATED_KEY: "n1-0,NVIDIA,8000,7:;"}
    fake_kube.put("pods", pod("a", uid=created["metadata"]["uid"], node_name="n1", annotations=theirs))
    hold.release()
    assert "bound already" in (await filtering)["Error"]
    assert fake_kube.get("pods", "a", "default")["metadata"]["annotations"] == theirs


async def test_an_early_annotation_is_written_on_the_version_that_there_is(
    fake_kube: FakeKube, early: Scheduler
) -> None:
    created = fake_kube.put("pods", pod("a", memory=8000))
    fake_kube.put("pods", pod("a", memory=8000, uid=created["metadata"]["uid"]))
    assert (await early.filter(created, ["n1"]))["NodeNames"] == ["n1"]
    assert fake_kube.get("pods", "a", "default")["metadata"]["annotations"][ALLOCATED_KEY] == "n1-0,NVIDIA,8000,0:;"


# ---- the node lock -----------------------------------------------------------------------------------------------


async def test_a_freed_lock_wakes_no_pod_that_was_bound_to_another_node_since(fake_kube: FakeKube) -> None:
    fake_kube.put("nodes", node("n1", handoff="lock"))
    fake_kube.put("nodes", node("n2"))
    bind = BindSettings(timeout_seconds=20.0, lock_wait_seconds=0.5)
    async with running(settings_for(fake_kube.url, bind=bind)) as scheduler:
        holder, moved, waiting = (fake_kube.put("pods", pod(name)) for name in ("holder", "moved", "waiting"))
        await scheduler.filter(holder, ["n1"])
        assert await scheduler.bind(holder, "n1") == {"Error": ""}
        for each in (moved, waiting):
            await scheduler.filter(each, ["n1"])
            assert "node lock contention" in (await scheduler.bind(each, "n1"))["Error"]
        fake_kube.pause_watches("pods")
        await scheduler.filter(moved, ["n2"])
        assert await scheduler.bind(moved, "n2") == {"Error": ""}
        freed = fake_kube.get("nodes", "n1")
        del freed["metadata"]["annotations"][keys.NODE_LOCK]
        fake_kube.put("nodes", freed)
        await eventually(lambda: "waiting" in woken(fake_kube))
        assert woken(fake_kube) == {"waiting"}


def woken(fake: FakeKube) -> set[str]:
    return {r.name for r in fake.requests if r.verb == "patch" and r.resource == "pods" and keys.WAKE in str(r.body)}


# ---- what is told of a pod that only our own Binding told of -----------------------------------------------------


@pytest.fixture
def unbound() -> kube.Pod:
    """As the watch last had it."""
    return msgspec.convert(pod("a", memory=3000), kube.Pod)


@pytest.fixture
def ledger(unbound: kube.Pod) -> Ledger:
    """The pod is bound to the only card."""
    found = Ledger(device_config.default_config())
    found.upsert_node(msgspec.convert(node("n1"), kube.Node), NOW)
    filter_pod(found, unbound, ["n1"], allocation_id=AllocationId("id-1"), now=NOW)
    assert found.confirm(unbound.uid, AllocationId("id-1")) is not None
    return found


def test_the_stream_is_told_what_it_holds(ledger: Ledger, unbound: kube.Pod) -> None:
    announcements = Announcements("/hami/scheduler/s-0")
    (told,) = missing_events([], ledger, {unbound.uid: unbound}.get, announcements, NOW)
    assert isinstance(told, events.AllocationAllocating)
    assert [(share.container, [card.card_id for card in share.cards]) for share in told.containers] == [
        ("main", ["n1-0"])
    ]


def test_an_explanation_says_what_it_holds(ledger: Ledger, unbound: kube.Pod) -> None:
    told = explain(ledger, unbound, ExplainQuestion(namespace="default", name="a"))
    assert (told.state, told.node, [held.memory_mib for held in told.slices]) == ("bound", "n1", [3000])
