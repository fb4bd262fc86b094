"""The running service against an imitated API server: filter, bind, refusals, failures, wakes, chores."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import msgspec
import pytest
from hami_chassis.kube import KubeSettings
from hami_chassis.tls import TlsSettings
from hami_model import keys
from hami_scheduler.config import BindSettings, ExtenderSettings, PlacementSettings, UpkeepSettings
from hami_sim.controlplane.layout import CertificateFiles
from hami_sim.controlplane.pki import CertificateAuthority, Identity
from hami_sim.fake_kube import FakeKube
from hami_sim.fake_kube.faults import EVERY
from scheduler_builders import (
    ALLOCATED_KEY,
    HANDSHAKE_KEY,
    REGISTER_KEY,
    Json,
    container,
    limits,
    node,
    pod,
    quota,
)
from scheduler_service import Scheduler, eventually, running, series, settings_for

WRITES_OF_THE_SIDE = ("events", "nodes")


@pytest.fixture
async def scheduler(fake_kube: FakeKube) -> AsyncIterator[Scheduler]:
    """One replica over one node with one card of 10,000 MiB."""
    fake_kube.put("nodes", node("n1"))
    async with running(settings_for(fake_kube.url)) as found:
        yield found


def pod_writes(fake: FakeKube) -> list[tuple[str, str]]:
    """Writes that touch pods."""
    return [
        (r.verb, r.resource)
        for r in fake.requests
        if r.verb not in ("get", "list", "watch") and r.resource.startswith("pods")
    ]


async def used_mib(scheduler: Scheduler, card: str = "n1-0") -> float:
    _, text = await scheduler.observe("/metrics")
    found = series(text, "hami_scheduler_card_memory_allocated_bytes", card=card)
    return (found or 0.0) / 2**20


def event_texts(fake: FakeKube, name: str) -> list[tuple[str, str]]:
    return [
        (event["reason"], event["message"]) for event in fake.all("events") if event["involvedObject"]["name"] == name
    ]


# ---- filter and bind ---------------------------------------------------------------------------------------------


async def test_a_pod_is_filtered_and_bound_with_one_binding(fake_kube: FakeKube, scheduler: Scheduler) -> None:
    created = fake_kube.put("pods", pod("a", memory=3000, cores=30))

    answer = await scheduler.filter(created, ["n1", "n2"])
    assert answer["NodeNames"] == ["n1"]
    assert await scheduler.bind(created, "n1") == {"Error": ""}

    bound = fake_kube.get("pods", "a", "default")
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"][ALLOCATED_KEY] == "n1-0,NVIDIA,3000,30:;"
    assert bound["metadata"]["labels"] == {"hami.io/vgpu-node": "n1"}
    assert pod_writes(fake_kube) == [("create", "pods/binding")]
    assert "hami.io/mutex.lock" not in fake_kube.get("nodes", "n1")["metadata"]["annotations"]
    assert await used_mib(scheduler) == 3000

    def told() -> bool:
        return {
            ("FilteringSucceed", "find fit node(n1), 1 nodes not fit, 1 nodes fit(n1:0.00)"),
            ("BindingSucceed", "Successfully binding node [n1] to default/a"),
        } <= {
            (reason, text.replace("n1:" + text.rpartition(":")[2], "n1:0.00)"))
            for reason, text in event_texts(fake_kube, "a")
        }

    await eventually(told)


async def test_a_second_bind_of_a_bound_pod_is_a_success_and_writes_nothing(
    fake_kube: FakeKube, scheduler: Scheduler
) -> None:
    created = fake_kube.put("pods", pod("a"))
    await scheduler.filter(created, ["n1"])
    await scheduler.bind(created, "n1")
    assert await scheduler.bind(created, "n1") == {"Error": ""}
    assert (await scheduler.bind(created, "n2"))["Error"] == "the pod is bound to node n1 already"
    assert pod_writes(fake_kube) == [("create", "pods/binding")]


async def test_a_bind_without_reservation_decides_anew_for_that_node_only(
    fake_kube: FakeKube, scheduler: Scheduler
) -> None:
    fake_kube.put("nodes", node("n2"))
    created = fake_kube.put("pods", pod("a"))
    await eventually(lambda: fake_kube.count("watch", "pods") > 0)
    await eventually(lambda: _has_cards(scheduler, "n2-0"))
    assert await scheduler.bind(created, "n2") == {"Error": ""}
    assert fake_kube.get("pods", "a", "default")["metadata"]["annotations"][ALLOCATED_KEY] == "n2-0,NVIDIA,1000,0:;"


async def _has_cards(scheduler: Scheduler, card: str) -> bool:
    _, text = await scheduler.observe("/metrics")
    return series(text, "hami_scheduler_card_memory_bytes", card=card) is not None


async def test_a_bind_that_no_slice_fits_says_so(fake_kube: FakeKube, scheduler: Scheduler) -> None:
    created = fake_kube.put("pods", pod("a", memory=20_000))
    answer = await scheduler.bind(created, "n1")
    assert "no slice is reserved on node n1" in answer["Error"]
    assert "CardInsufficientMemory" in answer["Error"]


async def test_a_pod_that_asks_for_no_card_passes_and_is_bound_plainly(
    fake_kube: FakeKube, scheduler: Scheduler
) -> None:
    created = fake_kube.put("pods", pod("plain", containers=[container(ask={"cpu": "1"})]))
    assert (await scheduler.filter(created, ["n1", "n9"]))["NodeNames"] == ["n1", "n9"]
    assert await scheduler.bind(created, "n9") == {"Error": ""}
    assert fake_kube.get("pods", "plain", "default")["spec"]["nodeName"] == "n9"


async def test_a_request_that_no_node_could_grant_is_refused_for_ever_with_the_reason(
    fake_kube: FakeKube, scheduler: Scheduler
) -> None:
    created = fake_kube.put("pods", pod("a", memory="4Gi"))
    answer = await scheduler.filter(created, ["n1"])
    assert "whole number such as 4096" in answer["FailedAndUnresolvableNodes"]["n1"]


async def test_a_failed_filter_tells_the_reasons_in_events(fake_kube: FakeKube, scheduler: Scheduler) -> None:
    created = fake_kube.put("pods", pod("a", memory=20_000))
    answer = await scheduler.filter(created, ["n1", "n7"])
    assert answer["FailedAndUnresolvableNodes"] | (answer["FailedNodes"] or {}) == {
        "n1": "1/1 CardInsufficientMemory",
        "n7": "node unregistered",
    }
    advice = (
        "fits on none of 2 nodes: container main asks for 20,000 MiB of each NVIDIA card; no card that it may use has "
        "more than 10,000 MiB; 20,000 MiB asked; 10,000 free on card n1-0 of n1; would fit on n1 (card n1-0) if "
        "container main asked NVIDIA for at most 10,000 MiB of each card (asks 20,000) (of the 1 nodes that miss least)"
    )
    expected = [
        ("FilteringFailed", "1 nodes CardInsufficientMemory(n1)"),
        ("FilteringFailed", "no available node, 2 nodes do not meet"),
        ("FilteringFailed", advice),
    ]
    await eventually(lambda: event_texts(fake_kube, "a") == expected)


# ---- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "body", "status", "error"),
    [
        pytest.param("filter", b"", 400, "Please send a request body", id="an empty body"),
        pytest.param("filter", b'{"Pod":', 400, "truncated", id="a torn body names the place"),
        pytest.param("filter", b'{"Pod":{},"NodeNames":[1]}', 400, "$.NodeNames[0]", id="a wrong type names the place"),
        pytest.param("bind", b"{}", 400, "PodName", id="a bind that names no pod"),
        pytest.param("bind", b" " * 70_000, 413, "", id="a large bind"),
    ],
)
async def test_a_request_that_cannot_be_read_is_refused_and_counted(
    scheduler: Scheduler, verb: str, body: bytes, status: int, error: str
) -> None:
    found, answer = await scheduler.post(verb, body)
    assert found == status
    assert error in answer["error"]
    _, text = await scheduler.observe("/metrics")
    assert series(text, "hami_scheduler_refused_requests_total", verb=verb, status=str(status)) == 1.0


async def test_a_chunked_body_over_the_limit_is_refused(fake_kube: FakeKube) -> None:
    settings = settings_for(fake_kube.url)
    extender = msgspec.structs.replace(settings.extender, filter_limit_bytes=4096)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(8):
            yield b" " * 1024

    async with (
        running(msgspec.structs.replace(settings, extender=extender)) as scheduler,
        aiohttp.ClientSession() as client,
        client.post(f"{scheduler.url}/filter", data=chunks()) as response,
    ):
        assert response.status == 413


async def test_a_call_without_nodes_is_answered_with_a_plain_error(scheduler: Scheduler) -> None:
    status, answer = await scheduler.post("filter", {"Pod": pod("a"), "Nodes": None, "NodeNames": None})
    assert status == 200
    assert "NodeNames is missing" in answer["Error"]


# ---- binds that fail ---------------------------------------------------------------------------------------------


def _refuse(code: int) -> Callable[[FakeKube], None]:
    return lambda fake: fake.fail("create", "pods/binding", code)


def _delete(fake: FakeKube) -> None:
    fake.pause_watches("pods")
    fake.remove("pods", "a", "default")


@pytest.mark.case("LIF-01")
@pytest.mark.parametrize(
    "disturb",
    [
        pytest.param(_refuse(403), id="forbidden"),
        pytest.param(_refuse(409), id="conflict"),
        pytest.param(_refuse(422), id="invalid"),
        pytest.param(_refuse(429), id="overloaded"),
        pytest.param(_refuse(500), id="a server error, with no effect"),
        pytest.param(_refuse(503), id="away"),
        pytest.param(lambda fake: fake.cut("create", "pods/binding", after_effect=False), id="connection cut before"),
        pytest.param(_delete, id="the pod is gone and the watch is late"),
    ],
)
async def test_a_bind_that_failed_leaves_nothing_reserved(
    fake_kube: FakeKube, scheduler: Scheduler, disturb: Callable[[FakeKube], None]
) -> None:
    created = fake_kube.put("pods", pod("a", memory=8000))
    await scheduler.filter(created, ["n1"])
    disturb(fake_kube)
    assert (await scheduler.bind(created, "n1"))["Error"] != ""
    assert await used_mib(scheduler) == 0
    other = fake_kube.put("pods", pod("b", memory=8000))
    assert (await scheduler.filter(other, ["n1"]))["NodeNames"] == ["n1"]


@pytest.mark.case("LIF-02")
async def test_a_bound_pod_whose_whole_life_the_watch_missed_is_let_go(
    fake_kube: FakeKube, scheduler: Scheduler
) -> None:
    fake_kube.pause_watches("pods")
    created = fake_kube.put("pods", pod("a", memory=8000))
    await scheduler.filter(created, ["n1"])
    assert await scheduler.bind(created, "n1") == {"Error": ""}
    fake_kube.put("pods", {**fake_kube.get("pods", "a", "default"), "status": {"phase": "Succeeded"}})
    fake_kube.compact("pods")
    fake_kube.expire_watches("pods")
    fake_kube.resume_watches("pods")
    await eventually(lambda: _used_is(scheduler, 0))


@pytest.mark.case("LIF-01")
async def test_a_bind_to_a_node_that_is_gone_fails_and_leaves_nothing_reserved(
    fake_kube: FakeKube, scheduler: Scheduler
) -> None:
    created = fake_kube.put("pods", pod("a", memory=8000))
    await scheduler.filter(created, ["n1"])
    fake_kube.remove("nodes", "n1")
    await eventually(lambda: _knows_no_node(scheduler))
    assert (await scheduler.bind(created, "n1"))["Error"] == "failed to get node n1"
    assert pod_writes(fake_kube) == []
    assert await scheduler.metric("hami_scheduler_reservations") == 0


async def _knows_no_node(scheduler: Scheduler) -> bool:
    return await scheduler.metric("hami_scheduler_nodes") == 0


async def test_a_binding_whose_answer_was_lost_counts_when_the_server_says_so(
    fake_kube: FakeKube, scheduler: Scheduler
) -> None:
    created = fake_kube.put("pods", pod("a", memory=8000))
    await scheduler.filter(created, ["n1"])
    fake_kube.cut("create", "pods/binding", after_effect=True)
    assert await scheduler.bind(created, "n1") == {"Error": ""}
    assert await used_mib(scheduler) == 8000


@pytest.mark.parametrize("code", [503, 401, 403])
async def test_nothing_touches_a_pod_until_the_outcome_of_its_bind_is_known(
    fake_kube: FakeKube, scheduler: Scheduler, code: int
) -> None:
    created = fake_kube.put("pods", pod("a", memory=8000))
    await scheduler.filter(created, ["n1"])
    fake_kube.pause_watches("pods")
    fake_kube.cut("create", "pods/binding", after_effect=True)
    fake_kube.fail("get", "pods", code, times=EVERY)
    assert "the pod cannot be read" in (await scheduler.bind(created, "n1"))["Error"]
    assert "outcome must be known" in (await scheduler.filter(created, ["n1"]))["Error"]
    assert await used_mib(scheduler) == 8000
    other = fake_kube.put("pods", pod("b", memory=8000))
    assert (await scheduler.filter(other, ["n1"]))["NodeNames"] is None
    fake_kube.clear_faults()

    async def is_bound() -> bool:
        return await scheduler.bind(created, "n1") == {"Error": ""}

    await eventually(is_bound)
    assert await used_mib(scheduler) == 8000


async def test_a_pod_that_was_given_up_keeps_its_slice_until_the_outcome_of_its_bind_is_known(
    fake_kube: FakeKube, scheduler: Scheduler
) -> None:
    created = fake_kube.put("pods", pod("a", memory=8000))
    await scheduler.filter(created, ["n1"])
    fake_kube.cut("create", "pods/binding", after_effect=False)
    fake_kube.fail("get", "pods", 503, times=EVERY)
    await scheduler.bind(created, "n1")
    created["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "SchedulerError"}]
    fake_kube.put("pods", created)
    other = fake_kube.put("pods", pod("marker", node_name="n1", annotations={ALLOCATED_KEY: "n1-0,NVIDIA,1,0:;"}))
    await eventually(lambda: _used_is(scheduler, 8001))
    fake_kube.remove("pods", other["metadata"]["name"], "default")
    fake_kube.clear_faults()
    await eventually(lambda: _used_is(scheduler, 0))


async def _used_is(scheduler: Scheduler, mib: int) -> bool:
    return await used_mib(scheduler) == mib


# ---- wakes -------------------------------------------------------------------------------------------------------


def wakes(fake: FakeKube, name: str) -> int:
    return sum(
        1
        for r in fake.requests
        if r.verb == "patch" and r.resource == "pods" and r.name == name and keys.WAKE in str(r.body)
    )


async def rejected(fake: FakeKube, scheduler: Scheduler, name: str = "waiting", **fields: object) -> Json:
    """A pod that was just rejected."""
    created = fake.put("pods", pod(name, **{"memory": 8000, **fields}))
    assert (await scheduler.filter(created, ["n1", "n2"]))["NodeNames"] is None
    return created


async def bound_pod(fake: FakeKube, scheduler: Scheduler, name: str = "holder", **fields: object) -> Json:
    created = fake.put("pods", pod(name, **{"memory": 8000, **fields}))
    assert (await scheduler.filter(created, ["n1", "n2"]))["NodeNames"] == ["n1"]
    assert await scheduler.bind(created, "n1") == {"Error": ""}
    return fake.get("pods", name, str(created["metadata"]["namespace"]))


async def test_a_quota_that_is_raised_or_removed_wakes(fake_kube: FakeKube, scheduler: Scheduler) -> None:
    fake_kube.put("resourcequotas", quota("q", "default", gpumem=1000))
    await eventually(lambda: _quota_is(scheduler, 1000))
    await rejected(fake_kube, scheduler)
    await rejected(fake_kube, scheduler, "huge", memory=9000)
    fake_kube.put("resourcequotas", quota("q", "default", gpumem=8000))
    await eventually(lambda: wakes(fake_kube, "waiting") >= 1)
    assert wakes(fake_kube, "huge") == 0
    await scheduler.filter(fake_kube.get("pods", "waiting", "default"), ["n1"])
    fake_kube.remove("resourcequotas", "q", "default")
    fake_kube.remove("pods", "waiting", "default")
    await eventually(lambda: wakes(fake_kube, "huge") >= 1)


async def _quota_is(scheduler: Scheduler, mib: int) -> bool:
    _, text = await scheduler.observe("/metrics")
    return series(text, "hami_scheduler_quota_memory_limit_bytes", namespace="default") == mib * 2**20


async def test_the_end_of_an_init_phase_wakes(fake_kube: FakeKube, scheduler: Scheduler) -> None:
    holder = await bound_pod(
        fake_kube,
        scheduler,
        init_containers=[container("init", ask=limits(memory=8000))],
        containers=[container(ask=limits(memory=1000))],
    )
    await rejected(fake_kube, scheduler)
    holder["status"]["initContainerStatuses"] = [{"name": "init", "state": {"terminated": {"exitCode": 0}}}]
    fake_kube.put("pods", holder)
    await eventually(lambda: wakes(fake_kube, "waiting") >= 1)


async def test_a_reservation_that_expired_wakes(fake_kube: FakeKube, scheduler: Scheduler) -> None:
    reserved = fake_kube.put("pods", pod("reserved", memory=8000))
    await scheduler.filter(reserved, ["n1"])
    await rejected(fake_kube, scheduler)
    reserved["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "SchedulerError"}]
    fake_kube.put("pods", reserved)
    await eventually(lambda: wakes(fake_kube, "waiting") >= 1)


async def test_a_card_that_is_healthy_again_wakes(fake_kube: FakeKube, scheduler: Scheduler) -> None:
    found = fake_kube.get("nodes", "n1")
    text = found["metadata"]["annotations"][REGISTER_KEY]
    found["metadata"]["annotations"][REGISTER_KEY] = text.replace('"health":true', '"health":false')
    fake_kube.put("nodes", found)
    await eventually(lambda: _healthy(scheduler, 0.0))
    await rejected(fake_kube, scheduler)
    found["metadata"]["annotations"][REGISTER_KEY] = text
    fake_kube.put("nodes", found)
    await eventually(lambda: wakes(fake_kube, "waiting") >= 1)


async def _healthy(scheduler: Scheduler, value: float) -> bool:
    _, text = await scheduler.observe("/metrics")
    return series(text, "hami_scheduler_card_healthy", card="n1-0") == value


async def test_a_failed_bind_wakes(fake_kube: FakeKube, scheduler: Scheduler) -> None:
    created = fake_kube.put("pods", pod("failing", memory=8000))
    await scheduler.filter(created, ["n1"])
    await rejected(fake_kube, scheduler)
    fake_kube.fail("create", "pods/binding", 403)
    await scheduler.bind(created, "n1")
    await eventually(lambda: wakes(fake_kube, "waiting") >= 1)


async def test_a_superseded_reservation_wakes(fake_kube: FakeKube, scheduler: Scheduler) -> None:
    created = fake_kube.put("pods", pod("moving", memory=8000))
    await scheduler.filter(created, ["n1"])
    await rejected(fake_kube, scheduler)
    assert (await scheduler.filter(created, ["n9"]))["NodeNames"] is None
    await eventually(lambda: wakes(fake_kube, "waiting") >= 1)


async def test_only_pods_that_fit_beside_each_other_are_woken_in_order_of_priority(
    fake_kube: FakeKube, scheduler: Scheduler
) -> None:
    created = fake_kube.put("pods", pod("failing", memory=8000))
    await scheduler.filter(created, ["n1"])
    await rejected(fake_kube, scheduler, "low")
    urgent = pod("urgent", memory=8000)
    urgent["spec"]["priority"] = 10
    assert (await scheduler.filter(fake_kube.put("pods", urgent), ["n1"]))["NodeNames"] is None
    fake_kube.fail("create", "pods/binding", 403)
    await scheduler.bind(created, "n1")
    await eventually(lambda: wakes(fake_kube, "urgent") >= 1)
    assert wakes(fake_kube, "low") == 0


@pytest.mark.case("LIF-05")
async def test_a_pod_that_was_tried_before_the_news_of_a_deletion_is_woken_after_it(
    fake_kube: FakeKube, scheduler: Scheduler
) -> None:
    await bound_pod(fake_kube, scheduler)
    fake_kube.pause_watches("pods")
    fake_kube.remove("pods", "holder", "default")
    await rejected(fake_kube, scheduler)
    fake_kube.resume_watches("pods")
    await eventually(lambda: wakes(fake_kube, "waiting") >= 1)


async def test_a_rejected_pod_that_no_watch_ever_saw_does_not_stand_in_the_way(
    fake_kube: FakeKube, scheduler: Scheduler
) -> None:
    holder = await bound_pod(fake_kube, scheduler)
    ghost = pod("ghost", memory=8000)
    ghost["spec"]["priority"] = 10
    assert (await scheduler.filter(ghost, ["n1"]))["NodeNames"] is None
    await rejected(fake_kube, scheduler)
    fake_kube.remove("pods", holder["metadata"]["name"], "default")
    await eventually(lambda: wakes(fake_kube, "waiting") >= 1)


async def test_a_repeated_rejection_writes_nothing_on_the_pod(fake_kube: FakeKube, scheduler: Scheduler) -> None:
    await bound_pod(fake_kube, scheduler)
    created = await rejected(fake_kube, scheduler)
    before = fake_kube.get("pods", "waiting", "default")["metadata"]["resourceVersion"]
    for _ in range(5):
        await scheduler.filter(created, ["n1", "n2"])
    await eventually(
        lambda: ("FilteringFailed", "no available node, 2 nodes do not meet") in event_texts(fake_kube, "waiting")
    )
    assert fake_kube.get("pods", "waiting", "default")["metadata"]["resourceVersion"] == before


async def test_a_pod_is_woken_at_most_once_in_its_time(fake_kube: FakeKube) -> None:
    fake_kube.put("nodes", node("n1"))
    settings = settings_for(fake_kube.url, upkeep=UpkeepSettings(wake_seconds=3600.0))
    async with running(settings) as scheduler:
        failing = fake_kube.put("pods", pod("failing", memory=9000))
        await scheduler.filter(failing, ["n1"])
        waiting = await rejected(fake_kube, scheduler, memory=7000)

        async def capacity_grows(woken: str) -> None:
            """Returns when the waker has looked, which wakes that pod."""
            fake_kube.fail("create", "pods/binding", 403)
            await scheduler.bind(failing, "n1")
            await eventually(lambda: wakes(fake_kube, woken) == 1)

        await capacity_grows("waiting")
        for name in ("second", "third"):
            await scheduler.filter(failing, ["n1"])
            assert (await scheduler.filter(waiting, ["n1"]))["NodeNames"] is None
            await rejected(fake_kube, scheduler, name, memory=1500)
            await capacity_grows(name)
        assert wakes(fake_kube, "waiting") == 1


# ---- chores ------------------------------------------------------------------------------------------------------


@pytest.mark.case("LIF-03")
async def test_stale_annotations_of_an_unbound_pod_are_removed_and_hold_nothing(
    fake_kube: FakeKube, scheduler: Scheduler
) -> None:
    stale = {"hami.io/vgpu-node": "n1", "hami.io/vgpu-time": "1", ALLOCATED_KEY: "n1-0,NVIDIA,8000,0:;", "mine": "kept"}
    fake_kube.put("pods", pod("stale", annotations=stale))
    await eventually(lambda: fake_kube.get("pods", "stale", "default")["metadata"]["annotations"] == {"mine": "kept"})
    assert await used_mib(scheduler) == 0


@pytest.mark.case("ANN-11")
async def test_a_malformed_annotation_blocks_its_card_and_is_told_on_the_pod(
    fake_kube: FakeKube, scheduler: Scheduler
) -> None:
    fake_kube.put("pods", pod("bad", node_name="n1", annotations={ALLOCATED_KEY: "n1-0,NVIDIA:;"}))
    await eventually(lambda: [reason for reason, _ in event_texts(fake_kube, "bad")] == ["AllocationUnreadable"])
    created = fake_kube.put("pods", pod("a", memory=1))
    assert (await scheduler.filter(created, ["n1"]))["FailedNodes"] == {"n1": "1/1 CardBlocked"}


@pytest.mark.usefixtures("scheduler")
async def test_a_register_annotation_that_cannot_be_read_is_told_on_the_node(fake_kube: FakeKube) -> None:
    fake_kube.put("nodes", node("torn", annotations={REGISTER_KEY: "[{"}))
    await eventually(lambda: [reason for reason, _ in event_texts(fake_kube, "torn")] == ["InventoryUnreadable"])


@pytest.mark.usefixtures("scheduler")
async def test_a_handshake_is_stamped_only_where_cards_are_registered(fake_kube: FakeKube) -> None:
    fake_kube.put("nodes", {"metadata": {"name": "plain"}, "status": {}})
    await eventually(lambda: HANDSHAKE_KEY in fake_kube.get("nodes", "n1")["metadata"]["annotations"])
    assert "annotations" not in fake_kube.get("nodes", "plain")["metadata"]


@pytest.mark.usefixtures("scheduler")
async def test_a_pod_is_labelled_where_the_server_drops_the_label_of_a_binding(fake_kube: FakeKube) -> None:
    annotations = {"hami.io/vgpu-node": "n1", "hami.io/vgpu-time": "1", ALLOCATED_KEY: "n1-0,NVIDIA,100,0:;"}
    fake_kube.put("pods", pod("old-server", node_name="n1", annotations=annotations))
    await eventually(
        lambda: fake_kube.get("pods", "old-server", "default")["metadata"].get("labels") == {"hami.io/vgpu-node": "n1"}
    )


async def test_a_node_name_too_long_for_a_label_is_bound_without_one(fake_kube: FakeKube, scheduler: Scheduler) -> None:
    long_name = "n" * 64
    fake_kube.put("nodes", node(long_name))
    await eventually(lambda: _has_cards(scheduler, f"{long_name}-0"))
    created = fake_kube.put("pods", pod("a"))
    assert (await scheduler.filter(created, [long_name]))["NodeNames"] == [long_name]
    assert await scheduler.bind(created, long_name) == {"Error": ""}
    bound = fake_kube.get("pods", "a", "default")["metadata"]
    assert bound["annotations"]["hami.io/vgpu-node"] == long_name
    assert "hami.io/vgpu-node" not in bound.get("labels", {})


async def test_a_reservation_that_hami_wrote_shortly_before_the_start_is_taken_over_and_bound(
    fake_kube: FakeKube,
) -> None:
    fake_kube.put("nodes", node("n1"))
    young = {
        keys.ASSIGNED_NODE: "n1",
        keys.ASSIGNED_TIME: str(int(datetime.now(UTC).timestamp())),
        ALLOCATED_KEY: "n1-0,NVIDIA,8000,0:;",
    }
    created = fake_kube.put("pods", pod("a", memory=8000, annotations=young))
    fake_kube.put("pods", pod("old", annotations={**young, keys.ASSIGNED_TIME: "1"}))
    async with running(settings_for(fake_kube.url)) as scheduler:
        assert await used_mib(scheduler) == 8000
        assert await scheduler.bind(created, "n1") == {"Error": ""}
        assert await used_mib(scheduler) == 8000
        await eventually(lambda: not fake_kube.get("pods", "old", "default")["metadata"].get("annotations"))
    assert fake_kube.get("pods", "a", "default")["metadata"]["annotations"][ALLOCATED_KEY] == young[ALLOCATED_KEY]


# ---- annotate at filter ------------------------------------------------------------------------------------------


@pytest.fixture
async def early(fake_kube: FakeKube) -> AsyncIterator[Scheduler]:
    """A replica that writes at filter, as HAMi does."""
    fake_kube.put("nodes", node("n1"))
    settings = settings_for(fake_kube.url, placement=PlacementSettings(annotate_at="filter"))
    async with running(settings) as found:
        yield found


async def test_a_binding_carries_the_map_that_annotate_at_filter_writes(fake_kube: FakeKube, early: Scheduler) -> None:
    created = fake_kube.put("pods", pod("a", memory=3000))
    await early.filter(created, ["n1"])
    at_filter = fake_kube.get("pods", "a", "default")["metadata"]
    await early.bind(created, "n1")
    binding = next(r for r in fake_kube.requests if r.resource == "pods/binding")
    carried = binding.body["metadata"]
    added = {"hami.io/bind-time", "hami.io/bind-phase"}
    assert {k: v for k, v in carried["annotations"].items() if k not in added} == at_filter["annotations"]
    assert set(carried["annotations"]) - set(at_filter["annotations"]) == added
    assert carried["labels"] == at_filter["labels"]


@pytest.mark.case("QUO-02")
async def test_an_early_annotation_that_cannot_be_written_reserves_nothing(
    fake_kube: FakeKube, early: Scheduler
) -> None:
    created = fake_kube.put("pods", pod("a", memory=8000))
    fake_kube.fail("patch", "pods", 403)
    answer = await early.filter(created, ["n1"])
    assert "could not be written to the pod" in answer["Error"]
    assert await used_mib(early) == 0


async def test_early_annotations_go_when_the_reservation_goes(fake_kube: FakeKube, early: Scheduler) -> None:
    created = fake_kube.put("pods", pod("a", memory=8000))
    await early.filter(created, ["n1"])
    fake_kube.fail("create", "pods/binding", 403)
    await early.bind(created, "n1")
    await eventually(lambda: not fake_kube.get("pods", "a", "default")["metadata"].get("annotations"))


# ---- the node lock -----------------------------------------------------------------------------------------------


@pytest.fixture
async def locking(fake_kube: FakeKube) -> AsyncIterator[Scheduler]:
    """A replica over a node whose hand-off is `lock`; a bind waits for the lock as long as it takes."""
    fake_kube.put("nodes", node("n1", handoff="lock"))
    bind = BindSettings(timeout_seconds=20.0, lock_wait_seconds=300.0)
    async with running(settings_for(fake_kube.url, bind=bind)) as found:
        yield found


@pytest.fixture
async def impatient(fake_kube: FakeKube) -> AsyncIterator[Scheduler]:
    """A replica over such a node; a bind gives up soon."""
    fake_kube.put("nodes", node("n1", handoff="lock"))
    bind = BindSettings(timeout_seconds=20.0, lock_wait_seconds=0.5)
    async with running(settings_for(fake_kube.url, bind=bind)) as found:
        yield found


def lock_of(fake: FakeKube) -> str:
    return str(fake.get("nodes", "n1")["metadata"]["annotations"].get(keys.NODE_LOCK, ""))


async def test_a_lock_node_is_locked_by_one_patch_before_the_binding(fake_kube: FakeKube, locking: Scheduler) -> None:
    created = fake_kube.put("pods", pod("a"))
    await eventually(lambda: HANDSHAKE_KEY in fake_kube.get("nodes", "n1")["metadata"]["annotations"])
    await locking.filter(created, ["n1"])
    assert await locking.bind(created, "n1") == {"Error": ""}
    assert lock_of(fake_kube).endswith(",default,a")


async def test_a_waiting_bind_goes_on_when_the_lock_is_freed(fake_kube: FakeKube, locking: Scheduler) -> None:
    first, second = fake_kube.put("pods", pod("a")), fake_kube.put("pods", pod("b"))
    await locking.filter(first, ["n1"])
    await locking.bind(first, "n1")
    await locking.filter(second, ["n1"])
    waiting = asyncio.create_task(locking.bind(second, "n1"))
    await fake_kube.wait_for_requests("get", "pods", 1)
    freed = fake_kube.get("nodes", "n1")
    del freed["metadata"]["annotations"][keys.NODE_LOCK]
    fake_kube.put("nodes", freed)
    assert await waiting == {"Error": ""}
    assert lock_of(fake_kube).endswith(",default,b")


@pytest.mark.case("LCK-01")
@pytest.mark.case("LCK-05")
async def test_a_bind_that_waited_too_long_leaves_the_lock_of_the_other(
    fake_kube: FakeKube, impatient: Scheduler
) -> None:
    first, second = fake_kube.put("pods", pod("a")), fake_kube.put("pods", pod("b"))
    await impatient.filter(first, ["n1"])
    await impatient.bind(first, "n1")
    await impatient.filter(second, ["n1"])
    assert "node lock contention" in (await impatient.bind(second, "n1"))["Error"]
    assert lock_of(fake_kube).endswith(",default,a")
    assert await used_mib(impatient) == 1000


@pytest.mark.parametrize("code", [403, 404, 409, 503])
async def test_a_bind_that_failed_gives_its_lock_back(fake_kube: FakeKube, locking: Scheduler, code: int) -> None:
    created = fake_kube.put("pods", pod("a"))
    await locking.filter(created, ["n1"])
    fake_kube.fail("create", "pods/binding", code)
    assert (await locking.bind(created, "n1"))["Error"] != ""
    await eventually(lambda: lock_of(fake_kube) == "")


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("", marks=pytest.mark.case("LCK-08"), id="an empty value"),
        pytest.param("not-a-time", id="no time"),
        pytest.param("2026-01-01T00:00:00Z,ns", id="two parts"),
        pytest.param("2026-01-01T00:00:00Z,ns,gone", marks=pytest.mark.case("LCK-03"), id="an owner that is gone"),
    ],
)
async def test_a_lock_that_nobody_waits_behind_is_taken_over(
    fake_kube: FakeKube, locking: Scheduler, value: str
) -> None:
    locked = fake_kube.get("nodes", "n1")
    locked["metadata"]["annotations"][keys.NODE_LOCK] = value
    fake_kube.put("nodes", locked)
    created = fake_kube.put("pods", pod("a"))
    await locking.filter(created, ["n1"])
    assert await locking.bind(created, "n1") == {"Error": ""}
    assert lock_of(fake_kube).endswith(",default,a")


# ---- client certificates ---------------------------------------------------------------------------------------


async def test_with_a_client_authority_only_callers_with_a_certificate_are_answered(
    fake_kube: FakeKube, tmp_path: Path
) -> None:
    authority = CertificateAuthority.load_or_create(CertificateFiles(tmp_path / "ca.crt", tmp_path / "ca.key"), "ca")
    served = authority.issue_server(
        CertificateFiles(tmp_path / "tls.crt", tmp_path / "tls.key"), "extender", ("127.0.0.1",)
    )
    caller = authority.issue_client(
        CertificateFiles(tmp_path / "caller.crt", tmp_path / "caller.key"), Identity("kube-scheduler")
    )
    fake_kube.put("nodes", node("n1"))
    settings = settings_for(fake_kube.url)
    tls = TlsSettings(
        cert_file=str(served.certificate), key_file=str(served.key), client_ca_file=str(authority.files.certificate)
    )
    extender = msgspec.structs.replace(settings.extender, tls=tls)
    trust = ssl.create_default_context(cafile=str(authority.files.certificate))
    body = msgspec.json.encode({"Pod": pod("a"), "Nodes": None, "NodeNames": ["n1"]})
    async with (
        running(msgspec.structs.replace(settings, extender=extender)) as scheduler,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as client,
    ):
        url = scheduler.url.replace("http://", "https://") + "/filter"
        with pytest.raises(aiohttp.ClientError):
            async with client.post(url, data=body, ssl=trust):
                pass
        trust.load_cert_chain(caller.certificate, caller.key)
        async with client.post(url, data=body, ssl=trust) as response:
            assert (response.status, (await response.json())["NodeNames"]) == (200, ["n1"])


# ---- settings ----------------------------------------------------------------------------------------------------


def test_an_extender_beyond_loopback_needs_client_certificates() -> None:
    settings = settings_for("http://127.0.0.1:1")
    http = msgspec.structs.replace(settings.extender.http, host="0.0.0.0")
    exposed = msgspec.structs.replace(settings, extender=ExtenderSettings(http=http), kube=KubeSettings())
    assert [path for path, _ in exposed.faults()] == ["extender.http.host"]
    assert list(settings.faults()) == []
