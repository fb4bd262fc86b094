"""JSON by Go's rules."""

import json

import pytest
from hami_model import go_json
from hami_model.errors import MalformedJson
from hypothesis import given
from hypothesis import strategies as st


def fields(text: str) -> go_json.Fields:
    return go_json.Fields(go_json.parse(text), "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param('{"count":3}', 3, id="exact key"),
        pytest.param('{"COUNT":3}', 3, id="other case"),
        pytest.param('{"count":3,"Count":4}', 4, id="last duplicate wins"),
        pytest.param('{"count":3,"count":null}', 3, id="null leaves a scalar as it was"),
        pytest.param('{"count":null}', 0, id="null alone is the zero value"),
        pytest.param("{}", 0, id="absent"),
        pytest.param("null", 0, id="null object"),
        pytest.param('{"count":-2147483648}', -(2**31), id="smallest"),
        pytest.param('{"count":-0}', 0, id="minus zero"),
        pytest.param('{"other":[1.5e9,{"count":9}],"count":1}', 1, id="unknown keys are skipped"),
    ],
)
def test_an_integer_field(text: str, expected: int) -> None:
    assert fields(text).integer("count", go_json.INT32) == expected


@pytest.mark.parametrize(
    "text",
    [
        '{"count":"3"}',
        '{"count":3.0}',
        '{"count":3e0}',
        '{"count":true}',
        '{"count":2147483648}',
        '{"count":[]}',
        '{"count":9,"count":1.5}',
        '{"count":' + "9" * 5000 + "}",
        "[]",
    ],
)
def test_what_is_no_integer_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(MalformedJson, match=r"count|the document"):
        fields(text).integer("count", go_json.INT32)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "nul", "NaN", "[NaN]", "[Infinity]", "[-Infinity]", "[01]", "[1.]", "[.5]", "[-]", "[1,]", '{"a":1,}',
        "{'a':1}", '["\x01"]', '["\\x"]', "[1] 2", "\ufeff[]", '{"a"}', "[" * 100_000, '{"a":' * 5000, '["\\ud8"]',
    ],
)  # fmt: skip
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(MalformedJson):
        go_json.parse(text)


def test_kelvin_and_long_s_fold_onto_ascii_letters_and_nothing_else_does() -> None:
    assert fields('{"ma\u017f\u212a":1}').integer("mask") == 1
    assert fields('{"\u00df":1}').integer("ss") == 0


def test_half_a_surrogate_pair_becomes_the_replacement_character() -> None:
    assert fields('{"id":"a\\ud800"}').string("id") == "a\ufffd"
    assert fields('{"id":"\\ud83d\\ude00"}').string("id") == "\U0001f600"


def test_brackets_inside_strings_do_not_count_as_nesting() -> None:
    assert fields(json.dumps({"id": "[{" * 500})).string("id") == "[{" * 500


def test_duplicate_maps_are_merged_and_null_empties() -> None:
    assert fields('{"score":{"a":1},"score":{"b":2}}').integer_map("score") == {"a": 1, "b": 2}
    assert fields('{"score":{"a":1},"score":null}').integer_map("score") is None
    assert fields('{"score":{"a":null}}').integer_map("score") == {"a": 0}


@given(st.text())
def test_arbitrary_text_gives_a_tree_or_a_typed_error(text: str) -> None:
    try:
        tree = go_json.parse(text)
    except MalformedJson:
        return
    assert tree is None or isinstance(tree, bool | str | go_json.Number | list | go_json.Object)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_every_json_document_can_be_parsed(value: object) -> None:
    go_json.parse(json.dumps(value))


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_strings_survive_encoding_and_are_safe_in_html(text: str) -> None:
    encoded = go_json.encode_string(text)
    assert json.loads(encoded) == text
    assert not set(encoded) & set("<>&\u2028\u2029")
