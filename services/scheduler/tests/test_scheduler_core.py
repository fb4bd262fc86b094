"""The pure decisions: ledger, filter, binding, waking, comparison, catch-up, words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hami_model import device_config, events, keys, kube, register, requests
from hami_model.errors import InvalidRequestError
from hami_model.ids import AllocationId
from hami_model.lifecycle import ExpiryCause
from hami_model.vendors import vendor
from hami_scheduler.core import binding, extender, rejections
from hami_scheduler.core.announcements import Announcements
from hami_scheduler.core.catch_up import missing_events
from hami_scheduler.core.compare import compare
from hami_scheduler.core.extender import filter_result
from hami_scheduler.core.filter import FilterAnswer, filter_pod
from hami_scheduler.core.ledger import RESERVATION_LIFETIME, Ledger
from hami_scheduler.core.reduction import Reduction
from hami_scheduler.core.simulation import ClusterMaker, begin
from hami_scheduler.core.waking import RejectedPod, pods_to_wake
from scheduler_builders import ALLOCATED_KEY, NVIDIA, Json, card, container, limits, node, pod, quota

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
N1 = ["n1"]
TOO_SMALL = "1/1 CardInsufficientMemory"


def as_pod(document: Json, version: int = 1) -> kube.Pod:
    document["metadata"]["resourceVersion"] = str(version)
    return msgspec.convert(document, kube.Pod)


def as_node(document: Json, version: int = 1) -> kube.Node:
    document["metadata"]["resourceVersion"] = str(version)
    return msgspec.convert(document, kube.Node)


@pytest.fixture
def ledger() -> Ledger:
    """One node, one card of 10,000 MiB; everything has been listed."""
    found = Ledger(device_config.default_config())
    found.upsert_node(as_node(node("n1")), NOW)
    found.adopting = False
    return found


def place(ledger: Ledger, document: Json, names: list[str] | None = None, id_: str = "id-1") -> FilterAnswer:
    return filter_pod(ledger, as_pod(document), names or N1, allocation_id=AllocationId(id_), now=NOW)


def used(ledger: Ledger, node_name: str = "n1") -> int:
    return sum(found.used_memory_mib for found in ledger.cluster.node_cards(node_name))


def written(document: Json, text: str, node_name: str = "n1", time: datetime = NOW, id_: str = "id-1") -> Json:
    """The pod with the allocation on it."""
    annotations = {
        keys.ASSIGNED_NODE: node_name,
        keys.ASSIGNED_TIME: str(int(time.timestamp())),
        keys.ALLOCATION_ID: id_,
        ALLOCATED_KEY: text,
    }
    found: Json = {**document, "metadata": {**document["metadata"], "annotations": annotations}}
    return found


def bound(document: Json, text: str = "n1-0,NVIDIA,8000,0:;") -> Json:
    found = written(document, text)
    found["spec"] = {**found["spec"], "nodeName": "n1"}
    return found


# ---- the ledger --------------------------------------------------------------------------------------------------


def test_a_simulation_counts_use_beyond_what_one_slice_holds(ledger: Ledger) -> None:
    for name in ("a", "b"):
        ledger.upsert_pod(as_pod(bound(pod(name), "n1-0,NVIDIA,2147483647,2147483647:;")), NOW)
    ledger.upsert_quota(msgspec.convert(quota("q", "default", gpumem=2**32, gpucores=2**33), kube.ResourceQuota))
    maker = ClusterMaker(ledger.config, {})
    fits, refused = (
        begin(ledger, maker, as_pod(pod("new", memory=memory))).answer([as_node(node("t"))]) for memory in (2, 3)
    )
    assert (fits.fitting, refused.fitting) == (["t"], [])
    assert "ResourceQuota" in refused.failed_nodes["t"]


def test_an_id_that_two_families_offer_is_one_card_that_takes_no_new_pods(ledger: Ledger) -> None:
    """Whose card a pod holds would not be told apart; one node must not stop the informer either."""
    dcu = vendor("DCU")
    document = node("n1", [card("same"), card("own")])
    offered = register.encode(dcu, [card("same", model="DCU"), card("dcu", model="DCU")])
    document["metadata"]["annotations"][dcu.register_key] = offered
    document["status"]["allocatable"]["hygon.com/dcunum"] = "20"
    change = ledger.upsert_node(as_node(document, 2), NOW)
    assert "'same'" in change.problems["NVIDIA"]
    healthy = {found.card_id: found.healthy for found in ledger.cluster.node_cards("n1")}
    assert healthy == {"same": False, "dcu": True, "own": True}
    simulated = ClusterMaker(ledger.config, {}).cluster([as_node(document)])
    assert {found.card_id: found.healthy for found in simulated.node_cards("n1")} == healthy


@pytest.mark.case("ANN-01")
def test_each_container_has_its_slot_init_containers_first(ledger: Ledger) -> None:
    found = place(
        ledger,
        pod(
            "a",
            init_containers=[container("prepare")],
            containers=[container("c0"), container("c1", ask=limits(memory=3000)), container("c2")],
        ),
    )
    assert found.annotations[ALLOCATED_KEY] == ";;n1-0,NVIDIA,3000,0:;;"


def test_a_second_filter_of_a_pod_does_not_count_itself(ledger: Ledger) -> None:
    first = pod("a", memory=8000)
    place(ledger, first)
    again = place(ledger, first, id_="id-2")
    assert again.node_names == N1
    assert again.superseded is not None
    assert again.superseded[1] is ExpiryCause.SUPERSEDED
    assert used(ledger) == 8000


@pytest.mark.case("LIF-03")
def test_a_second_filter_that_fails_gives_the_first_back_and_no_resync_brings_it_again(ledger: Ledger) -> None:
    first = pod("a", memory=1000)
    place(ledger, first)
    assert place(ledger, first, ["elsewhere"]).node_names is None
    assert used(ledger) == 0
    stale = ledger.upsert_pod(as_pod(written(first, "n1-0,NVIDIA,1000,0:;"), 2), NOW)
    assert stale.stale_annotations
    assert used(ledger) == 0


@pytest.mark.case("LIF-03")
def test_a_filter_of_a_bound_pod_fails_and_its_record_stays(ledger: Ledger) -> None:
    first = pod("a", memory=8000)
    ledger.upsert_pod(as_pod(bound(first)), NOW)
    answer = place(ledger, first)
    assert answer.error is not None
    assert used(ledger) == 8000


def test_unbound_versions_after_our_binding_are_older_and_are_ignored(ledger: Ledger) -> None:
    first = pod("a", memory=8000)
    place(ledger, first)
    assert ledger.confirm(first["metadata"]["uid"], AllocationId("id-1")) is not None
    given_up = {**first, "status": {"conditions": [{"type": "PodScheduled", "status": "False"}]}}
    ledger.upsert_pod(as_pod(given_up, 9), NOW)
    assert used(ledger) == 8000
    ledger.upsert_pod(as_pod(bound(first), 10), NOW)
    assert used(ledger) == 8000
    ledger.remove_pod(first["metadata"]["uid"])
    assert used(ledger) == 0


def test_a_confirmation_of_another_reservation_changes_nothing(ledger: Ledger) -> None:
    first = pod("a", memory=8000)
    place(ledger, first, id_="id-2")
    assert ledger.confirm(first["metadata"]["uid"], AllocationId("id-1")) is None
    assert first["metadata"]["uid"] in ledger.reservations


@pytest.mark.parametrize(
    ("version", "status", "kept"),
    [
        pytest.param(1, "False", True, id="a condition of the version that was filtered is old news"),
        pytest.param(2, "False", False, id="a new condition in a later version: kube-scheduler gave up"),
        pytest.param(2, "True", True, id="scheduled is no giving up"),
    ],
)
def test_when_a_condition_ends_a_reservation(ledger: Ledger, version: int, status: str, kept: bool) -> None:
    first = pod("a", memory=8000)
    place(ledger, first)
    first["status"]["conditions"] = [{"type": "PodScheduled", "status": status, "reason": "Unschedulable"}]
    change = ledger.upsert_pod(as_pod(first, version), NOW)
    assert (change.expired is None) is kept
    assert used(ledger) == (8000 if kept else 0)


def test_a_reservation_ends_by_age_unless_its_bind_is_under_way(ledger: Ledger) -> None:
    first = pod("a", memory=8000)
    place(ledger, first)
    late = NOW + RESERVATION_LIFETIME
    assert ledger.expire_old(late, frozenset({first["metadata"]["uid"]})) == []
    assert ledger.expire_old(late - timedelta(seconds=1)) == []
    assert [found.name for found in ledger.expire_old(late)] == ["a"]
    assert used(ledger) == 0


def test_a_clock_that_is_set_back_lengthens_no_reservation(ledger: Ledger) -> None:
    place(ledger, pod("a", memory=8000))
    back = NOW - timedelta(hours=3)

    assert ledger.expire_old(back) == []
    assert ledger.expire_old(back + RESERVATION_LIFETIME - timedelta(seconds=1)) == []
    assert [found.name for found in ledger.expire_old(back + RESERVATION_LIFETIME)] == ["a"]
    assert used(ledger) == 0


@pytest.mark.parametrize(
    ("age_seconds", "scheduled", "adopted"),
    [
        pytest.param(60, None, True, id="a young one is taken over"),
        pytest.param(360, None, False, id="one of six minutes is too old"),
        pytest.param(60, "False", False, id="one that kube-scheduler gave up is not"),
    ],
)
def test_which_unbound_allocations_of_hami_are_taken_over_at_start(
    ledger: Ledger, age_seconds: int, scheduled: str | None, adopted: bool
) -> None:
    ledger.adopting = True
    found = written(pod("a"), "n1-0,NVIDIA,8000,0:;", time=NOW - timedelta(seconds=age_seconds))
    if scheduled:
        found["status"]["conditions"] = [{"type": "PodScheduled", "status": scheduled}]
    change = ledger.upsert_pod(as_pod(found), NOW)
    assert change.stale_annotations is not adopted
    assert used(ledger) == (8000 if adopted else 0)


@pytest.mark.case("QUO-04")
@pytest.mark.parametrize("ends", [("Succeeded", "gone"), ("gone",), ("gone", "gone"), ("Failed",)])
def test_the_end_of_a_pod_gives_back_once(ledger: Ledger, ends: tuple[str, ...]) -> None:
    other = bound(pod("b"), "n1-0,NVIDIA,500,0:;")
    ledger.upsert_pod(as_pod(other), NOW)
    first = bound(pod("a"), "n1-0,NVIDIA,1000,0:;")
    ledger.upsert_pod(as_pod(first), NOW)
    released = []
    for end in ends:
        if end == "gone":
            change = ledger.remove_pod(first["metadata"]["uid"])
        else:
            change = ledger.upsert_pod(as_pod({**first, "status": {"phase": end}}, 2), NOW)
        released.append(change.released is not None)
    assert released.count(True) == 1
    assert ledger.cluster.quota_used("default", NVIDIA) == (500, 0)


@pytest.mark.case("QUO-01")
@pytest.mark.parametrize("order", [(1000, 8000), (8000, 1000)])
def test_the_least_of_several_quotas_holds_in_any_order(ledger: Ledger, order: tuple[int, int]) -> None:
    for memory in order:
        ledger.upsert_quota(msgspec.convert(quota(f"q{memory}", "default", gpumem=memory), kube.ResourceQuota))
    assert place(ledger, pod("a", memory=2000)).node_names is None
    ledger.remove_quota("default", "q8000")
    assert place(ledger, pod("a", memory=7000)).node_names is None
    ledger.remove_quota("default", "q1000")
    assert place(ledger, pod("a", memory=7000)).node_names == N1


@pytest.mark.case("QUO-09")
def test_a_quota_of_nothing_lets_nothing_pass(ledger: Ledger) -> None:
    ledger.upsert_quota(msgspec.convert(quota("q", "default", gpumem=0), kube.ResourceQuota))
    assert place(ledger, pod("a", memory=1)).node_names is None


@pytest.mark.case("QUO-05")
@pytest.mark.parametrize(("limit", "fits"), [(4095, False), (4096, True)])
def test_a_quota_counts_memory_times_cards(ledger: Ledger, limit: int, fits: bool) -> None:
    ledger.upsert_node(as_node(node("n1", 2), 2), NOW)
    ledger.upsert_quota(msgspec.convert(quota("q", "default", gpumem=limit), kube.ResourceQuota))
    assert (place(ledger, pod("a", gpu=2, memory=2048, cores=20)).node_names == N1) is fits


def test_a_quota_that_says_the_same_again_is_no_change(ledger: Ledger) -> None:
    found = msgspec.convert(quota("q", "default", gpumem=5), kube.ResourceQuota)
    assert [ledger.upsert_quota(found), ledger.upsert_quota(found)] == [True, False]


@pytest.mark.case("ANN-11")
@pytest.mark.parametrize("text", ["n1-0,NVIDIA:;", "n1-0,NVIDIA,x,0:;", "n1-0,NVIDIA,-5,0:;", "n1-0,MLU,5,0:;"])
def test_a_malformed_annotation_blocks_the_card_until_it_is_mended(ledger: Ledger, text: str) -> None:
    ledger.upsert_node(as_node(node("n1", 2), 2), NOW)
    bad = bound(pod("bad"), text)
    change = ledger.upsert_pod(as_pod(bad), NOW)
    assert change.new_problem is not None
    assert ledger.upsert_pod(as_pod(bad, 2), NOW).new_problem is None
    assert place(ledger, pod("a", gpu=2)).node_names is None
    assert place(ledger, pod("b", gpu=1)).annotations[ALLOCATED_KEY].startswith("n1-1,")
    ledger.remove_pod(bad["metadata"]["uid"])
    assert place(ledger, pod("a", gpu=2)).node_names == N1


def test_a_terminating_pod_holds_its_cards(ledger: Ledger) -> None:
    leaving = bound(pod("a"))
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    ledger.upsert_pod(as_pod(leaving), NOW)
    assert used(ledger) == 8000


def test_a_health_event_holds_until_the_node_was_seen_at_its_version(ledger: Ledger) -> None:
    assert ledger.set_health("n1", "n1-0", healthy=False, node_version=5)
    ledger.upsert_node(as_node(node("n1"), 4), NOW)
    assert place(ledger, pod("a")).failed_nodes == {"n1": "1/1 CardNotHealth"}
    ledger.upsert_node(as_node(node("n1", [card("n1-0", healthy=True, slots=9)]), 5), NOW)
    assert place(ledger, pod("a")).node_names == N1
    assert not ledger.set_health("n1", "n1-0", healthy=False, node_version=3)


def test_a_card_is_as_its_node_says_once_an_event_is_overtaken(ledger: Ledger) -> None:
    sick = node("n1", [card("n1-0", healthy=False)])
    ledger.upsert_node(as_node(sick, 10), NOW)
    assert ledger.set_health("n1", "n1-0", healthy=True, node_version=12)
    ledger.upsert_node(as_node(sick, 14), NOW)
    assert place(ledger, pod("a")).failed_nodes == {"n1": "1/1 CardNotHealth"}


def test_an_older_health_event_never_replaces_a_newer_one(ledger: Ledger) -> None:
    assert ledger.set_health("n1", "n1-0", healthy=False, node_version=14)
    assert not ledger.set_health("n1", "n1-0", healthy=True, node_version=12)
    assert place(ledger, pod("a")).failed_nodes == {"n1": "1/1 CardNotHealth"}


def test_a_quota_beyond_64_bits_limits_nothing_and_keeps_the_other_limits(ledger: Ledger) -> None:
    ledger.upsert_quota(msgspec.convert(quota("q", "default", gpumem="100E", gpucores="10"), kube.ResourceQuota))
    assert place(ledger, pod("a", cores=50)).node_names is None
    assert place(ledger, pod("b", cores=10)).node_names == N1


def test_a_register_annotation_that_stops_parsing_keeps_the_cards_and_is_told_once(ledger: Ledger) -> None:
    torn = node("n1")
    torn["metadata"]["annotations"] = dict.fromkeys(torn["metadata"]["annotations"], "[{")
    assert list(ledger.upsert_node(as_node(torn, 2), NOW).problems) == [NVIDIA]
    assert ledger.upsert_node(as_node(torn, 3), NOW).problems == {}
    assert place(ledger, pod("a")).node_names == N1


def test_nodes_without_the_wanted_labels_take_no_part() -> None:
    ledger = Ledger(device_config.default_config(), node_selector={"gpu": "on"})
    ledger.upsert_node(as_node(node("n1")), NOW)
    assert place(ledger, pod("a")).failed_nodes == {"n1": "node unregistered"}
    labelled = node("n1")
    labelled["metadata"]["labels"] = {"gpu": "on"}
    ledger.upsert_node(as_node(labelled, 2), NOW)
    assert place(ledger, pod("a")).node_names == N1


# ---- comparison with the pods ------------------------------------------------------------------------------------


@pytest.mark.case("LIF-02")
def test_a_comparison_finds_what_is_missing_and_what_may_be_gone(ledger: Ledger) -> None:
    known, unknown = as_pod(bound(pod("known"))), as_pod(bound(pod("unknown")))
    gone = as_pod(bound(pod("gone"), "n1-0,NVIDIA,1,0:;"))
    ledger.upsert_pod(known, NOW)
    ledger.upsert_pod(gone, NOW)
    just_bound = pod("just-bound", memory=1)
    place(ledger, just_bound)
    ledger.confirm(just_bound["metadata"]["uid"], AllocationId("id-1"))
    drift = compare(ledger, [known, unknown, as_pod(pod("unbound"))])
    assert [found.metadata.name for found in drift.missing] == ["unknown"]
    assert [found.name for found in drift.absent] == ["gone", "just-bound"]


# ---- binding -----------------------------------------------------------------------------------------------------


def test_a_binding_carries_what_filter_decided_and_the_time_of_the_bind(ledger: Ledger) -> None:
    answer = place(ledger, pod("a", memory=3000))
    assert answer.reservation is not None
    carried = binding.binding_map(answer.reservation, device_config.default_config(), NOW + timedelta(seconds=9))
    later = str(int(NOW.timestamp()) + 9)
    assert carried.annotations == {
        **answer.annotations,
        keys.BIND_TIME: later,
        keys.BIND_PHASE: keys.BIND_PHASE_ALLOCATING,
    }
    assert carried.labels == answer.labels


@pytest.mark.parametrize(
    ("lease", "call", "limit", "expected"),
    [
        pytest.param(5.0, 29.0, 8.0, 5.0, id="the lease ends first"),
        pytest.param(10.0, 3.0, 8.0, 3.0, id="the call ends first"),
        pytest.param(10.0, 29.0, 8.0, 8.0, id="the setting"),
        pytest.param(0.0, 29.0, 8.0, None, id="no lease"),
        pytest.param(10.0, -1.0, 8.0, None, id="the call is over"),
    ],
)
def test_a_binding_ends_before_lease_and_call(lease: float, call: float, limit: float, expected: float | None) -> None:
    assert binding.bind_timeout_seconds(lease_seconds=lease, call_seconds=call, limit_seconds=limit) == expected


@pytest.mark.parametrize(("handoff", "locked"), [("lock", True), ("late-binding", False)])
def test_only_a_node_whose_handoff_is_lock_needs_one(handoff: str, locked: bool) -> None:
    ledger = Ledger(device_config.default_config())
    ledger.upsert_node(as_node(node("n1", handoff=handoff)), NOW)  # type: ignore[arg-type]
    answer = place(ledger, pod("a"))
    assert answer.reservation is not None
    assert binding.needs_lock(ledger, answer.reservation) is locked


# ---- waking ------------------------------------------------------------------------------------------------------


def test_rejected_pods_are_placed_together_by_priority_then_age(ledger: Ledger) -> None:
    holder = pod("holder", memory=9000)
    place(ledger, holder)

    def waiting(name: str, priority: int, created: str) -> RejectedPod:
        found = place(ledger, pod(name, memory=6000))
        assert found.rejection is not None
        request = msgspec.structs.replace(_request(ledger, name), uid=name)
        return RejectedPod(request=request, candidates=("n1",), priority=priority, created_at=created)

    crowd = [waiting("young", 0, "2026-01-02"), waiting("old", 0, "2026-01-01"), waiting("urgent", 5, "2026-01-03")]
    assert pods_to_wake(ledger.cluster, crowd) == []
    ledger.expire(holder["metadata"]["uid"], ExpiryCause.TIMEOUT)
    assert [found.uid for found in pods_to_wake(ledger.cluster, crowd)] == ["urgent"]
    assert [found.uid for found in pods_to_wake(ledger.cluster, crowd[:2])] == ["old"]
    assert used(ledger) == 0


def _request(ledger: Ledger, name: str) -> requests.PodRequest:
    return requests.pod_request(as_pod(pod(name, memory=6000)), ledger.config, ledger.policies)


# ---- catching up -------------------------------------------------------------------------------------------------


def test_what_the_stream_lacks(ledger: Ledger) -> None:
    announcements = Announcements("/hami/scheduler/s-0")
    live, dropped = pod("live", memory=1), pod("dropped", memory=1)
    place(ledger, dropped, id_="dropped")
    reserved_then_dropped = announcements.reserved(ledger.reservations[dropped["metadata"]["uid"]], NOW)
    ledger.expire(dropped["metadata"]["uid"], ExpiryCause.TIMEOUT)
    place(ledger, live, id_="live")
    still_reserved = announcements.reserved(ledger.reservations[live["metadata"]["uid"]], NOW)
    untold = as_pod(written(bound(pod("untold")), "n1-0,NVIDIA,5,0:;", id_="untold"))
    ledger.upsert_pod(untold, NOW)
    allocated = events.AllocationAllocated(
        source="/x", time=NOW, allocation_id="gone", pod=events.PodRef(namespace="d", name="g", uid="g"), node="n1"
    )
    closed = events.AllocationReleased(
        source="/x", time=NOW, allocation_id="over", pod=events.PodRef(namespace="d", name="o", uid="o"), node="n1"
    )
    found = missing_events(
        [reserved_then_dropped, still_reserved, allocated, closed],
        ledger,
        {untold.uid: untold}.get,
        announcements,
        NOW,
    )
    assert [event.id for event in found] == ["dropped.expired", "gone.released", "untold.allocating"]


# ---- words and wire ----------------------------------------------------------------------------------------------


def test_texts_name_a_bounded_number_of_nodes(ledger: Ledger) -> None:
    names = [f"node-{number:05}" for number in range(5000)]
    for name in names:
        ledger.upsert_node(as_node(node(name)), NOW)
    answer = place(ledger, pod("a", memory=20_000), names)
    told = rejections.notices(answer, names)
    assert all(len(notice.message) < 1024 for notice in told)
    assert told[0].message.startswith("5000 nodes CardInsufficientMemory(node-00000,node-00001,")
    assert told[-1].message == "no available node, 5000 nodes do not meet"
    assert rejections.sentence(answer, 5000) == "0 of 5000 nodes fit: 5000 CardInsufficientMemory"
    assert len(rejections.examples(answer)) == 10


def test_the_answer_on_the_wire() -> None:
    placed = extender.encode(filter_result(FilterAnswer(node_names=["n1"])))
    assert placed == (
        b'{"Nodes":null,"NodeNames":["n1"],"FailedNodes":null,"FailedAndUnresolvableNodes":null,"Error":""}'
    )
    invalid = FilterAnswer(
        invalid_request=InvalidRequestError(container="main", resource="nvidia.com/gpu", problem="too much"),
        refused_nodes=("n1", "n2"),
    )
    assert msgspec.json.decode(extender.encode(filter_result(invalid))) == {
        "Nodes": None,
        "NodeNames": None,
        "FailedNodes": None,
        "FailedAndUnresolvableNodes": dict.fromkeys(("n1", "n2"), f"InvalidRequest: {invalid.invalid_request}"),
        "Error": "",
    }


@pytest.mark.parametrize(
    ("memory", "names", "not_now", "never"),
    [
        pytest.param(9_000, ["n1", 'odd "name"'], {"n1": TOO_SMALL, 'odd "name"': "node unregistered"}, None, id="now"),
        pytest.param(20_000, ["n1"], None, {"n1": TOO_SMALL}, id="never"),
        pytest.param(20_000, ["n1", "x"], {"x": "node unregistered"}, {"n1": TOO_SMALL}, id="both"),
    ],
)
def test_a_rejection_on_the_wire_tells_never_from_not_now(
    ledger: Ledger, memory: int, names: list[str], not_now: dict[str, str] | None, never: dict[str, str] | None
) -> None:
    assert place(ledger, pod("first", memory=2000)).node_names == ["n1"]
    answer = place(ledger, pod("a", memory=memory), names)
    told = msgspec.json.decode(extender.encode(filter_result(answer)))
    assert (told["FailedNodes"], told["FailedAndUnresolvableNodes"]) == (not_now, never)
    assert (answer.failed_nodes, answer.unresolvable_nodes) == (not_now or {}, never or {})
    assert answer.never_count == len(never or {})


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"podname":"p","PODNAMESPACE":"n","PodUID":"u","node":"n1"}', id="keys of any case"),
        pytest.param(
            b'{"PodName":"x","PodName":"p","PodNamespace":"n","PodUID":"u","Node":"n1"}', id="the last of duplicates"
        ),
    ],
)
def test_bind_arguments_are_read_as_go_reads_them(body: bytes) -> None:
    found = extender.decode_bind(body)
    assert (found.pod_name, found.pod_namespace, found.pod_uid, found.node) == ("p", "n", "u", "n1")


def test_a_reduced_pod_is_decided_on_like_the_whole_one(ledger: Ledger) -> None:
    whole = pod("a", memory=3000, annotations={"nvidia.com/use-gputype": "A100", "kubectl": "x" * 4000})
    whole["spec"]["containers"][0]["env"] = [{"name": "A", "value": "b"}]
    reduction = Reduction(ledger.config)
    reduced = reduction.pod(as_pod(whole))
    assert reduced is not None
    assert reduced.annotations == {"nvidia.com/use-gputype": "A100"}
    assert len(msgspec.json.encode(reduced)) < 600
    answer = filter_pod(ledger, reduced, N1, allocation_id=AllocationId("x"), now=NOW)
    assert answer.annotations[ALLOCATED_KEY] == place(ledger, whole).annotations[ALLOCATED_KEY]
    assert reduction.pod(as_pod(pod("plain", containers=[container(ask={"cpu": "1"})]))) is None
    assert reduction.pod(as_pod(pod("ended", phase="Succeeded"))) is None
