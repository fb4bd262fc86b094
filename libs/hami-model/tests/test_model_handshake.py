from __future__ import annotations

import json
import lzma
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hami_model import go_time, handshake
from hami_model.handshake import Memory, judge
from hypothesis import given
from hypothesis import strategies as st

WIRE = Path(__file__).parents[3] / "tests/data/vectors/wire.jsonl.xz"
NOW = datetime(2026, 11, 29, 20, 0, tzinfo=UTC)


def vectors() -> list[dict[str, Any]]:
    with lzma.open(WIRE, "rt", encoding="utf-8") as lines:
        found = [vector for vector in map(json.loads, lines) if vector["op"] == "health_sequence"]
    return [vector for vector in found if "suspect" not in vector["tags"]]


@pytest.mark.parametrize("vector", vectors(), ids=lambda vector: vector["id"])
def test_the_rule_is_that_of_hami(vector: dict[str, Any]) -> None:
    memory, got = Memory(), []
    for step, expected in zip(vector["input"]["steps"], vector["expect"]["steps"], strict=True):
        verdict = judge(
            memory,
            handshake=step.get("handshake"),
            allocatable=int(step.get("allocatable") or 0),
            register=step.get("register"),
            now=go_time.parse_rfc3339(expected["now"]),
        )
        memory = verdict.memory
        after = step.get("handshake") if verdict.stamp is None else verdict.stamp
        got.append(
            {
                "now": expected["now"],
                "healthy": verdict.healthy,
                "need_update": verdict.need_update,
                "handshake_after": after,
            }
        )
    assert got == vector["expect"]["steps"]


def test_cards_that_went_away_come_back_only_with_allocatable_cards() -> None:
    memory, usable = Memory(), []
    for allocatable in (10, 0, 0, 5):
        verdict = judge(memory, handshake=None, allocatable=allocatable, register="[]", now=NOW)
        memory = verdict.memory
        usable.append(verdict.usable)
    assert usable == [True, False, False, True]


def test_a_vendor_without_handshake_writes_none() -> None:
    verdict = judge(Memory(), handshake=None, allocatable=0, register=None, now=NOW, has_handshake=False)
    assert (verdict.healthy, verdict.need_update, verdict.stamp) == (True, True, None)


@given(
    st.builds(Memory, allocatable=st.integers(0, 3), register=st.sampled_from(["", "[]", "[a]"]), lost=st.booleans()),
    st.none() | st.text(st.characters()) | st.from_regex(r"Requesting_?[0-9: -]{0,25}"),
    st.integers(0, 3),
    st.none() | st.sampled_from(["", "[]", "[a]"]),
)
def test_no_handshake_crashes_the_rule(
    memory: Memory, text: str | None, allocatable: int, register: str | None
) -> None:
    verdict = judge(memory, handshake=text, allocatable=allocatable, register=register, now=NOW)
    assert verdict.memory.allocatable == allocatable
    assert not (verdict.memory.lost and verdict.usable)
    again = judge(verdict.memory, handshake=verdict.stamp or text, allocatable=allocatable, register=register, now=NOW)
    assert again.stamp is None
    assert again.memory == verdict.memory


def test_the_stamp_is_utc() -> None:
    assert handshake.stamp(NOW) == "Requesting_2026-11-29 20:00:00"
