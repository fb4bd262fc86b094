"""Cases of the area lifecycle, of cards that terminating pods hold, and of who of several replicas writes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
from case_placing import Placing, placing
from hami_scheduler.config import MetricsSettings, PlacementSettings, UpkeepSettings
from hami_sim.fake_kube import FakeKube
from scheduler_builders import ALLOCATED_KEY, HANDSHAKE_KEY, card, node, pod, quota
from scheduler_service import eventually, running, series, settings_for

# ---- pods that go ------------------------------------------------------------------------------------------------


@pytest.mark.case("ALC-05")
@pytest.mark.parametrize("end", ["gone", "Succeeded", "Failed"])
async def test_a_terminating_pod_holds_its_cards_until_it_is_gone_or_all_its_containers_ended(
    fake_kube: FakeKube, end: str
) -> None:
    async with placing(fake_kube) as placed:
        bound = await placed.place("old", memory=8000)
        terminating = {**bound["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
        fake_kube.put("pods", {**bound, "metadata": terminating, "status": {"phase": "Running"}})
        await placed.caught_up()
        assert await placed.refused("new", memory=8000) == {"n1": "1/1 CardInsufficientMemory"}
        if end == "gone":
            fake_kube.remove("pods", "old", "default")
        else:
            placed.update("old", phase=end)
        await placed.uses(0)
        assert (await placed.filter_again("new"))["NodeNames"] == ["n1"]


@pytest.mark.case("LIF-01")
@pytest.mark.parametrize("failure", ["pod gone", "node gone", "lock held", "bind 404", "bind 409"])
async def test_a_bind_that_fails_leaves_neither_card_nor_quota_in_use(fake_kube: FakeKube, failure: str) -> None:
    fake_kube.put("resourcequotas", quota("q", "default", gpumem=10_000))
    handoff: Any = "lock" if failure in ("node gone", "lock held") else "late-binding"
    settings = settings_for(fake_kube.url)
    settings = msgspec.structs.replace(
        settings, bind=msgspec.structs.replace(settings.bind, lock_wait_seconds=0.0)
    )  # fmt: skip
    async with placing(fake_kube, node("n1", handoff=handoff), settings=settings) as placed:
        if failure == "lock held":
            await placed.place("owner", memory=1000)
        before = await placed.used_mib()
        await placed.filter("p", memory=8000)
        assert await placed.quota_used_mib() == before + 8000
        created = fake_kube.get("pods", "p", "default")
        if failure == "pod gone":
            fake_kube.pause_watches("pods")
            fake_kube.remove("pods", "p", "default")
        elif failure == "node gone":
            fake_kube.pause_watches("nodes")
            fake_kube.remove("nodes", "n1")
        elif failure.startswith("bind"):
            fake_kube.fail("create", "pods/binding", int(failure.removeprefix("bind ")))
        assert (await placed.scheduler.bind(created, "n1"))["Error"] != ""
        assert (await placed.used_mib(), await placed.quota_used_mib()) == (before, before)


@pytest.mark.case("LIF-02")
@pytest.mark.parametrize("missed", ["the scheduler was away", "the watch fell behind"])
async def test_a_pod_whose_deletion_was_missed_holds_nothing(fake_kube: FakeKube, missed: str) -> None:
    fields = {"gpu": 8, "memory": 10_000}
    async with placing(fake_kube, node("n1", 8)) as placed:
        await placed.place("p", **fields)
        if missed == "the watch fell behind":
            fake_kube.pause_watches("pods")
            fake_kube.remove("pods", "p", "default")
            fake_kube.compact("pods")
            fake_kube.expire_watches("pods")
            fake_kube.resume_watches("pods")
            await placed.uses(0)
            await placed.place("q", **fields)
    if missed == "the scheduler was away":
        fake_kube.remove("pods", "p", "default")
        async with placing(fake_kube, node("n1", 8)) as placed:
            assert await placed.used_mib() == 0
            await placed.place("q", **fields)


@pytest.mark.case("LIF-03")
@pytest.mark.parametrize("annotate_at", ["bind", "filter"])
async def test_a_second_filter_call_without_a_fit_gives_back_what_the_first_reserved(
    fake_kube: FakeKube, annotate_at: Any
) -> None:
    async with placing(fake_kube, placement=PlacementSettings(annotate_at=annotate_at)) as placed:
        await placed.filter("p", memory=1000)
        assert (await placed.filter_again("p", "n9"))["NodeNames"] is None
        await eventually(lambda: not fake_kube.get("pods", "p", "default")["metadata"].get("annotations"))
        await placed.caught_up()
        assert await placed.used_mib() == 0
        await placed.place("whole", memory=10_000)


@pytest.mark.case("LIF-03")
async def test_a_second_filter_call_for_a_bound_pod_keeps_its_record(fake_kube: FakeKube) -> None:
    async with placing(fake_kube) as placed:
        await placed.place("p", memory=1000)
        for names in (("n9",), ("n1",)):
            assert (await placed.filter_again("p", *names))["Error"]
        fake_kube.put("pods", fake_kube.get("pods", "p", "default"))
        await placed.caught_up()
        assert await placed.used_mib() == 1000
        assert placed.allocated("p") == "n1-0,NVIDIA,1000,0:;"
        assert await placed.refused("whole", memory=10_000) == {"n1": "1/1 CardInsufficientMemory"}


@pytest.mark.case("LIF-05")
async def test_a_waiting_pod_is_asked_for_again_when_a_pod_is_gone(fake_kube: FakeKube) -> None:
    """kube-scheduler queues a pod again for a change of it: here that change is ours. With the real kube-scheduler:
    tests/integration/test_scheduler_control_plane.py, a pod that waits … gets the card when the other is gone."""
    async with placing(fake_kube) as placed:
        await placed.place("p", memory=8000)
        placed.update("p", phase="Running")
        fake_kube.pause_watches("pods")
        fake_kube.remove("pods", "p", "default")
        await placed.refused("q", memory=8000)
        before = fake_kube.get("pods", "q", "default")["metadata"]["resourceVersion"]
        fake_kube.resume_watches("pods")
        await eventually(lambda: fake_kube.get("pods", "q", "default")["metadata"]["resourceVersion"] != before)
        assert (await placed.filter_again("q"))["NodeNames"] == ["n1"]


@pytest.mark.case("LIF-08")
async def test_exactly_as_many_pods_are_accepted_as_the_card_carries(fake_kube: FakeKube) -> None:
    async with placing(fake_kube, node("n1", [card("n1-0", memory_mib=46068, slots=40)])) as placed:
        for number in range(23):
            await placed.place(f"p{number}", memory=2000)
        assert await placed.refused("p23", memory=2000) == {"n1": "1/1 CardInsufficientMemory"}
        assert await placed.used_mib() == 46000


# ---- several replicas --------------------------------------------------------------------------------------------


@asynccontextmanager
async def _follower(fake: FakeKube) -> AsyncIterator[Placing]:
    """A replica that runs for election while another holds the lease, and goes on holding it."""
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "hami-scheduler", "namespace": "kube-system"},
        "spec": {
            "holderIdentity": "another",
            "leaseDurationSeconds": 3600,
            "acquireTime": "2026-01-01T00:00:00.000000Z",
            "renewTime": "2026-01-01T00:00:00.000000Z",
            "leaseTransitions": 1,
        },
    }
    fake.put("leases", lease)
    upkeep = UpkeepSettings(node_pass_seconds=0.05, expiry_pass_seconds=0.05, compare_seconds=0.1)
    settings = settings_for(fake.url, elect=True, upkeep=upkeep, metrics=MetricsSettings(hami_names=True))
    async with running(settings, wait=False) as scheduler:
        yield Placing(fake, scheduler)


@pytest.mark.case("LDR-03")
async def test_a_follower_writes_nothing_and_shows_no_cards_in_its_metrics(fake_kube: FakeKube) -> None:
    fake_kube.put("nodes", node("n1"))
    fake_kube.put("resourcequotas", quota("q", "default", gpumem=1000))
    fake_kube.put("pods", pod("bad", node_name="n1", annotations={ALLOCATED_KEY: "n1-0,NVIDIA:;"}))
    fake_kube.put("pods", pod("stale", annotations={ALLOCATED_KEY: "n1-0,NVIDIA,1,0:;"}))
    async with _follower(fake_kube) as follower:
        await eventually(lambda: _has_bound_pods(follower, 1))
        fake_kube.put("nodes", node("n2", annotations={HANDSHAKE_KEY: "Requesting_2026-01-01 00:00:00"}))
        fake_kube.put("pods", pod("held", node_name="n1", annotations={ALLOCATED_KEY: "n1-0,NVIDIA,1,0:;"}))
        await eventually(lambda: _has_bound_pods(follower, 2))
        await fake_kube.wait_for_requests("get", "leases", fake_kube.count("get", "leases") + 3)
        status, _ = await follower.scheduler.post("filter", {"Pod": pod("a"), "Nodes": None, "NodeNames": ["n1"]})
        assert status == 503
        written = {r.resource for r in fake_kube.requests if r.verb not in ("get", "list", "watch")}
        assert written <= {"leases"}
        _, text = await follower.scheduler.observe("/metrics")
        assert series(text, "hami_scheduler_in_charge") == 0.0
        shown = {line.partition("{")[0] for line in text.splitlines() if not line.startswith("#")}
        assert not [name for name in shown if name.startswith(CLUSTER_STATE)]


CLUSTER_STATE = ("hami_scheduler_card", "hami_scheduler_quota", "hami_gpu", "hami_node", "hami_resource", "hami_vgpu")


async def _has_bound_pods(placed: Placing, count: int) -> bool:
    try:
        return await placed.scheduler.metric("hami_scheduler_bound_pods") == count
    except aiohttp.ClientConnectionError:
        return False
