"""Filter calls that carry whole Node objects, over real HTTP: as the Cluster Autoscaler asks about nodes to come."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec
import pytest
from hami_model.errors import MalformedJson
from hami_scheduler.config import ExtenderSettings, PlacementSettings
from hami_scheduler.core import extender
from hami_sim.fake_kube import FakeKube
from hypothesis import given
from hypothesis import strategies as st
from scheduler_builders import Json, card, container, node, pod, quota
from scheduler_service import Scheduler, running, settings_for

CORDON = "hami.io/device-cordon"


@pytest.fixture
async def scheduler(fake_kube: FakeKube) -> AsyncIterator[Scheduler]:
    """One replica over one node with one card of 10,000 MiB, and a quota of 12,000 MiB in namespace `small`."""
    fake_kube.put("nodes", node("n1"))
    fake_kube.put("resourcequotas", quota("q", "small", gpumem=12_000))
    async with running(settings_for(fake_kube.url)) as found:
        yield found


async def simulate(scheduler: Scheduler, wanted: Json, *nodes: Json) -> Json:
    body = {"Pod": wanted, "Nodes": {"metadata": {}, "items": list(nodes)}, "NodeNames": None}
    status, answer = await scheduler.post("filter", body)
    assert status == 200, answer
    return answer


def names(answer: Json) -> list[str]:
    assert answer["NodeNames"] is None
    return [item["metadata"]["name"] for item in (answer["Nodes"] or {"items": []})["items"]]


@pytest.mark.case("SCL-04")
async def test_all_nodes_that_would_take_the_pod_come_back_as_they_were_sent(scheduler: Scheduler) -> None:
    fits = node("template-b", 2)
    fits["spec"] = {"podCIDRs": ["10.0.0.0/24"], "unknownField": {"a": [1, 2.50, None]}}
    sent = [node("template-c", 1), fits, node("template-a", []), node("template-d", [card("d", memory_mib=500)])]
    answer = await simulate(scheduler, pod("a", gpu=1), *sent)
    assert answer["Nodes"] == {"metadata": {}, "items": sent[:2]}
    assert answer["FailedNodes"] == {"template-a": "node unregistered", "template-d": "1/1 CardInsufficientMemory"}
    assert answer["Error"] == ""


@pytest.mark.case("SCL-04")
async def test_what_is_booked_does_not_matter_and_nothing_is_booked(scheduler: Scheduler, fake_kube: FakeKube) -> None:
    full = fake_kube.put("pods", pod("full", memory=10_000))
    assert (await scheduler.filter(full, ["n1"]))["NodeNames"] == ["n1"]
    written = len(fake_kube.requests)
    for _ in range(3):
        assert names(await simulate(scheduler, pod("a", memory=10_000), node("n1"), node("n2"))) == ["n1", "n2"]
        # The simulation of a reserved pod leaves its reservation alone.
        assert names(await simulate(scheduler, full, node("n2"))) == ["n2"]
    assert await scheduler.metric("hami_scheduler_reservations") == 1
    assert await scheduler.metric('hami_scheduler_decisions_total{end="simulated"}') == 6
    assert (await scheduler.filter(pod("b", memory=1), ["n1"]))["NodeNames"] is None
    assert [
        r for r in fake_kube.requests[written:] if r.verb not in ("get", "list", "watch") and "pods" in r.resource
    ] == []


async def test_never_and_not_now_differ(scheduler: Scheduler) -> None:
    nodes = [node("cordoned", annotations={CORDON: "cordoned-0"}), node("small", [card("s", memory_mib=900)])]
    answer = await simulate(scheduler, pod("a"), *nodes)
    assert answer["Nodes"] is None
    assert answer["FailedNodes"] == {"cordoned": "1/1 CardCordoned"}
    assert answer["FailedAndUnresolvableNodes"] == {"small": "1/1 CardInsufficientMemory"}


async def test_quota_counts_with_what_the_namespace_uses_and_not_with_the_pod_itself(
    scheduler: Scheduler, fake_kube: FakeKube
) -> None:
    first = fake_kube.put("pods", pod("first", memory=7000, namespace="small"))  # else it is soon found to be gone
    assert (await scheduler.filter(first, ["n1"]))["NodeNames"] == ["n1"]
    assert names(await simulate(scheduler, first, node("t"))) == ["t"]
    assert names(await simulate(scheduler, pod("fits", memory=5000, namespace="small"), node("t"))) == ["t"]
    over = await simulate(scheduler, pod("over", memory=5001, namespace="small"), node("t"))
    assert over["FailedNodes"] == {"t": "1/1 ResourceQuotaNotFit"}
    assert names(await simulate(scheduler, pod("over", memory=5001), node("t"))) == ["t"]


async def test_a_pod_without_cards_fits_everywhere(scheduler: Scheduler) -> None:
    plain = pod("plain", containers=[container()])
    assert names(await simulate(scheduler, plain, node("b"), node("a", []))) == ["b", "a"]


async def test_a_pod_that_wants_connected_cards_is_simulated_too(scheduler: Scheduler) -> None:
    scores = json.dumps([{"uuid": "t-0", "score": {"t-1": 10}}, {"uuid": "t-1", "score": {"t-0": 10}}])
    wanted = pod("a", gpu=2, annotations={"hami.io/gpu-scheduler-policy": "topology-aware"})
    scored = node("t", 3, annotations={"hami.io/node-nvidia-score": scores})
    assert names(await simulate(scheduler, wanted, scored, node("u", 1))) == ["t"]


async def test_an_invalid_request_fits_nowhere(scheduler: Scheduler) -> None:
    answer = await simulate(scheduler, pod("odd", memory="4Gi"), node("a"))
    assert answer["Nodes"] is None
    assert "InvalidRequest" in answer["FailedAndUnresolvableNodes"]["a"]


async def test_no_nodes_and_nodes_as_any_go_program_may_spell_them(scheduler: Scheduler) -> None:
    for nodes in ({"items": []}, {"items": None}, {}):
        status, answer = await scheduler.post("filter", {"Pod": pod("a"), "Nodes": nodes, "NodeNames": None})
        assert (status, answer["Nodes"], answer["FailedNodes"], answer["Error"]) == (200, None, None, "")
    status, answer = await scheduler.post("filter", {"pod": pod("a"), "nodes": {"Items": [node("t")]}})
    assert status == 200
    assert names(answer) == ["t"]


async def test_an_unreadable_node_is_named(scheduler: Scheduler) -> None:
    sent = {"items": [node("a"), {"metadata": {"name": 1}}]}
    status, answer = await scheduler.post("filter", {"Pod": pod("a"), "Nodes": sent})
    assert status == 400
    assert "Nodes.items[1]" in answer["error"]


async def test_only_selected_nodes_take_part(fake_kube: FakeKube) -> None:
    selecting = PlacementSettings(node_selector={"gpu": "on"})
    async with running(settings_for(fake_kube.url, placement=selecting)) as scheduler:
        chosen, other = node("chosen"), node("other")
        chosen["metadata"]["labels"] = {"gpu": "on"}
        answer = await simulate(scheduler, pod("a"), chosen, other)
    assert names(answer) == ["chosen"]
    assert answer["FailedNodes"] == {"other": "node unregistered"}


async def test_a_request_of_many_nodes_passes_where_the_limit_is_raised(fake_kube: FakeKube) -> None:
    """Larger than HAMi's limit of 1 MiB by far, and than our own default."""
    nodes = [node(f"template-{number:04}", 8) for number in range(1000)]
    for each in nodes:
        each["metadata"]["annotations"]["filler"] = "x" * 10_000
    body = msgspec.json.encode({"Pod": pod("a"), "Nodes": {"items": nodes}, "NodeNames": None})
    assert len(body) > 8 * 2**20
    settings = settings_for(fake_kube.url)
    wide = ExtenderSettings(http=settings.extender.http, filter_limit_bytes=64 * 2**20)
    async with running(msgspec.structs.replace(settings, extender=wide)) as scheduler:
        status, answer = await scheduler.post("filter", body)
        assert status == 200
        assert len(names(answer)) == 1000


async def test_a_request_beyond_the_limit_is_told_what_to_set(fake_kube: FakeKube) -> None:
    settings = settings_for(fake_kube.url)
    narrow = ExtenderSettings(http=settings.extender.http, filter_limit_bytes=1000)
    async with running(msgspec.structs.replace(settings, extender=narrow)) as scheduler:
        status, answer = await scheduler.post("filter", {"Pod": pod("a"), "Nodes": {"items": [node("t", 8)]}})
    assert status == 413
    assert answer["error"] == "the request is larger than 1000 bytes; raise extender.filter_limit_bytes"


keys = st.sampled_from(["items", "Items", "metadata", "name", "x"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@given(values)
def test_any_nodes_are_read_or_refused(nodes: object) -> None:
    with suppress(MalformedJson):
        arguments = extender.decode_filter(json.dumps({"Pod": pod("a"), "Nodes": nodes}).encode())
        if arguments.nodes is not None:
            extender.decode_nodes(arguments.nodes)
