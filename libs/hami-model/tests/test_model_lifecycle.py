from __future__ import annotations

import pytest
from hami_model.lifecycle import EDGES, ExpiryCause, IllegalStepError, Phase, is_news, is_terminal, rank, step
from hypothesis import given
from hypothesis import strategies as st

LEGAL = {
    (None, "reserved"),
    (None, "allocating"),
    ("reserved", "allocating"),
    ("reserved", "expired"),
    ("allocating", "allocated"),
    ("allocating", "failed"),
    ("allocating", "released"),
    ("allocated", "failed"),
    ("allocated", "released"),
    ("failed", "released"),
}


@pytest.mark.parametrize("current", [None, *Phase])
@pytest.mark.parametrize("to", list(Phase))
def test_exactly_the_designed_steps_are_legal(current: Phase | None, to: Phase) -> None:
    if (current, to) in LEGAL:
        assert step(current, to) is to
        return
    with pytest.raises(IllegalStepError) as caught:
        step(current, to)
    assert (caught.value.current, caught.value.to) == (current, to)
    assert str(to) in str(caught.value)


@given(st.lists(st.sampled_from(list(Phase))))
def test_whatever_is_tried_rank_only_grows_and_terminal_stays(tries: list[Phase]) -> None:
    current: Phase | None = None
    for to in tries:
        try:
            after = step(current, to)
        except IllegalStepError:
            continue
        assert current is None or (rank(after) > rank(current) and not is_terminal(current))
        assert after in EDGES[current]
        current = after


@given(st.permutations(list(Phase)))
def test_a_reader_of_reordered_events_ends_with_the_greatest_rank(seen: list[Phase]) -> None:
    known: Phase | None = None
    for phase in seen:
        if is_news(known, phase):
            known = phase
    assert known is max(Phase, key=rank)


def test_only_released_and_expired_are_terminal() -> None:
    assert {phase for phase in Phase if is_terminal(phase)} == {Phase.RELEASED, Phase.EXPIRED}


def test_causes_of_expiry_are_words_of_the_wire() -> None:
    assert [str(cause) for cause in ExpiryCause] == ["superseded", "bind-failed", "timeout", "pod-gone"]
