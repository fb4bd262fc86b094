"""Pair scores as the Python face takes and tells them."""

from collections.abc import Callable

import pytest
from hami_engine import Card, Cluster, MigProfile, Placement, PodAsk


def chosen(answer: object) -> list[str]:
    assert isinstance(answer, Placement)
    return [given.card_id for container in answer.containers for given in container]


def test_scores_come_with_the_cards_and_go_with_them(
    cluster: Cluster, cards: Callable[..., list[Card]], pod: Callable[..., PodAsk]
) -> None:
    two = pod("p", (2, 1000, 0), card_policy="topology-aware")
    cluster.set_node("a", cards("a", 3), pair_scores={"a-0": {"a-1": 1, "x": 5}, "a-2": {"a-0": 9, "a-1": -3}})
    answer = cluster.what_if(two)
    assert chosen(answer) == ["a-2", "a-0"]
    assert list(answer.notes) == ["PairScoresMissing"]

    cluster.set_node("a", cards("a", 3), pair_scores={"a-1": {"a-0": 1}, "a-2": {"a-0": 1, "a-1": 2}})
    answer = cluster.what_if(two)
    assert chosen(answer) == ["a-2", "a-1"]
    assert answer.notes == {}
    [verdict] = cluster.explain(two).nodes
    assert verdict.notes == {}

    cluster.set_node("a", cards("a", 3))
    [verdict] = cluster.explain(two).nodes
    assert "no score" in verdict.notes["PairScoresMissing"]


def test_a_score_of_any_64_bits_is_taken(
    cluster: Cluster, cards: Callable[..., list[Card]], pod: Callable[..., PodAsk]
) -> None:
    scores = {"a-2": {"a-1": -(2**63), "a-0": 2**63 - 1}, "a-1": {"a-0": 0}}
    cluster.set_node("a", cards("a", 3), pair_scores=scores)
    assert chosen(cluster.what_if(pod("p", (2, 1000, 0), card_policy="topology-aware"))) == ["a-2", "a-0"]
    with pytest.raises(OverflowError):
        cluster.set_node("a", cards("a", 3), pair_scores={"a-2": {"a-1": 2**63}})


@pytest.mark.case("PLC-07")
@pytest.mark.parametrize(("wanted", "different"), [(1, 1), (4, 4), (8, 8), (20, 3)])
def test_shares_come_from_different_mig_cards_where_there_are_enough(
    empty_cluster: Callable[[], Cluster], pod: Callable[..., PodAsk], wanted: int, different: int
) -> None:
    """Eight cards of seven free instances each; how long a choice takes is a row of `bench_topology`."""
    slices = [(start, 1) for start in range(7)]
    profile = MigProfile(name="1g.5gb", memory_mib=4864, cores_percent=14, slice_count=1, placements=slices)
    found = [
        Card(
            id=f"a-{number}", vendor="NVIDIA", model="NVIDIA A100", index=number, slots=7, memory_mib=40_960,
            cores_percent=100, mode="mig", mig_profiles=[profile],
        )
        for number in range(8)
    ]  # fmt: skip
    cluster = empty_cluster()
    cluster.set_node("a", found)
    given = chosen(cluster.reserve(pod("p", (wanted, 4000, 0), card_policy="topology-aware")))
    assert len(given) == wanted
    assert len(set(given)) == different
