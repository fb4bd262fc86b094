"""Pair scores: from what the driver says of the ways between cards to what is published."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import pytest
from hami_model import pair_scores
from hami_model.ids import CardId
from hami_node_agent.core.topology import CardLinks, CommonAncestor, Topology, score_pairs
from hypothesis import given
from hypothesis import strategies as st

A, B, C = CardId("GPU-a"), CardId("GPU-b"), CardId("GPU-c")


def bus(card_id: str) -> str:
    return f"00000000:{ord(card_id[-1]):02X}:00.0"


def connected(
    links: Mapping[tuple[CardId, CardId], int],
    ancestor: CommonAncestor | None = CommonAncestor.NODE,
    switches: dict[str, int] | None = None,
) -> Topology:
    """Three cards; `links` are NVLinks as the first of the two tells them."""
    return Topology(
        links={
            card: CardLinks(
                pci_bus_id=bus(card),
                remote_bus_ids=tuple(
                    bus(to) for (one, to), count in links.items() if one == card for _ in range(count)
                ),
                to_switches=(switches or {}).get(card, 0),
            )
            for card in (A, B, C)
        },
        ancestors=dict.fromkeys(combinations((A, B, C), 2), ancestor),
    )


def score(topology: Topology, one: str = A, other: str = B) -> int | None:
    scored = score_pairs(topology, (A, B, C))
    return next((element.scores or {}).get(other) for element in scored.elements if element.card_id == one)


@pytest.mark.parametrize(
    ("ancestor", "points"),
    [
        (CommonAncestor.INTERNAL, 60),
        (CommonAncestor.SINGLE, 50),
        (CommonAncestor.MULTIPLE, 40),
        (CommonAncestor.HOST_BRIDGE, 30),
        (CommonAncestor.NODE, 20),
        (CommonAncestor.SYSTEM, 10),
        pytest.param(None, 0, id="the driver has no such query"),
    ],
)
def test_the_nearer_two_cards_meet_on_pcie_the_higher(ancestor: CommonAncestor | None, points: int) -> None:
    assert score(connected({}, ancestor)) == points


@pytest.mark.parametrize(("links", "points"), [(0, 20), (1, 120), (4, 420), (18, 1820), (19, 20)])
def test_each_nvlink_counts_a_hundred_up_to_eighteen(links: int, points: int) -> None:
    assert score(connected({(A, B): links, (B, A): links})) == points


@pytest.mark.parametrize(
    ("switches", "points"),
    [
        pytest.param({A: 18, B: 12}, 1220, id="the fewer of both sides"),
        pytest.param({A: 18}, 20, id="one side has none"),
        pytest.param({A: 19, B: 19}, 20, id="more than there can be"),
    ],
)
def test_cards_at_switches_are_connected_through_them(switches: dict[str, int], points: int) -> None:
    assert score(connected({}, switches=switches)) == points


def test_a_direct_link_counts_before_switches() -> None:
    assert score(connected({(A, B): 2, (B, A): 2}, switches={A: 6, B: 6})) == 220


@pytest.mark.case("PLC-06")
def test_links_that_each_side_tells_otherwise_score_nothing_and_are_told_once() -> None:
    links = {(A, B): 4, (B, A): 2, (A, C): 1, (C, A): 1}

    scored = score_pairs(connected(links), (A, B, C))

    assert [element.scores for element in scored.elements] == [{B: 0, C: 120}, {A: 0, C: 20}, {A: 120, B: 20}]
    assert f"{A} and {B} (4 and 2)" in scored.asymmetric
    assert C not in scored.asymmetric


def test_what_could_not_be_read_costs_only_its_pairs() -> None:
    whole = connected({(A, B): 1, (B, A): 1})
    broken = Topology(
        links={card: links for card, links in whole.links.items() if card != C},
        ancestors=whole.ancestors,
        faults=(f"NVLinks of card {C} cannot be read",),
    )

    scored = score_pairs(broken, (A, B, C))

    assert [element.scores for element in scored.elements] == [{B: 120}, {A: 120}, {}]
    assert scored.unreadable == broken.faults


def test_one_card_has_no_peers_and_says_so() -> None:
    scored = score_pairs(connected({}), (A,))

    assert pair_scores.encode(scored.elements) == f'[{{"uuid":"{A}","score":{{}}}}]'


counts = st.dictionaries(st.permutations([A, B, C]).map(lambda cards: (cards[0], cards[1])), st.integers(0, 40))


@given(
    counts, st.sampled_from([*CommonAncestor, None]), st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 40))
)
def test_scores_are_the_same_in_both_directions_and_bounded(
    links: dict[tuple[CardId, CardId], int], ancestor: CommonAncestor | None, switches: dict[str, int]
) -> None:
    topology = connected(links, ancestor, switches)

    for one, other in combinations((A, B, C), 2):
        found = score(topology, one, other)
        assert found == score(topology, other, one)
        assert found is not None
        assert 0 <= found <= 1860
