"""Register annotations: both forms, hand-off, contradictions."""

import pytest
from hami_model import pair_scores, register, vendors
from hami_model.cards import Card, MigPlacement, MigProfile
from hami_model.errors import MalformedAnnotation, MalformedError
from hami_model.ids import CardId
from hami_model.vendors import VendorDescriptor
from hypothesis import given
from hypothesis import strategies as st

NVIDIA = vendors.vendor(vendors.NVIDIA)
DELIMITED = vendors.vendor("DCU")
FULL = Card(
    id="GPU-1",
    index=1,
    slots=10,
    memory_mib=40960,
    cores_percent=100,
    model="NVIDIA <A100> & Co",
    numa=1,
    mode="mig",
    healthy=True,
    mig_profiles=(
        MigProfile(
            name="1g.5gb", memory_mib=4864, cores_percent=15, slice_count=1, placements=(MigPlacement(start=6, size=1),)
        ),
    ),
)


def test_json_is_written_as_hami_writes_it() -> None:
    assert register.encode(NVIDIA, [FULL, Card(id="GPU-2")]) == (
        '[{"id":"GPU-1","index":1,"count":10,"devmem":40960,"devcore":100,'
        '"type":"NVIDIA \\u003cA100\\u003e \\u0026 Co","numa":1,"mode":"mig","migProfiles":[{"name":"1g.5gb",'
        '"memoryMB":4864,"core":15,"sliceCount":1,"placements":[{"start":6,"size":1}]}],"health":true},{"id":"GPU-2"}]'
    )


def test_the_handoff_is_announced_on_every_card_and_absent_means_lock() -> None:
    text = register.encode(NVIDIA, [FULL, Card(id="GPU-2")], "late-binding")
    assert text.count('"handoff":"late-binding"') == 2
    assert register.read(NVIDIA, text).handoff == "late-binding"
    assert register.decode(NVIDIA, text) == (FULL, Card(id="GPU-2"))
    assert register.read(NVIDIA, register.encode(NVIDIA, [FULL])).handoff == "lock"


@pytest.mark.parametrize(
    "text",
    [
        '[{"id":"a","handoff":"late-binding"},{"id":"b"}]',
        '[{"id":"a","handoff":"telepathy"}]',
        '[{"id":"a","handoff":7}]',
        '[{"id":"a","handoff":"late-binding","handoff":"lock"}]',
        "[]",
    ],
)
def test_any_doubt_about_the_handoff_means_lock(text: str) -> None:
    assert register.read(NVIDIA, text).handoff == "lock"


def test_the_delimited_form_cannot_say_late_binding() -> None:
    with pytest.raises(register.HandoffNotWritableError, match="use lock"):
        register.encode(DELIMITED, [FULL], "late-binding")


def test_a_card_listed_twice_is_kept_but_takes_no_new_pods() -> None:
    text = register.encode(NVIDIA, [FULL, Card(id="GPU-2", healthy=True), FULL])
    found = register.read(NVIDIA, text)
    assert [(card.id, card.healthy) for card in found.cards] == [("GPU-1", False), ("GPU-2", True)]
    assert found.problems == ("card 'GPU-1' is listed more than once and takes no new pods",)


def test_a_null_element_is_reported_and_costs_no_other_card() -> None:
    found = register.read(NVIDIA, '[null,{"id":"a","health":true}]')
    assert [card.id for card in found.cards] == ["a"]
    assert found.problems == ("element 0 is null",)


@pytest.mark.case("ANN-06")
def test_the_old_text_form_is_refused_for_nvidia_and_read_for_families_that_write_it() -> None:
    text = "GPU-a,10,81559,100,NVIDIA-NVIDIA H100 80GB HBM3,0,true,1,hami-core:"
    with pytest.raises(MalformedAnnotation, match=r"hami\.io/node-nvidia-register"):
        register.decode(NVIDIA, text)
    assert register.decode(DELIMITED, text) == (
        Card(
            id="GPU-a",
            index=1,
            slots=10,
            memory_mib=81559,
            cores_percent=100,
            model="NVIDIA-NVIDIA H100 80GB HBM3",
            mode="hami-core",
            healthy=True,
        ),
    )


@pytest.mark.case("ANN-07")
def test_cards_without_an_index_are_told_apart_by_id() -> None:
    text = "DCU-0,4,65536,100,DCU-K100_AI,0,true:DCU-1,4,65536,100,DCU-K100_AI,0,true:"
    cards = register.decode(DELIMITED, text)
    assert [(card.id, card.index, card.mode) for card in cards] == [
        ("DCU-0", 0, "hami-core"),
        ("DCU-1", 0, "hami-core"),
    ]
    assert register.read(DELIMITED, text).problems == ()


@pytest.mark.parametrize(
    "text",
    ["", "a", ",", "a:", ",:", "a,1,1,1,T,0,yes:", "a,x,1,1,T,0,true:", "a,1,2147483648,1,T,0,true:",
     "a,1,1,1,T,0,true,-1,mig:", "a,1,1,1,T,0,true:junk", "a,1,1,1,T,0,true,1:", "a,1,1_0,1,T,0,true:"],
)  # fmt: skip
def test_one_bad_segment_makes_the_delimited_form_unreadable(text: str) -> None:
    with pytest.raises(MalformedAnnotation):
        register.decode(DELIMITED, text)


WORDS = st.text(st.characters(exclude_characters=",:", exclude_categories=["Cs"]), min_size=1)
IDS = WORDS.filter(lambda word: word == word.strip() and ";" not in word)
INT32 = st.integers(-(2**31), 2**31 - 1)
CARDS = st.builds(
    Card,
    id=IDS.map(CardId),
    index=st.integers(0, 64),
    slots=INT32,
    memory_mib=INT32,
    cores_percent=INT32,
    model=WORDS,
    numa=st.integers(-1, 16),
    mode=st.sampled_from(["hami-core", "mig", "mps", ""]),
    healthy=st.booleans(),
)
INVENTORIES = st.lists(CARDS, unique_by=lambda card: card.id)


@given(INVENTORIES, st.sampled_from(["lock", "late-binding"]))
def test_json_round_trip(cards: list[Card], handoff: register.Handoff) -> None:
    found = register.read(NVIDIA, register.encode(NVIDIA, cards, handoff))
    assert list(found.cards) == cards
    assert found.handoff == (handoff if cards else "lock")


@given(INVENTORIES)
def test_delimited_round_trip(cards: list[Card]) -> None:
    text = register.encode(DELIMITED, cards) or ":"
    assert list(register.decode(DELIMITED, text)) == cards


@given(st.text() | st.text(alphabet='[]{}",:;aeidhltrucon0123456789-. '), st.sampled_from([NVIDIA, DELIMITED]))
def test_arbitrary_text_is_read_or_refused(text: str, descriptor: VendorDescriptor) -> None:
    try:
        found = register.read(descriptor, text)
    except MalformedAnnotation:
        return
    assert len({card.id for card in found.cards}) == len(found.cards)


@given(INVENTORIES.filter(bool), st.data())
def test_a_damaged_text_never_offers_a_card_twice(cards: list[Card], data: st.DataObject) -> None:
    text = register.encode(NVIDIA, cards)
    cut = data.draw(st.integers(0, len(text) - 1))
    try:
        found = register.read(NVIDIA, text[:cut] + text[cut + 1 :])
    except MalformedAnnotation:
        return
    assert len({card.id for card in found.cards}) == len(found.cards)


def test_a_malformed_pair_score_costs_the_scores_only() -> None:
    for text in ("x", "{}", '[{"uuid":"a","score":{"b":1.5}}]', '[{"uuid":"a","score":{"b":"1"}}]'):
        scores, fault = pair_scores.read(NVIDIA, {NVIDIA.pair_scores_key: text})
        assert scores == {}
        assert fault is not None
        assert fault.key == "hami.io/node-nvidia-score"


def test_pair_scores_of_the_first_element_of_a_card_hold() -> None:
    text = '[{"uuid":"a","score":{"b":10}},{"uuid":"a","score":{"b":20}},null,{"uuid":"c"}]'
    scores, fault = pair_scores.read(NVIDIA, {NVIDIA.pair_scores_key: text})
    assert fault is None
    assert scores == {"a": {"b": 10}, "": {}, "c": {}}
    assert pair_scores.read(NVIDIA, {}) == ({}, None)


PAIR_SCORES = st.builds(
    pair_scores.PairScores,
    card_id=WORDS,
    scores=st.none() | st.dictionaries(WORDS, st.integers(-(2**63), 2**63 - 1), min_size=1),
)


@given(st.lists(PAIR_SCORES))
def test_pair_scores_round_trip(elements: list[pair_scores.PairScores]) -> None:
    assert list(pair_scores.decode(pair_scores.encode(elements))) == elements


@given(st.text())
def test_arbitrary_pair_scores_are_read_or_refused(text: str) -> None:
    try:
        pair_scores.decode(text)
    except MalformedError:
        return


@pytest.mark.parametrize("card_id", ["a:b", "a,b", "a;b", " a", "a "])
def test_a_card_that_no_device_annotation_can_name_takes_no_new_pods(card_id: str) -> None:
    found = register.read(NVIDIA, register.encode(NVIDIA, [Card(id=CardId(card_id), healthy=True), FULL]))
    assert [(card.id, card.healthy) for card in found.cards] == [(card_id, False), ("GPU-1", True)]
    assert len(found.problems) == 1
    assert repr(card_id) in found.problems[0]
