"""Failures real users met, where the engine alone decides."""

import itertools
import threading

import pytest
from hami_engine import CardConstraint, ContainerSlices, Placement, Rejection, Slice


def share(card_id, memory_mib, cores_percent=0):
    return Slice(card_id=card_id, vendor="NVIDIA", memory_mib=memory_mib, cores_percent=cores_percent)


def run(cluster, uid, node, *slices, init_done=False, kinds=("app",)):
    """Charges a running pod: one slice for each container."""
    containers = [ContainerSlices(kind=kind, slices=[one]) for kind, one in zip(kinds, slices, strict=True)]
    cluster.charge(uid=uid, namespace="default", node=node, containers=containers, init_done=init_done)


def text(answer):
    assert isinstance(answer, Rejection)
    return answer.not_now() | answer.never()


@pytest.mark.case("EXC-01")
def test_an_exclusive_card_takes_no_share_without_cores(cards, pod, empty_cluster):
    cluster = empty_cluster()
    cluster.set_node("a", cards("a", 1))
    assert isinstance(cluster.reserve(pod("A", (1, 1000, 100))), Placement)
    assert text(cluster.reserve(pod("B", (1, 1000, 0)))) == {"a": "1/1 CardComputeUnitsExhausted"}


@pytest.mark.case("EXC-04")
def test_a_card_split_in_three_takes_three_pods(cards, pod, empty_cluster):
    cluster = empty_cluster()
    cluster.set_node("a", cards("a", 1, slots=3))
    for uid in ("1", "2", "3"):
        assert isinstance(cluster.reserve(pod(uid, (1, 0, 0), percent=10)), Placement)
    assert text(cluster.reserve(pod("4", (1, 0, 0), percent=10))) == {"a": "1/1 CardTimeSlicingExhausted"}


@pytest.mark.case("EXC-05")
def test_whole_memory_is_the_default_and_is_held(cards, pod, empty_cluster):
    cluster = empty_cluster()
    cluster.set_node("a", cards("a", 8))
    first = cluster.reserve(pod("1", (6, 0, 0), percent=100))
    assert isinstance(first, Placement)
    assert {one.memory_mib for one in first.containers[0]} == {10_000}
    second = cluster.reserve(pod("2", (6, 0, 0), percent=100))
    assert text(second) == {"a": "2/8 AllocatedCardsInsufficientRequest, 6/8 CardInsufficientMemory"}


@pytest.mark.case("MUL-02")
def test_sidecars_add_to_what_runs_beside_them(cards, pod, empty_cluster):
    cluster = empty_cluster()
    cluster.set_node("a", cards("a", 1))
    kinds = ["sidecar", "app"]
    assert text(cluster.reserve(pod("p", (1, 6000, 0), (1, 6000, 0), kinds=kinds))) == {
        "a": "1/1 CardInsufficientMemory"
    }
    kinds = ["init", "sidecar", "init", "app"]
    asks = [(1, memory, 0) for memory in (4000, 3000, 2000, 1000)]
    assert isinstance(cluster.reserve(pod("p", *asks, kinds=kinds)), Placement)
    assert cluster.booked("p") == {"a-0": (5000, 0, 2)}
    slices = [share("a-0", memory) for memory in (4000, 3000, 2000, 1000)]
    run(cluster, "p", "a", *slices, kinds=kinds, init_done=True)
    assert cluster.booked("p") == {"a-0": (4000, 0, 2)}


@pytest.mark.case("MUL-01")
def test_an_init_container_and_an_app_container_share_the_larger_of_both(cards, pod, empty_cluster):
    cluster = empty_cluster()
    cluster.set_node("a", cards("a", 1))
    answer = cluster.reserve(pod("p", (1, 5000, 0), (1, 3000, 0), kinds=["init", "app"]))
    assert isinstance(answer, Placement)
    assert answer.containers == [[share("a-0", 5000)], [share("a-0", 3000)]]
    assert cluster.booked("p") == {"a-0": (5000, 0, 1)}


@pytest.mark.case("MUL-04")
@pytest.mark.case("MUL-06")
def test_a_container_in_the_middle_asks_nothing(cards, pod, empty_cluster):
    cluster = empty_cluster()
    cluster.set_node("a", cards("a", 1, memory_mib=12_288))
    answer = cluster.reserve(pod("p", (1, 2000, 0), None, (1, 3000, 0)))
    assert isinstance(answer, Placement)
    assert answer.containers == [[share("a-0", 2000)], [], [share("a-0", 3000)]]
    assert cluster.booked("p") == {"a-0": (5000, 0, 2)}
    assert text(cluster.reserve(pod("p", (2, 2000, 0), None, (2, 3000, 0)))) == {"a": "NodeInsufficientDevice"}


@pytest.mark.case("PLC-01")
def test_spread_looks_at_load_before_numa(cards, pod, empty_cluster):
    cluster = empty_cluster()
    cluster.set_node("a", cards("a", 4, numas=[0, 0, 1, 1]))
    run(cluster, "run", "a", share("a-0", 5000, 50))
    taken = [cluster.reserve(pod("p", (1, 100, 0), card_policy=policy)) for policy in ("spread", "binpack")]
    assert [answer.containers[0][0].card_id for answer in taken] == ["a-3", "a-0"]


@pytest.mark.case("PLC-03")
@pytest.mark.parametrize(("policy", "node"), [("binpack", "b"), ("spread", "a")])
def test_binpack_takes_the_node_in_use(cards, pod, policy, node, empty_cluster):
    cluster = empty_cluster()
    cluster.set_node("a", cards("a", 8))
    cluster.set_node("b", cards("b", 8))
    for number in range(5):
        run(cluster, f"run-{number}", "b", share(f"b-{number}", 10_000, 100))
    answer = cluster.reserve(pod("p", (1, 100, 0), node_policy=policy))
    assert answer.node == node


@pytest.mark.case("PLC-10")
def test_a_model_rule_never_falls_back(cards, pod, empty_cluster):
    cluster = empty_cluster()
    listed = [
        *cards("small", 1, model="NVIDIA-NVIDIA T400 4GB"),
        *cards("large", 1, model="NVIDIA-NVIDIA T1000 8GB"),
    ]
    cluster.set_node("a", listed)
    wanted = CardConstraint(use_models=["NVIDIA-NVIDIA T1000 8GB"])
    answer = cluster.reserve(pod("p", (1, 100, 0), constraint=wanted))
    assert answer.containers == [[share("large-0", 100)]]
    other = CardConstraint(use_models=["NVIDIA-NVIDIA T2000"])
    assert text(cluster.reserve(pod("p", (1, 100, 0), constraint=other))) == {"a": "2/2 CardTypeMismatch"}


@pytest.mark.case("QUO-04")
def test_quota_is_given_back_once(cluster):
    for steps in itertools.permutations(["release", "release", "init done"]):
        run(cluster, "other", "a", share("a-0", 700))
        run(cluster, "p", "a", share("a-1", 1000))
        for step in steps:
            if step == "release":
                cluster.release("p")
            elif cluster.booking("p") is not None:
                run(cluster, "p", "a", share("a-1", 1000), init_done=True)
        assert cluster.quota_used("default", "NVIDIA") == (700, 0)
    cluster.release("other")
    assert cluster.quota_used("default", "NVIDIA") == (0, 0)


@pytest.mark.case("QUO-05")
def test_quota_counts_values_per_card_times_cards(cluster, pod):
    cluster.set_quota("default", "NVIDIA", memory_mib=4095)
    assert text(cluster.reserve(pod("p", (2, 2048, 20)))) == {
        "a": "1/2 AllocatedCardsInsufficientRequest, 1/2 ResourceQuotaNotFit"
    }
    cluster.set_quota("default", "NVIDIA", memory_mib=4096)
    assert isinstance(cluster.reserve(pod("p", (2, 2048, 20))), Placement)
    assert cluster.quota_used("default", "NVIDIA") == (4096, 40)


@pytest.mark.case("QUO-08")
def test_a_quota_never_opens_while_it_is_set_again(cluster, pod):
    cluster.set_quota("default", "NVIDIA", memory_mib=1000)
    stop = threading.Event()

    def set_again():
        while not stop.is_set():
            cluster.set_quota("default", "NVIDIA", memory_mib=1000)

    setter = threading.Thread(target=set_again)
    setter.start()
    try:
        answers = [cluster.reserve(pod("p", (1, 2000, 0))) for _ in range(1000)]
    finally:
        stop.set()
        setter.join()
    assert all(isinstance(answer, Rejection) for answer in answers)


@pytest.mark.case("QUO-09")
def test_a_quota_of_nothing_blocks(cluster, pod):
    cluster.set_quota("default", "NVIDIA", memory_mib=0)
    assert text(cluster.reserve(pod("p", (1, 1, 0)))) == {"a": "2/2 ResourceQuotaNotFit"}


@pytest.mark.case("ANN-08")
def test_a_card_that_turns_up_later_is_already_charged(cards, empty_cluster):
    cluster = empty_cluster()
    run(cluster, "p", "a", share("a-1", 3000, 20))
    cluster.set_node("a", cards("a", 1))
    cluster.set_node("a", cards("a", 2))
    assert [card.used_memory_mib for card in cluster.node_cards("a")] == [0, 3000]
