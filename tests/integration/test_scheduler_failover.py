"""Two schedulers, one Lease: who may decide when, and that a late Binding never gives a slice twice."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hami_scheduler.config import BindSettings
from hami_sim.fake_kube import FakeKube

sys.path.insert(0, str(Path(__file__).parents[2] / "services" / "scheduler" / "tests"))

from hami_scheduler.config import SchedulerSettings
from scheduler_builders import ALLOCATED_KEY, Json, node, pod
from scheduler_service import Scheduler, eventually, running, series, settings_for

ONE_CARD = ["n1"]


@pytest.fixture
async def fake_kube() -> AsyncIterator[FakeKube]:
    fake = FakeKube()
    await fake.start()
    fake.put("nodes", node("n1"))
    yield fake
    await fake.stop()


def replica(fake: FakeKube, name: str, **changes: Any) -> SchedulerSettings:
    settings = settings_for(fake.url, elect=True, **changes)
    election = msgspec.structs.replace(
        settings.election, pod_namespace="hami-system", pod_name=name, pod_selector="app=hami-scheduler"
    )
    return msgspec.structs.replace(settings, election=election)


def scheduler_pod(fake: FakeKube, name: str) -> None:
    fake.put(
        "pods",
        {"metadata": {"name": name, "namespace": "hami-system", "labels": {"app": "hami-scheduler"}}, "spec": {}},
    )


def role(fake: FakeKube, name: str) -> str:
    labels = fake.get("pods", name, "hami-system")["metadata"]["labels"]
    return str(labels.get("hami.io/scheduler-role", ""))


async def test_a_follower_keeps_its_state_warm_and_answers_503(fake_kube: FakeKube) -> None:
    async with running(replica(fake_kube, "s-0")) as leader:
        created = fake_kube.put("pods", pod("a"))
        await leader.filter(created, ONE_CARD)
        await leader.bind(created, "n1")
        async with running(replica(fake_kube, "s-1"), wait=False) as follower:

            async def is_ready() -> bool:
                return (await follower.observe("/readyz"))[0] == 200

            await eventually(lambda: _listening(follower))
            await eventually(is_ready)
            await eventually(lambda: _bound_pods(follower, 1))
            body = {"Pod": created, "Nodes": None, "NodeNames": ONE_CARD}
            assert (await follower.post("filter", body))[0] == 503
            assert await follower.metric("hami_scheduler_in_charge") == 0.0


async def _listening(scheduler: Scheduler) -> bool:
    try:
        await scheduler.observe("/healthz")
    except OSError:
        return False
    return True


async def _bound_pods(scheduler: Scheduler, count: int) -> bool:
    return await scheduler.metric("hami_scheduler_bound_pods") == count


async def test_the_next_leader_takes_over_at_once_when_the_lease_was_given_back(fake_kube: FakeKube) -> None:
    scheduler_pod(fake_kube, "s-0")
    scheduler_pod(fake_kube, "s-1")
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(running(replica(fake_kube, "s-0")))
        second = await stack.enter_async_context(running(replica(fake_kube, "s-1"), wait=False))
        await eventually(lambda: (role(fake_kube, "s-0"), role(fake_kube, "s-1")) == ("leader", "follower"))
        created = fake_kube.put("pods", pod("a", memory=8000))
        await first.filter(created, ONE_CARD)
        await first.stop()
        await eventually(second.in_charge)
        await eventually(lambda: (role(fake_kube, "s-0"), role(fake_kube, "s-1")) == ("follower", "leader"))
        # The reservation of the first died with it: nothing was written to the pod.
        assert (await second.filter(fake_kube.put("pods", pod("b", memory=8000)), ONE_CARD))["NodeNames"] == ONE_CARD


async def test_a_late_binding_of_the_old_leader_is_in_the_book_before_the_new_one_decides(fake_kube: FakeKube) -> None:
    """The old leader loses its lease while its Binding is on the way; the Binding arrives after the loss."""
    bind = BindSettings(timeout_seconds=1.0, lock_wait_seconds=1.0)
    async with AsyncExitStack() as stack:
        old = await stack.enter_async_context(running(replica(fake_kube, "s-0", bind=bind, lease_seconds=5.0)))
        new = await stack.enter_async_context(
            running(replica(fake_kube, "s-1", bind=bind, lease_seconds=5.0), wait=False)
        )
        created = fake_kube.put("pods", pod("a", memory=8000))
        await old.filter(created, ONE_CARD)
        hold = fake_kube.hold("create", "pods/binding")
        binding = asyncio.create_task(old.bind(created, "n1"))
        await hold.reached.wait()
        leases = fake_kube.get("leases", "hami-scheduler", "kube-system")
        leases["spec"]["holderIdentity"] = "somebody-in-between"
        fake_kube.put("leases", leases)
        await eventually(lambda: _not_in_charge(old))
        hold.release()
        await eventually(lambda: bool(fake_kube.get("pods", "a", "default")["spec"].get("nodeName")))
        await binding
        await eventually(lambda: _one_in_charge(old, new))
        leader = new if await new.in_charge() else old
        waiting = fake_kube.put("pods", pod("b", memory=8000))
        assert (await leader.filter(waiting, ONE_CARD))["FailedNodes"] == {"n1": "1/1 CardInsufficientMemory"}
        assert _promised_mib(fake_kube) == 8000


async def _not_in_charge(scheduler: Scheduler) -> bool:
    return not await scheduler.in_charge()


async def _one_in_charge(*replicas: Scheduler) -> bool:
    return [await each.in_charge() for each in replicas].count(True) == 1


async def _not_leading(scheduler: Scheduler) -> bool:
    _, text = await scheduler.observe("/metrics")
    return series(text, "hami_leader") == 0.0


def _promised_mib(fake: FakeKube) -> int:
    bound: list[Json] = [found for found in fake.all("pods") if found["spec"].get("nodeName")]
    return sum(int(found["metadata"]["annotations"][ALLOCATED_KEY].split(",")[2]) for found in bound)


@pytest.mark.case("LDR-01")
async def test_readiness_of_an_earlier_term_never_counts_in_a_later_one(fake_kube: FakeKube) -> None:
    """The list that would make the first term ready is held; the lease is lost and won again; then it is let go."""
    # It labels no pods: a list of pods is then the term's own.
    async with running(settings_for(fake_kube.url, elect=True, lease_seconds=5.0)) as scheduler:
        hold = fake_kube.hold("list", "pods")
        lease = fake_kube.get("leases", "hami-scheduler", "kube-system")
        ours = lease["spec"]["holderIdentity"]
        fake_kube.put("leases", {**lease, "spec": {**lease["spec"], "holderIdentity": "another"}})
        await eventually(lambda: _not_in_charge(scheduler))
        await hold.reached.wait()
        created = fake_kube.put("pods", pod("a"))
        body = {"Pod": created, "Nodes": None, "NodeNames": ONE_CARD}
        assert (await scheduler.post("filter", body))[0] == 503
        won_again = fake_kube.get("leases", "hami-scheduler", "kube-system")
        assert won_again["spec"]["holderIdentity"] == ours
        second = fake_kube.hold("list", "pods")
        fake_kube.put("leases", {**won_again, "spec": {**won_again["spec"], "holderIdentity": "another"}})
        await eventually(lambda: _not_leading(scheduler))
        hold.release()
        await second.reached.wait()
        assert (await scheduler.post("filter", body))[0] == 503
        second.release()
        await eventually(scheduler.in_charge)
        assert (await scheduler.filter(created, ONE_CARD))["NodeNames"] == ONE_CARD


async def test_a_restarted_scheduler_has_the_same_book(fake_kube: FakeKube) -> None:
    settings = settings_for(fake_kube.url)
    async with running(settings) as first:
        created = fake_kube.put("pods", pod("a", memory=8000))
        await first.filter(created, ONE_CARD)
        await first.bind(created, "n1")
        await first.filter(fake_kube.put("pods", pod("dropped", memory=1000)), ONE_CARD)
    async with running(settings_for(fake_kube.url)) as second:
        answer = await second.filter(fake_kube.put("pods", pod("b", memory=8000)), ONE_CARD)
        assert answer["FailedNodes"] == {"n1": "1/1 CardInsufficientMemory"}
        assert (await second.filter(fake_kube.put("pods", pod("c", memory=2000)), ONE_CARD))["NodeNames"] == ONE_CARD
