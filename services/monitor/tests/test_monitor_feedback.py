"""Who may launch, by priority and by who is at work: the decision alone."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hami_monitor.core.container_folder import FolderOwner
from hami_monitor.core.feedback import Activity, Contender, Feedback, Verdict, changes, decide, released
from hami_monitor.core.region_words import RegionWords, WordChange
from hypothesis import given
from hypothesis import strategies as st
from monitor_builders import CARD_A, CARD_B

ACTIVE, QUIET, BLOCKED = 2, 0, -1


def owner(name: str) -> FolderOwner:
    return FolderOwner(pod_uid=f"uid-{name}", container="main")


def contender(
    name: str,
    recent: int = ACTIVE,
    *,
    priority: int = 1,
    cards: Collection[str] = (CARD_A,),
    last: int = 0,
    switch: int = 1,
) -> Contender:
    words = RegionWords(
        layout="v1",
        card_ids=frozenset(cards),
        recent_kernel=recent,
        utilisation_switch=switch,
        priority=priority,
        last_kernel_time_seconds=last,
    )
    return Contender(owner=owner(name), card_ids=words.card_ids, priority=priority, words=words)


def looks(*ticks: Collection[Contender], hold: int = 0) -> list[dict[str, Verdict]]:
    """Verdicts of each look, by name."""
    found, activities = [], {}
    for contenders in ticks:
        one: Feedback = decide(activities, contenders, hold_ticks=hold)
        activities = one.activities
        found.append({verdict.owner.pod_uid.removeprefix("uid-"): verdict for verdict in one.verdicts})
    return found


def test_the_less_urgent_waits_while_the_urgent_one_works_and_no_longer() -> None:
    both, quiet = looks(
        [contender("urgent", priority=0), contender("other", priority=1)],
        [contender("urgent", QUIET, priority=0), contender("other", BLOCKED, priority=1)],
    )
    assert (both["other"].is_blocked, both["other"].recent_kernel) == (True, BLOCKED)
    assert both["other"].blocked_by == owner("urgent")
    assert (both["urgent"].is_blocked, both["urgent"].recent_kernel) == (False, 1)
    assert (quiet["other"].is_blocked, quiet["other"].recent_kernel) == (False, 0)


@pytest.mark.case("MON-12")
def test_all_that_work_on_one_card_are_held_at_the_same_look() -> None:
    """Also those whose counter fell behind: HAMi's newer library writes it only while it is held."""
    names = [f"p{number}" for number in range(5)]
    first = [contender(name, last=100) for name in names]
    second = [contender(name, ACTIVE if number < 2 else QUIET, last=104, switch=0) for number, name in enumerate(names)]
    for found in looks(first, second):
        assert {name: verdict.utilisation_switch for name, verdict in found.items()} == dict.fromkeys(names, 1)
        assert all(verdict.is_active and not verdict.is_blocked for verdict in found.values())


def test_alone_on_its_cards_it_may_have_what_is_free() -> None:
    (found,) = looks([contender("a"), contender("b", cards=(CARD_B,)), contender("idle", QUIET)])
    assert {name: verdict.is_contended for name, verdict in found.items()} == {"a": False, "b": False, "idle": False}


def test_a_short_pause_of_urgent_work_lets_nobody_in() -> None:
    urgent = [contender("urgent", recent, priority=0) for recent in (ACTIVE, QUIET, QUIET, ACTIVE)]
    other = [contender("other", recent) for recent in (ACTIVE, BLOCKED, BLOCKED, BLOCKED)]
    ticks = list(zip(urgent, other, strict=True))
    assert [found["other"].is_blocked for found in looks(*ticks, hold=1)] == [True, True, False, True]
    assert [found["other"].is_blocked for found in looks(*ticks, hold=2)] == [True, True, True, True]
    assert [found["other"].is_blocked for found in looks(*ticks, hold=0)] == [True, False, False, True]


def test_who_waits_keeps_nobody_waiting() -> None:
    """The first blocks the second on one card; the third shares another with the second only."""
    launching = [
        contender("first", priority=0),
        contender("second", priority=1, cards=(CARD_A, CARD_B)),
        contender("third", priority=2, cards=(CARD_B,)),
    ]
    waiting = [contender("second", BLOCKED, priority=1, cards=(CARD_A, CARD_B))]
    before, after = looks(launching, [launching[0], *waiting, launching[2]], hold=3)
    assert before["third"].is_blocked
    assert not after["third"].is_blocked
    assert after["second"].is_blocked


def test_a_negative_priority_is_more_urgent_than_none() -> None:
    (found,) = looks([contender("a", priority=-3), contender("b", priority=0)])
    assert (found["a"].is_blocked, found["b"].is_blocked) == (False, True)


def test_a_monitor_that_starts_anew_keeps_the_block_and_counts_nobody_as_active_that_it_has_not_seen_launch() -> None:
    (found,) = looks([contender("urgent", priority=0, last=50), contender("other", BLOCKED, last=50)], hold=2)
    assert found["other"].is_blocked
    (idle,) = looks([contender("urgent", 1, priority=0, last=50), contender("other", BLOCKED, last=50)], hold=2)
    assert not idle["other"].is_blocked


@pytest.mark.parametrize(
    ("recent", "switch", "verdict", "expected"),
    [
        pytest.param(2, 1, (1, 1), [WordChange(offset=2008904, value=1, expected=2)], id="counted down"),
        pytest.param(0, 1, (0, 1), [], id="nothing to say"),
        pytest.param(2, 1, (-1, 1), [WordChange(offset=2008904, value=-1)], id="blocked, launch or not"),
        pytest.param(-1, 1, (0, 0), [WordChange(offset=2008904, value=0, expected=-1),
                                     WordChange(offset=2008900, value=0, expected=1)], id="let go"),
    ],
)  # fmt: skip
def test_what_is_written(recent: int, switch: int, verdict: tuple[int, int], expected: list[WordChange]) -> None:
    one = contender("a", recent, switch=switch)
    decided = Verdict(
        owner=one.owner, is_active=True, is_blocked=False, is_contended=False,
        recent_kernel=verdict[0], utilisation_switch=verdict[1],
    )  # fmt: skip
    assert list(changes(one.words, decided)) == expected


def test_when_nobody_looks_any_more_nobody_waits_and_everybody_is_held() -> None:
    assert [(change.offset, change.value) for change in released(contender("a", BLOCKED, switch=0).words)] == [
        (2008904, 0),
        (2008900, 1),
    ]
    assert released(contender("a", ACTIVE, switch=1).words) == ()


NODES = st.lists(
    st.builds(
        contender,
        name=st.sampled_from([f"c{number}" for number in range(6)]),
        recent=st.integers(-2, 4),
        priority=st.integers(-1, 3),
        cards=st.sets(st.sampled_from([CARD_A, CARD_B]), max_size=2),
        last=st.integers(0, 3),
    ),
    max_size=6,
    unique_by=lambda one: one.owner,
)


@given(st.lists(NODES, max_size=6), st.integers(0, 2))
def test_whatever_regions_say_the_most_urgent_active_one_of_a_card_never_waits_for_it(
    ticks: list[list[Contender]], hold: int
) -> None:
    activities: dict[FolderOwner, Activity] = {}
    for contenders in ticks:
        found = decide(activities, contenders, hold_ticks=hold)
        activities = found.activities
        by_owner = {one.owner: one for one in contenders}
        active = [by_owner[verdict.owner] for verdict in found.verdicts if verdict.is_active]
        for verdict in found.verdicts:
            one = by_owner[verdict.owner]
            ahead = [other for other in active if other.card_ids & one.card_ids and other.priority < one.priority]
            assert verdict.is_blocked == bool(ahead)
            assert (verdict.recent_kernel < 0) == verdict.is_blocked
            assert verdict.is_contended or not verdict.is_blocked
            assert abs(verdict.recent_kernel - max(one.words.recent_kernel, 0)) <= 1 or verdict.is_blocked
