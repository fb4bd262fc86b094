"""The running service against an imitated API server: filter, bind, refusals."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hami_sim.fake_kube import FakeKube
from scheduler_builders import ALLOCATED_KEY, node, pod
from scheduler_service import Scheduler, running, settings_for


@pytest.fixture
async def fake_kube() -> AsyncIterator[FakeKube]:
    fake = FakeKube()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def scheduler(fake_kube: FakeKube) -> AsyncIterator[Scheduler]:
    fake_kube.put("nodes", node("n1"))
    async with running(settings_for(fake_kube.url)) as found:
        yield found


async def test_a_pod_is_filtered_and_bound_with_one_binding(fake_kube: FakeKube, scheduler: Scheduler) -> None:
    created = fake_kube.put("pods", pod("a", memory=3000, cores=30))

    answer = await scheduler.filter(created, ["n1", "n2"])
    assert answer["NodeNames"] == ["n1"]
    assert await scheduler.bind(created, "n1") == {"Error": ""}

    bound = fake_kube.get("pods", "a", "default")
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"][ALLOCATED_KEY] == "n1-0,NVIDIA,3000,30:;"
    assert bound["metadata"]["labels"] == {"hami.io/vgpu-node": "n1"}
    writes = [(r.verb, r.resource) for r in fake_kube.requests if r.verb not in ("get", "list", "watch")]
    assert [write for write in writes if write[1] not in ("events", "nodes")] == [("create", "pods/binding")]
