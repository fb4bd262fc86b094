"""Reading a region: every layout, clamped counts, and nothing but one error for what is no region."""

from __future__ import annotations

import struct

import pytest
from hami_monitor.core.region import DecodedRegion, Region, decode_region, read_region
from hami_monitor.core.region_layouts import (
    EXTENSION_MAGIC,
    EXTENSION_OFFSET,
    EXTENSION_OWNER_BYTES,
    EXTENSION_OWNERS,
    LAYOUTS,
    V0,
    V1,
    V1_1_SHIFTED,
    Layout,
    UnreadableRegionError,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from monitor_builders import CARD_A, CARD_B, Slot, extended, read_bytes, region, region_bytes

TWO = (
    Slot(pid=7, host_pid=70, used={0: 100, 1: 5}, context={0: 10}, busy={0: 30}),
    Slot(pid=8, status=2, used={0: 23}, busy={0: 40}),
)


@pytest.mark.parametrize(
    ("layout", "version", "written"),
    [
        pytest.param(V0, None, (0, 0), id="v0 has no version"),
        pytest.param(V1, (1, 2), (1, 2), id="1.2"),
        pytest.param(V1, (1, 1), (1, 1), id="1.1"),
        pytest.param(V1_1_SHIFTED, (1, 1), (1, 1), id="1.1 of early 2026, shifted"),
        pytest.param(V1, (1, 3), (1, 3), id="a later minor version only appends"),
    ],
)
def test_every_layout_reads_back_what_was_written(
    layout: Layout, version: tuple[int, int] | None, written: tuple[int, int]
) -> None:
    found = region(
        layout=layout,
        version=written,
        cards=(CARD_A, CARD_B),
        limits={0: 3000, 1: 4000},
        cores={1: 50},
        slots=TWO,
        last_kernel_time=1234,
    )
    assert (found.layout, found.version, found.device_count) == (layout.name, version, 2)
    assert [card.id for card in found.cards[:3]] == [CARD_A, CARD_B, ""]
    assert [card.memory_limit_bytes for card in found.cards[:2]] == [3000, 4000]
    assert found.cards[1].cores_limit_percent == 50
    assert (found.cards[0].used.total, found.cards[0].used.context, found.cards[1].used.total) == (123, 10, 5)
    assert found.cards[0].utilisation_percent == 70
    assert [(process.pid, process.host_pid, process.status) for process in found.processes] == [(7, 70, 1), (8, 0, 2)]
    assert found.processes[0].used_bytes[:2] == (100, 5)
    assert (found.utilisation_switch, found.recent_kernel, found.priority) == (1, 2, 1)
    assert found.last_kernel_time_seconds == (0 if layout is V0 else 1234)


def test_ended_slots_count_for_nothing() -> None:
    found = region(slots=[Slot(status=0, used={0: 100}), Slot(used={0: 1})])
    assert found.cards[0].used.total == 1
    assert len(found.processes) == 1


@pytest.mark.parametrize(("slot_count", "seen"), [(-1, 0), (1, 1), (2, 2), (5000, 2), (2**31 - 1, 2), (-(2**31), 0)])
def test_the_number_of_slots_is_clamped(slot_count: int, seen: int) -> None:
    assert len(region(slots=TWO, slot_count=slot_count).processes) == seen


def test_sums_wrap_as_the_library_does() -> None:
    found = region(slots=[Slot(used={0: 2**64 - 1}), Slot(used={0: 8})])
    assert found.cards[0].used.total == 7


def test_a_time_before_the_epoch_stays_negative() -> None:
    assert region(last_kernel_time=-5).last_kernel_time_seconds == -5


@pytest.mark.case("MON-02")
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(b"", "too few", id="empty"),
        pytest.param(b"\0" * 11, "too few", id="11 bytes"),
        pytest.param(b"\0" * 12, "magic", id="12 zero bytes"),
        pytest.param(region_bytes()[:12], "cut short", id="only the head"),
        pytest.param(region_bytes()[:804681], "cut short", id="of the size of v0a"),
        pytest.param(region_bytes()[: V1.size_bytes - 1], "cut short", id="one byte short"),
        pytest.param(region_bytes()[: V0.size_bytes + 1], "cut short", id="cut to the size of v0"),
        pytest.param(region_bytes(layout=V0)[: V0.size_bytes - 1], "no layout", id="v0, one byte short"),
        pytest.param(region_bytes(layout=V0)[:804681], "no layout", id="v0a"),
        pytest.param(region_bytes(version=(2, 0)), "no layout", id="major version 2"),
        pytest.param(region_bytes(version=(0, 0)), "no layout", id="no version in the size of version 1"),
        pytest.param(region_bytes(magic=0), "magic", id="not initialised"),
    ],
)
def test_what_is_no_region_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableRegionError, match=reason):
        read_bytes(data)


def test_a_file_that_ends_while_it_is_read_is_refused() -> None:
    whole = region_bytes(slots=TWO)
    with pytest.raises(UnreadableRegionError, match="ended at"):
        read_bytes(whole[:1000], size=len(whole))


def test_nothing_is_read_beyond_the_layout_however_large_the_file() -> None:
    data, asked = region_bytes(slots=TWO), []

    def read_at(offset: int, length: int) -> bytes:
        asked.append((offset, length))
        return data[offset : offset + length].ljust(length, b"\0")

    read_region(2**50, read_at)
    assert max(offset + length for offset, length in asked) <= EXTENSION_OFFSET + len(EXTENSION_MAGIC)
    assert sum(length for _, length in asked) < 16_000


def test_our_own_library_keeps_no_utilisation() -> None:
    data = region_bytes().ljust(EXTENSION_OFFSET, b"\0") + EXTENSION_MAGIC + bytes(1000)
    assert not read_bytes(data).keeps_utilisation
    assert region().keeps_utilisation


def test_our_own_library_tells_when_the_owners_of_slots_began() -> None:
    slots = [Slot(pid=7, began=70), Slot(pid=8, began=80, status=0), Slot(pid=9, began=90)]
    data = extended(region_bytes(version=(1, 3), slots=slots), slots)
    assert {slot.pid: slot.began_at_ticks for slot in read_bytes(data).processes} == {7: 70, 9: 90}


@pytest.mark.parametrize(
    ("version", "length"),
    [
        pytest.param((1, 2), None, id="an extension of another layout"),
        pytest.param((1, 3), EXTENSION_OFFSET + EXTENSION_OWNERS + 8, id="an extension that was cut short"),
        pytest.param((1, 3), EXTENSION_OFFSET, id="no extension"),
    ],
)
def test_where_it_cannot_tell_nothing_is_made_up(version: tuple[int, int], length: int | None) -> None:
    slots = [Slot(pid=7, began=70), Slot(pid=9, began=90)]
    data = extended(region_bytes(version=version, slots=slots), slots)[:length]
    assert [(slot.pid, slot.began_at_ticks) for slot in read_bytes(data).processes] == [(7, 0), (9, 0)]


def assert_sane(found: Region) -> None:
    """What readers rely on, whatever the file holds."""
    assert len(found.cards) == 16
    assert len(found.processes) <= 1024
    for card in found.cards:
        assert 0 <= card.used.total < 2**64
        assert len(card.uuid) == 96
        card.id.encode("utf-8")


def read_or_refuse(data: bytes, size: int) -> None:
    try:
        found = read_bytes(data, size=size)
    except UnreadableRegionError:
        return
    assert_sane(found)


heads = st.builds(
    lambda magic, words: struct.pack("<i", magic) + struct.pack("<II", *words),
    st.sampled_from([19920718, 0, -1]),
    st.tuples(st.sampled_from([0, 1, 2, 2**32 - 1]), st.sampled_from([0, 1, 2, 3, 2**32 - 1])),
)
sizes = st.one_of(
    st.integers(0, 2**63 - 1), *(st.integers(layout.size_bytes - 2, layout.size_bytes + 9) for layout in LAYOUTS)
)


@settings(deadline=None, max_examples=150)
@given(content=st.binary(max_size=4096), size=sizes)
def test_arbitrary_bytes_are_a_region_or_unreadable(content: bytes, size: int) -> None:
    read_or_refuse(content, size)


@settings(deadline=None, max_examples=150)
@given(head=heads, filler=st.binary(min_size=1, max_size=64), size=sizes)
def test_a_plausible_head_over_anything_is_a_region_or_unreadable(head: bytes, filler: bytes, size: int) -> None:
    """A file that is filled with a pattern of the container's choice."""

    def read_at(offset: int, length: int) -> bytes:
        end = min(offset + length, size)
        pattern = filler * (length // len(filler) + 2)
        shift = offset % len(filler)
        body = bytearray(pattern[shift : shift + max(end - offset, 0)])
        if offset < len(head):
            body[: len(head) - offset] = head[offset:][: len(body)]
        return bytes(body)

    try:
        found = read_region(size, read_at)
    except UnreadableRegionError:
        return
    assert_sane(found)


@settings(deadline=None, max_examples=100)
@given(
    whole=st.sampled_from(
        [
            *(region_bytes(layout=layout, version=(1, 1), slots=TWO) for layout in LAYOUTS),
            extended(region_bytes(version=(1, 3), slots=TWO), TWO),
            extended(region_bytes(version=(1, 3), slots=TWO, slot_count=2**31 - 1), TWO),
        ]
    ),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=40),
    cut=st.floats(0, 1),
)
def test_damaged_and_cut_files_are_a_region_or_unreadable(
    whole: bytes, flips: list[tuple[float, int]], cut: float
) -> None:
    data = bytearray(whole)
    for place, value in flips:
        data[int(place * len(data))] = value
    read_or_refuse(bytes(data[: int(cut * len(data))]), len(data))
    read_or_refuse(bytes(data), len(data))


# ---- the same region again -----------------------------------------------------------------------------------------


def decoded(data: bytes, before: DecodedRegion | None = None) -> DecodedRegion:
    return decode_region(len(data), lambda offset, length: data[offset : offset + length], before)


_TWO = (Slot(pid=1, began=7, used={0: 5, 1: 6}), Slot(pid=2, began=8, used={1: 9}))
_KNOWN = extended(region_bytes(version=(1, 3), slots=_TWO), _TWO)


def test_what_did_not_change_is_not_made_anew() -> None:
    before = decoded(_KNOWN)
    launched = bytearray(_KNOWN)
    struct.pack_into("<i", launched, V1.recent_kernel, 1)
    after = decoded(bytes(launched), before)
    assert after.region.cards is before.region.cards
    assert after.region.processes is before.region.processes
    assert (before.region.recent_kernel, after.region.recent_kernel) == (2, 1)


@pytest.mark.parametrize(
    ("offset", "kind"),
    [
        (V1.uuids, "<Q"),
        (V1.memory_limits + 8, "<Q"),
        (V1.cores_limits, "<Q"),
        (V1.device_count, "<Q"),
        (V1.slots, "<i"),
        (V1.slots + 4, "<i"),
        (V1.slots + V1.slot_bytes + V1.used.start + V1.used.total, "<Q"),
        (V1.slots + V1.slot_bytes + V1.utilisation, "<Q"),
        (EXTENSION_OFFSET + EXTENSION_OWNERS + EXTENSION_OWNER_BYTES, "<Q"),
        (EXTENSION_OFFSET, "<Q"),
        (V1.slot_count, "<i"),
        (V1.utilisation_switch, "<i"),
        (V1.recent_kernel, "<i"),
        (V1.priority, "<i"),
        (V1.last_kernel_time or 0, "<q"),
    ],
)
def test_a_change_of_any_field_is_seen(offset: int, kind: str) -> None:
    changed = bytearray(_KNOWN)
    struct.pack_into(kind, changed, offset, struct.unpack_from(kind, changed, offset)[0] ^ 3)
    found = decoded(bytes(changed), decoded(_KNOWN)).region
    assert found == decoded(bytes(changed)).region
    assert found != decoded(_KNOWN).region


def test_a_region_of_another_layout_owes_nothing_to_the_one_before() -> None:
    other = region_bytes(layout=V1_1_SHIFTED, version=(1, 1), slots=_TWO)
    assert decoded(other, decoded(_KNOWN)).region == decoded(other).region
