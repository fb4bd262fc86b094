"""The label by which a Service finds the leader: written whatever becomes of the other replicas meanwhile."""

from __future__ import annotations

import msgspec
import pytest
from hami_scheduler.config import SchedulerSettings
from hami_sim.fake_kube import FakeKube
from scheduler_builders import Json
from scheduler_service import Scheduler, eventually, running, settings_for


def replica(fake: FakeKube) -> SchedulerSettings:
    settings = settings_for(fake.url, elect=True)
    election = msgspec.structs.replace(
        settings.election, pod_namespace="hami-system", pod_name="s-1", pod_selector="app=hami-scheduler"
    )
    return msgspec.structs.replace(settings, election=election)


@pytest.fixture
def pods(fake_kube: FakeKube) -> None:
    for name in ("s-0", "s-1"):
        metadata: Json = {"name": name, "namespace": "hami-system", "labels": {"app": "hami-scheduler"}}
        fake_kube.put("pods", {"metadata": metadata, "spec": {}})


def role(fake: FakeKube, name: str) -> str:
    labels = fake.get("pods", name, "hami-system")["metadata"]["labels"]
    return str(labels.get("hami.io/scheduler-role", ""))


@pytest.mark.usefixtures("pods")
async def test_a_leader_is_labelled_though_the_one_before_it_goes_away_meanwhile(fake_kube: FakeKube) -> None:
    """As in every rolling update: the pod is there when the leader lists the replicas, and gone when it writes."""
    hold = fake_kube.hold("patch", "pods")
    async with running(replica(fake_kube)):
        await hold.reached.wait()
        fake_kube.remove("pods", "s-0", "hami-system")
        hold.release()
        await eventually(lambda: role(fake_kube, "s-1") == "leader")


@pytest.mark.usefixtures("pods")
async def test_a_leader_is_labelled_however_often_the_server_refuses_it(fake_kube: FakeKube) -> None:
    fake_kube.fail("patch", "pods", 409, reason="Conflict", nth=2)
    fake_kube.fail("patch", "pods", 503, nth=3)
    fake_kube.fail("patch", "pods", 403, nth=4)
    async with running(replica(fake_kube)):
        await eventually(lambda: (role(fake_kube, "s-0"), role(fake_kube, "s-1")) == ("follower", "leader"))


@pytest.mark.usefixtures("pods")
async def test_a_leader_that_stood_still_leaves_the_labels_of_the_next_one(fake_kube: FakeKube) -> None:
    """Its first write is on the way while it loses the lease and the next leader writes its own labels."""
    hold = fake_kube.hold("patch", "pods")
    async with running(replica(fake_kube)) as scheduler:
        await hold.reached.wait()
        lease = fake_kube.get("leases", "hami-scheduler", "kube-system")
        taken = {**lease["spec"], "holderIdentity": "s-0", "leaseDurationSeconds": 3600}
        fake_kube.put("leases", {**lease, "spec": taken})
        await eventually(lambda: not_in_charge(scheduler))
        for name, role_of in (("s-0", "leader"), ("s-1", "follower")):
            found = fake_kube.get("pods", name, "hami-system")
            labels = {**found["metadata"]["labels"], "hami.io/scheduler-role": role_of}
            fake_kube.put("pods", {**found, "metadata": {**found["metadata"], "labels": labels}})
        hold.release()
        await eventually(lambda: nothing_waits(scheduler))
        assert (role(fake_kube, "s-0"), role(fake_kube, "s-1")) == ("leader", "follower")


async def not_in_charge(scheduler: Scheduler) -> bool:
    return not await scheduler.in_charge()


async def nothing_waits(scheduler: Scheduler) -> bool:
    return await scheduler.metric("hami_scheduler_chores_waiting") == 0
