"""The limits page: its declaration, header and table agree, and what is written reads back."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hami_model import generate, limits_page
from hami_model.limits_page import CardLimits, Control, LimitsPage, MalformedLimitsPage, Policy, layout, table
from hypothesis import given
from hypothesis import strategies as st

HEADER = generate.render()["limits_page_layout.h"]
ARCHITECTURE = Path(__file__).parents[3] / "ARCHITECTURE.md"

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=120)
paths = texts.map(lambda text: f"/{text}").filter(lambda path: len(path.encode()) < layout.PATH_BYTES)
uuids = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=layout.UUID_BYTES - 1)
u64 = st.integers(0, 2**64 - 1)
cards = st.builds(
    CardLimits,
    uuid=uuids,
    memory_limit_bytes=u64,
    cores_percent=st.integers(1, 100),
    context_bytes=u64,
    withheld=st.booleans(),
)
pages = st.builds(
    LimitsPage,
    region_file=paths,
    cards=st.lists(cards, max_size=layout.MAX_CARDS, unique_by=lambda card: card.uuid.lower()).map(tuple),
    policy=st.sampled_from(Policy),
    priority=st.integers(-(2**31), 2**31 - 1),
    control=st.sampled_from(Control),
    writer_generation=u64,
)

PAGE = LimitsPage(
    region_file="/usr/local/vgpu/slice.cache",
    cards=(CardLimits(uuid="GPU-a", memory_limit_bytes=2**30, cores_percent=30), CardLimits(uuid="GPU-b")),
)


def replaced(offset: int, content: bytes, page: LimitsPage = PAGE) -> bytes:
    data = bytearray(limits_page.encode(page))
    data[offset : offset + len(content)] = content
    return bytes(data)


# ---- the declaration -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("record", [layout.CARD, layout.PAGE], ids=lambda record: record.name)
def test_fields_follow_each_other_without_gaps_each_at_a_multiple_of_its_width(record: layout.Record) -> None:
    assert layout.misplaced(record) == []


def test_what_is_misplaced_is_told() -> None:
    field = layout.Field
    gap = layout.Record("r", 16, (field(0, "u32", "a", ""), field(8, "u64", "b", "")))
    overlap = layout.Record("r", 8, (field(0, "u64", "a", ""), field(4, "u32", "b", "")))
    askew = layout.Record("r", 12, (field(0, "u32", "a", ""), field(4, "u64", "b", "")))
    short = layout.Record("r", 16, (field(0, "u64", "a", ""),))
    assert [layout.misplaced(record) for record in (gap, overlap, askew, short)] == [["b"], ["b"], ["b"], ["r"]]


def test_the_values_of_names_are_never_changed() -> None:
    """Pages of other versions of our programs lie on nodes: a changed meaning is a new version."""
    assert (layout.DIRECTORY, layout.FILE, layout.VERSION, layout.PAGE_BYTES) == ("limits", "page", 1, 4096)
    assert [(member.name, member.value) for member in (*Policy, *Control, *layout.CardFlag)] == [
        ("DEFAULT", 0),
        ("FORCE", 1),
        ("DISABLE", 2),
        ("HELD", 0),
        ("DISABLED", 1),
        ("WITHHELD", 1),
    ]


def test_the_header_compiles_and_asserts_every_offset(tmp_path: Path) -> None:
    asserted = re.findall(r"offsetof\(struct vg_limits_(\w+), (\w+)\) == (\d+)", HEADER)
    assert asserted == [
        (record.name, field.name, str(field.offset)) for record in (layout.CARD, layout.PAGE) for field in record.fields
    ]
    (tmp_path / "limits_page_layout.h").write_text(HEADER)
    source = tmp_path / "main.c"
    source.write_text(
        '#include "limits_page_layout.h"\nint main(void) { return (int)sizeof(struct vg_limits_page); }\n'
    )
    flags = ["-std=c11", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-fsyntax-only"]
    subprocess.run(["cc", *flags, str(source)], check=True)


def test_the_architecture_page_shows_the_table() -> None:
    assert table.render() in ARCHITECTURE.read_text(encoding="utf-8"), f"put this in its place:\n{table.render()}"


# ---- bytes -----------------------------------------------------------------------------------------------------


@given(pages, u64)
def test_what_is_written_reads_back(page: LimitsPage, sequence: int) -> None:
    data = limits_page.encode(page, sequence)
    assert len(data) == layout.PAGE_BYTES
    assert limits_page.decode(data) == page
    assert limits_page.sequence_of(data) == sequence


@given(pages, st.lists(st.tuples(st.integers(0, 900) | st.integers(0, 4095), st.binary(min_size=1, max_size=8))))
def test_any_bytes_are_a_fault_or_the_one_way_to_write_their_values(
    page: LimitsPage, changes: list[tuple[int, bytes]]
) -> None:
    data = bytearray(limits_page.encode(page))
    for offset, content in changes:
        data[offset : offset + len(content)] = content
    data = data[: layout.PAGE_BYTES]
    try:
        found = limits_page.decode(bytes(data))
    except MalformedLimitsPage:
        return
    assert limits_page.encode(found, limits_page.sequence_of(bytes(data))) == bytes(data)


@given(st.binary(max_size=5000))
def test_any_bytes_at_all_crash_nothing(data: bytes) -> None:
    with pytest.raises(MalformedLimitsPage):
        limits_page.decode(data)


def test_changing_the_live_words_makes_one_page_the_other() -> None:
    after = LimitsPage(
        region_file=PAGE.region_file,
        cards=(
            CardLimits(uuid="GPU-a", memory_limit_bytes=5, cores_percent=1, context_bytes=9, withheld=True),
            CardLimits(uuid="GPU-b", memory_limit_bytes=2**64 - 1),
        ),
        policy=Policy.DISABLE,
        priority=-5,
        control=Control.DISABLED,
        writer_generation=77,
    )
    data = bytearray(limits_page.encode(PAGE))
    for word in limits_page.live_words(after):
        data[word.offset : word.offset + len(word.bytes)] = word.bytes
    assert limits_page.same_container(PAGE, after)
    assert bytes(data) == limits_page.encode(after)


@pytest.mark.parametrize(
    "other",
    [
        {"region_file": "/elsewhere"},
        {"cards": PAGE.cards[:1]},
        {"cards": PAGE.cards[::-1]},
        {"cards": (*PAGE.cards, CardLimits(uuid="GPU-c"))},
    ],
)
def test_another_region_file_or_other_cards_are_another_container(other: dict[str, Any]) -> None:
    assert not limits_page.same_container(PAGE, LimitsPage(**{"region_file": "/r", "cards": PAGE.cards, **other}))


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"region_file": ""}, "region_file"),
        ({"region_file": "a/b"}, "region_file"),
        ({"region_file": "/" + "x" * 511}, "region_file"),
        ({"region_file": "/a\0b"}, "region_file"),
        ({"region_file": "/\ud800"}, "no bytes"),
        ({"priority": 2**31}, "priority"),
        ({"writer_generation": -1}, "writer_generation"),
        ({"writer_generation": 2**64}, "writer_generation"),
        ({"cards": tuple(CardLimits(uuid=f"GPU-{i}") for i in range(17))}, "17 cards"),
        ({"cards": (CardLimits(uuid="GPU-a"), CardLimits(uuid="gpu-A"))}, "same uuid"),
        ({"cards": (CardLimits(uuid=""),)}, "no uuid"),
        ({"cards": (CardLimits(uuid="GPU-é"),)}, "uuid"),
        ({"cards": (CardLimits(uuid="x" * 96),)}, "uuid"),
        ({"cards": (CardLimits(uuid="x", cores_percent=0),)}, "cores_percent"),
        ({"cards": (CardLimits(uuid="x", cores_percent=101),)}, "cores_percent"),
        ({"cards": (CardLimits(uuid="x", memory_limit_bytes=-1),)}, "memory_limit_bytes"),
        ({"cards": (CardLimits(uuid="x", context_bytes=2**64),)}, "context_bytes"),
    ],
)
def test_what_has_no_place_in_a_page_is_not_written(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(MalformedLimitsPage, match=problem):
        limits_page.encode(LimitsPage(**{"region_file": "/r", "cards": (), **values}))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "0 bytes"),
        (limits_page.encode(PAGE)[:-1], "4095 bytes"),
        (limits_page.encode(PAGE) + b"\0", "4097 bytes"),
        (replaced(0, b"X"), "magic"),
        (replaced(8, b"\2"), "version"),
        (replaced(12, b"\1"), "size"),
        (replaced(32, b"\2"), "control"),
        (replaced(36, b"\3"), "policy"),
        (replaced(44, b"\x11"), "card_count"),
        (replaced(44, b"\xff\xff\xff\xff"), "card_count"),
        (replaced(44, b"\1"), "beyond card_count"),
        (replaced(44, b"\3"), "uuid"),
        (replaced(63, b"\1"), "reserved"),
        (replaced(4095, b"\1"), "reserved"),
        (replaced(64, b"x" * 512), "region_file"),
        (replaced(200, b"x"), "region_file"),
        (replaced(576, b"GPU-B"), "same uuid"),
        (replaced(576 + 104, b"\0"), "cores_percent"),
        (replaced(576 + 120, b"\2"), "flags"),
    ],
)
def test_what_breaks_the_rules_is_not_read(data: bytes, problem: str) -> None:
    with pytest.raises(MalformedLimitsPage, match=problem):
        limits_page.decode(data)
