"""Values in and out of the engine: types, ranges, texts."""

import subprocess
import sys
from pathlib import Path

import hami_engine
import pytest
from hami_engine import (
    Ask,
    Card,
    CardConstraint,
    ContainerAsk,
    ContainerSlices,
    Placement,
    PodAsk,
    Rejection,
    Slice,
    list_reasons,
)


def test_types_match_the_compiled_module():
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "mypy.stubtest", "hami_engine", "--allowlist", "stubtest-allowlist.txt"]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_everything_public_is_exported():
    compiled = {name for name in dir(hami_engine._engine) if not name.startswith("_")}
    assert compiled | {"ContainerKind"} == set(hami_engine.__all__)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Ask(vendor="V", count=-1), "count is -1; it must be between 0 and 2147483647"),
        (lambda: Ask(vendor="V", count=1, memory_mib=-1), "memory_mib is -1"),
        (lambda: Ask(vendor="V", count=1, memory_percent=101), "memory_percent is 101"),
        (lambda: Ask(vendor="V", count=1, cores_percent=-5), "cores_percent is -5"),
        (lambda: Slice(card_id="c", vendor="V", memory_mib=-3, cores_percent=0), "memory_mib is -3"),
        (lambda: ContainerSlices(kind="main"), "kind is \"main\"; it must be 'init', 'sidecar' or 'app'"),  # type: ignore[arg-type]
        (
            lambda: ContainerAsk(name="c", kind="app", asks=[Ask(vendor="V", count=1), Ask(vendor="V", count=2)]),
            "container c asks vendor V twice",
        ),
        (
            lambda: PodAsk(
                uid="u",
                namespace="n",
                name="p",
                containers=[
                    ContainerAsk(name="main", kind="app"),
                    ContainerAsk(name="late", kind="init"),
                ],
            ),
            "container late runs before the app containers; put it before them",
        ),
        (
            lambda: PodAsk(uid="u", namespace="n", name="p", containers=[], weights=(0, 0, 0)),
            "weights are 0, 0, 0",
        ),
    ],
)
def test_values_out_of_range_are_refused_with_what_to_change(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_card_listed_twice_is_refused_and_nothing_changes(cluster, cards):
    with pytest.raises(ValueError, match="node a lists card a-0 twice"):
        cluster.set_node("a", [*cards("a", 1), *cards("a", 1)])
    assert [card.card_id for card in cluster.node_cards("a")] == ["a-0", "a-1"]


@pytest.mark.parametrize("wrong", ["a", [1], [None], 5])
def test_candidates_are_a_sequence_of_names(cluster, pod, wrong):
    with pytest.raises(TypeError):
        cluster.reserve(pod("p", (1, 1, 0)), wrong)


def test_wrong_types_are_refused():
    with pytest.raises(TypeError):
        PodAsk(uid="u", namespace="n", name="p", containers=[], constraints={"NVIDIA": "A100"})  # type: ignore[dict-item]
    with pytest.raises(TypeError):
        Ask("V", 1)  # type: ignore[misc]
    with pytest.raises(OverflowError):
        Card(id="c", vendor="V", model="m", index=0, slots=2**31, memory_mib=1, cores_percent=100)


def test_values_cannot_be_changed():
    one = Slice(card_id="c", vendor="V", memory_mib=1, cores_percent=2)
    with pytest.raises(AttributeError):
        one.memory_mib = 5
    assert one == Slice(card_id="c", vendor="V", memory_mib=1, cores_percent=2)
    assert repr(one) == 'Slice(card_id="c", vendor="V", memory_mib=1, cores_percent=2)'


def test_reasons_are_one_table():
    reasons = list_reasons()
    codes = [reason.code for reason in reasons]
    assert codes == sorted(set(codes))
    assert {"CardInsufficientMemory", "NodeInsufficientDevice", "CardBlocked"} < set(codes)
    assert all(reason.sentence.endswith(".") and reason.label.islower() for reason in reasons)


def test_a_placement_says_what_was_decided(cluster, cards, pod):
    cluster.set_node("b", cards("b", 1, memory_mib=500))
    answer = cluster.reserve(pod("p", (2, 3000, 30), None, (1, 100, 0)), ["a", "b", "x"])
    assert isinstance(answer, Placement)
    assert (answer.node, answer.score, answer.fitting_nodes, answer.candidate_nodes) == ("a", 0.0, 1, 3)
    assert answer.containers == [
        [
            Slice(card_id="a-1", vendor="NVIDIA", memory_mib=3000, cores_percent=30),
            Slice(card_id="a-0", vendor="NVIDIA", memory_mib=3000, cores_percent=30),
        ],
        [],
        [Slice(card_id="a-1", vendor="NVIDIA", memory_mib=100, cores_percent=0)],
    ]
    assert answer.best_scores == [("a", 0.0)]
    assert answer.node_scores() == {"a": 0.0}
    assert answer.failed_nodes() == {"b": "NodeInsufficientDevice", "x": "node unregistered"}
    assert answer.tally() == [("NodeInsufficientDevice", 1), ("NodeUnregistered", 1)]
    assert cluster.booked("p") == {"a-0": (3000, 30, 1), "a-1": (3100, 30, 2)}
    assert cluster.quota_used("default", "NVIDIA") == (6100, 60)


def test_a_rejection_tells_never_from_not_now(cluster, cards, pod):
    cluster.set_node("b", cards("b", 1, memory_mib=500))
    cluster.charge(
        uid="run",
        namespace="default",
        node="a",
        containers=[
            ContainerSlices(
                kind="app",
                slices=[Slice(card_id="a-0", vendor="NVIDIA", memory_mib=9000, cores_percent=0)],
            )
        ],
    )
    answer = cluster.reserve(pod("p", (1, 10_000, 0), (1, 10_000, 0)), ["b", "a", "x"])
    assert isinstance(answer, Rejection)
    assert answer.never() == {"b": "1/1 CardInsufficientMemory"}
    assert answer.not_now() == {"a": "2/2 CardInsufficientMemory", "x": "node unregistered"}
    assert answer.tally() == [("CardInsufficientMemory", 2), ("NodeUnregistered", 1)]
    assert answer.candidate_nodes == 3


def test_an_explanation_gives_needed_used_and_total(cluster, cards, pod):
    cluster.set_node("b", cards("b", 1, memory_mib=500))
    cluster.charge(
        uid="run",
        namespace="default",
        node="a",
        containers=[
            ContainerSlices(
                kind="app",
                slices=[Slice(card_id="a-0", vendor="NVIDIA", memory_mib=9000, cores_percent=60)],
            )
        ],
    )
    verdicts = cluster.explain(pod("p", (1, 100, 0), (2, 1000, 50))).nodes
    assert [(verdict.node, verdict.fits, verdict.never, verdict.container) for verdict in verdicts] == [
        ("a", False, False, "c1"),
        ("b", False, True, "c1"),
    ]
    assert [(card.card_id, card.code, card.asked, card.used, card.total) for card in verdicts[0].cards] == [
        ("a-1", None, 1000, 100, 10_000),
        ("a-0", "CardInsufficientCore", 50, 60, 100),
    ]
    cluster.set_quota("default", "NVIDIA", memory_mib=10_500)
    [verdict] = cluster.explain(pod("p", (2, 1000, 0)), ["a"]).nodes
    assert verdict.reason == "1/2 AllocatedCardsInsufficientRequest, 1/2 ResourceQuotaNotFit"
    assert [(card.code, card.asked, card.used, card.total) for card in verdict.cards] == [
        (None, 1000, 0, 10_000),
        ("ResourceQuotaNotFit", 2000, 9000, 10_500),
    ]
    first, second = verdict.cards
    assert (first.needed_memory_mib, first.used_memory_mib, first.memory_mib) == (1000, 0, 10_000)
    assert (first.used_slots, first.slots, first.needed_cores_percent, first.cores_percent) == (0, 10, 0, 100)
    assert (second.codes, second.quota.needed_memory_mib, second.quota.used_memory_mib) == (
        ["ResourceQuotaNotFit"],
        2000,
        9000,
    )
    assert (second.quota.memory_limit_mib, second.quota.cores_limit_percent) == (10_500, None)
    [verdict] = cluster.explain(pod("p", (1, 1000, 0)), ["x"]).nodes
    assert (verdict.fits, verdict.never, verdict.reason, verdict.cards) == (False, False, "node unregistered", [])


def test_the_smallest_change_can_be_tried_out(cluster, pod):
    for uid, card_id, memory in (("x", "a-0", 2800), ("y", "a-1", 9000)):
        running = Slice(card_id=card_id, vendor="NVIDIA", memory_mib=memory, cores_percent=0)
        cluster.charge(
            uid=uid, namespace="default", node="a", containers=[ContainerSlices(kind="app", slices=[running])]
        )
    asked = pod("p", (1, 8000, 0))
    told = cluster.explain(asked)
    assert (told.candidate_nodes, told.fitting_nodes, told.never_nodes, told.searched_nodes) == (1, 0, 0, 1)
    assert told.texts == {"2/2 CardInsufficientMemory": 1}
    assert told.sentence({"x": "team/x"}) == (
        "fits on none of 1 nodes: 8,000 MiB asked; 7,200 free on card a-0 of a; would fit on a (card a-0) if "
        "container c0 asked NVIDIA for at most 7,200 MiB of each card (asks 8,000), or when pod team/x ends"
    )
    lower, end = told.nodes[0].changes
    assert (lower.kind, lower.node, lower.cards, lower.cost) == ("lower-ask", "a", ["a-0"], 100_000)
    assert (lower.container, lower.vendor, lower.numbers) == ("c0", "NVIDIA", {"memory_mib": (8000, 7200)})
    assert (end.kind, end.pods, end.numbers, end.faulty_cards) == ("end-pods", ["x"], {}, [])
    assert end.sentence() == "would fit on a (card a-0) when pod x ends"

    def fits(change) -> bool:
        copy = cluster.copy()
        return isinstance(copy.reserve(change.apply(copy, asked), [change.node]), Placement)

    for change in (lower, end):
        assert fits(change)
        assert not any(fits(less) for less in change.one_less())
    assert isinstance(cluster.what_if(asked), Rejection), "the state itself stays as it is"

    cluster.set_card_state("a", "a-1", healthy=False, cordoned=True)
    cluster.release("y")
    restore = next(change for change in cluster.explain(asked).nodes[0].changes if change.kind == "restore-cards")
    assert restore.faulty_cards == [("a-1", ["unhealthy", "cordoned"])]
    cluster.set_quota("default", "NVIDIA", memory_mib=3000)
    raised = cluster.explain(pod("p", (1, 400, 0))).nodes[0].changes[0]
    assert (raised.kind, raised.namespace, raised.numbers) == ("raise-quota", "default", {"memory_mib": (3000, 3200)})
    [beyond] = cluster.explain(pod("p", (1, 20_000, 0))).ceilings
    assert (beyond.field, beyond.asked, beyond.largest) == ("memory_mib", 20_000, 10_000)
    assert len(cluster.explain(asked, limit=0).nodes) == 0


def test_the_state_can_be_read(cluster, pod):
    cluster.set_card_health("a", "a-1", False)
    first, second = cluster.node_cards("a")
    assert (first.healthy, second.healthy, first.blocked, first.mode) == (True, False, False, "hami-core")
    assert (first.slots, first.memory_mib, first.cores_percent, first.numa) == (10, 10_000, 100, 0)
    assert cluster.nodes() == ["a"]
    assert cluster.node_cards("x") == []
    assert cluster.booking("p") is None
    assert cluster.booked("p") == {}
    cluster.reserve(pod("p", (1, 5, 0)))
    booking = cluster.booking("p")
    assert booking is not None
    assert (booking.uid, booking.namespace, booking.node, booking.state) == ("p", "default", "a", "reserved")
    assert cluster.confirm("p")
    assert [entry.state for entry in cluster.pods("a")] == ["bound"]
    copy = cluster.copy()
    assert copy.release("p")
    assert (copy.pods("a"), len(cluster.pods("a"))) == ([], 1)
    assert cluster.check_invariants() == copy.check_invariants() == []


def test_models_modes_and_ids_choose_cards(cluster, pod):
    accepted = {
        "substring of the model, any case": CardConstraint(use_models=["a100"]),
        "avoids another model": CardConstraint(avoid_models=["H100"]),
        "its mode is among those allowed": CardConstraint(modes="mig,hami-core"),
        "one id": CardConstraint(use_ids=["a-0"]),
    }
    refused = {
        "1": CardConstraint(use_models=["H100"]),
        "2": CardConstraint(use_models=["A100"], avoid_models=["nvidia"]),
        "3": CardConstraint(modes="mig"),
        "4": CardConstraint(use_ids=["A-0"]),
        "5": CardConstraint(use_ids=["a-0"], avoid_ids=["a-0"]),
        "6": CardConstraint(use_ids=[]),
    }
    for name, constraint in accepted.items():
        assert isinstance(cluster.reserve(pod("p", (1, 1, 0), constraint=constraint)), Placement), name
    for name, constraint in refused.items():
        assert isinstance(cluster.reserve(pod("p", (1, 1, 0), constraint=constraint)), Rejection), name


def test_a_new_cluster_is_empty(empty_cluster):
    cluster = empty_cluster()
    assert cluster.nodes() == []
    assert not cluster.remove_node("a")
    assert not cluster.release("p")
