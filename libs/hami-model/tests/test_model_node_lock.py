from __future__ import annotations

import contextlib
import json
import lzma
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hami_model import go_time, node_lock
from hami_model.errors import MalformedAnnotation
from hami_model.node_lock import Decision, NodeLock, OwnerView, PodName, Step, Why, may_release, may_take
from hypothesis import given
from hypothesis import strategies as st

WIRE = Path(__file__).parents[3] / "tests/data/vectors/wire.jsonl.xz"
NOW = datetime(2026, 11, 29, 20, 0, tzinfo=UTC)
ME = PodName(namespace="ns", name="me")
NODE = "node-1"


def vectors() -> list[dict[str, Any]]:
    with lzma.open(WIRE, "rt", encoding="utf-8") as lines:
        return [vector for vector in map(json.loads, lines) if vector["op"] == "node_lock_parse"]


@pytest.mark.parametrize("vector", vectors(), ids=lambda vector: vector["id"])
def test_the_parser_reads_what_hami_reads(vector: dict[str, Any]) -> None:
    text, expected = vector["input"]["text"], vector["expect"]
    if not expected["ok"]:
        with pytest.raises(MalformedAnnotation, match=r"hami\.io/mutex\.lock"):
            node_lock.parse(text)
        return
    lock = node_lock.parse(text)
    owner = lock.owner or PodName(namespace="", name="")
    assert (owner.namespace, owner.name) == (expected["value"]["namespace"], expected["value"]["name"])
    assert lock.time == go_time.parse_rfc3339(expected["value"]["time"])
    assert lock.time.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    "text",
    [
        "2026-02-30T00:00:00Z,a,b",
        "2026-01-01T00:00:60Z,a,b",
        "2026-01-01T24:00:00Z,a,b",
        "2026-01-01T00:00:00z,a,b",
        "2026-01-01T00:00:00,a,b",
        "2026-01-01T00:00:00+0800,a,b",
        "2026-01-01T00:00:00+99:99,a,b",
        "0000-01-01T00:00:00Z,a,b",
        "0001-01-01T00:00:00+08:00,a,b",
        "9999-12-31T23:59:59-08:00,a,b",
        "\uff12026-01-01T00:00:00Z,a,b",
        "2026-01-01T00:00:00Z,a,b,c",
        "2026-01-01T00:00:00." + "1" * 100 + "Z,a,b",
    ],
)
def test_times_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(MalformedAnnotation):
        node_lock.parse(text)


@given(st.text(st.characters()) | st.from_regex(r"[0-9TZ:+,. -]{0,40}"))
def test_the_parser_never_crashes(text: str) -> None:
    with contextlib.suppress(MalformedAnnotation):
        node_lock.parse(text)


NAMES = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?", fullmatch=True)
TIMES = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001


@given(NAMES, NAMES, TIMES)
def test_what_is_written_is_read(namespace: str, name: str, time: datetime) -> None:
    owner = PodName(namespace=namespace, name=name)
    assert node_lock.parse(node_lock.encode(owner, time)) == NodeLock(time=time.replace(microsecond=0), owner=owner)


@pytest.mark.parametrize(("namespace", "name"), [("", "a"), ("a", ""), ("x", "a,b"), ("x,y", "a")])
def test_names_that_no_pod_has_are_not_written(namespace: str, name: str) -> None:
    with pytest.raises(ValueError, match="no pod"):
        node_lock.encode(PodName(namespace=namespace, name=name), NOW)


def ago(**delta: float) -> datetime:
    return NOW - timedelta(**delta)


def held(since: datetime, name: str = "other") -> str:
    return node_lock.encode(PodName(namespace="ns", name=name), since)


def waiting(**changes: Any) -> OwnerView:
    """A pod that is bound here and waits for Allocate."""
    fields = {"node_name": NODE, "phase": "Pending", "bind_phase": "allocating", "bound_at": None}
    return OwnerView(**(fields | changes))


def decide(value: str | None, owner: OwnerView | None = None, not_ready_since: datetime | None = None) -> Decision:
    return may_take(value, requester=ME, owner=owner, node_name=NODE, node_not_ready_since=not_ready_since, now=NOW)


def row(name: str, value: str | None, owner: OwnerView | None, expected: str, **more: Any) -> Any:
    """`expected`: step and reason. More: the id of a case, and since when the node is not ready."""
    step, why = expected.split()
    marks = [pytest.mark.case(more["case"])] if "case" in more else []
    decision = Decision(step=Step(step), why=Why(why))
    return pytest.param(value, owner, more.get("not_ready_since"), decision, id=name, marks=marks)


YOUNG = held(ago(seconds=10))
EARLY = held(ago(minutes=-9))
UNBOUND = waiting(node_name="", bind_phase="")
LOCKED_AT = "2026-11-29T19:59:00Z"


@pytest.mark.parametrize(
    ("value", "owner", "not_ready_since", "decision"),
    [
        row("no lock", None, None, "take free"),
        row("its own lock is kept", held(NOW, "me"), waiting(), "keep ours", case="LCK-07"),
        row("its own old lock is kept", held(ago(hours=1), "me"), waiting(), "keep ours", case="LCK-07"),
        row("owner waits, 6 minutes old", held(ago(minutes=6)), waiting(), "wait owner-waits", case="LCK-01"),
        row("owner gone", YOUNG, None, "take owner-gone", case="LCK-03"),
        row("owner failed as a pod", YOUNG, waiting(phase="Failed"), "take owner-ended", case="LCK-02"),
        row("owner succeeded", YOUNG, waiting(phase="Succeeded"), "take owner-ended", case="LCK-02"),
        row("owner on another node", YOUNG, waiting(node_name="node-2"), "take owner-elsewhere", case="LCK-02"),
        row("owner runs", YOUNG, waiting(phase="Running"), "take owner-runs", case="LCK-01"),
        row("owner's allocation failed", YOUNG, waiting(bind_phase="failed"), "take owner-failed", case="LCK-01"),
        row("owner served, release lost", YOUNG, waiting(bind_phase="success"), "take owner-served"),
        row("owner about to be bound", YOUNG, UNBOUND, "wait bind-in-flight"),
        row("owner never bound", held(ago(seconds=61)), UNBOUND, "take bind-given-up"),
        row("owner unbound, lock of the future", EARLY, UNBOUND, "take bind-given-up"),
        row("owner waits 15 minutes", held(ago(minutes=15)), waiting(), "wait owner-waits"),
        row("owner waits longer", held(ago(seconds=901)), waiting(), "fail-owner owner-waits-too-long"),
        row("bound later than locked", held(ago(hours=1)), waiting(bound_at=ago(minutes=14)), "wait owner-waits"),
        row("early clock, bound long ago", EARLY, waiting(bound_at=ago(hours=1)), "fail-owner owner-waits-too-long"),
        row("early clock, nothing else known", EARLY, waiting(), "fail-owner owner-waits-too-long"),
        row("clock a little early", held(ago(minutes=-4)), waiting(), "wait owner-waits"),
        row("node unready a minute", YOUNG, waiting(), "wait owner-waits", not_ready_since=ago(seconds=60)),
        row("node unready longer", YOUNG, waiting(), "fail-owner node-not-ready", not_ready_since=ago(seconds=61)),
        row("node unready, bind in flight", YOUNG, UNBOUND, "wait bind-in-flight", not_ready_since=ago(seconds=61)),
        row("name that begins like its own", held(NOW, "me-2"), waiting(), "wait owner-waits", case="LCK-04"),
        row("empty value", "", None, "take malformed", case="LCK-08"),
        row("no time", "not-a-time", None, "take malformed", case="LCK-08"),
        row("no time but an owner", "xx,ns,p", waiting(), "take malformed", case="LCK-08"),
        row("two parts", f"{LOCKED_AT},ns", None, "take malformed", case="LCK-08"),
        row("names no pod", f"{LOCKED_AT},,", None, "take owner-gone"),
        row("legacy, young", "2026-11-29T19:55:00Z", None, "wait legacy-held", case="LCK-08"),
        row("legacy, expired", "2026-11-29T19:54:59Z", None, "take legacy-expired", case="LCK-08"),
        row("legacy, a little early", "2026-11-29T20:05:00Z", None, "wait legacy-held", case="LCK-08"),
        row("legacy, from the future", "2026-11-29T20:05:01Z", None, "take from-the-future", case="LCK-08"),
    ],
)
def test_who_gets_the_lock(
    value: str | None, owner: OwnerView | None, not_ready_since: datetime | None, decision: Decision
) -> None:
    assert decide(value, owner, not_ready_since) == decision


@pytest.mark.parametrize(
    ("value", "released"),
    [
        pytest.param(None, False, id="no lock"),
        pytest.param(held(NOW, "me"), True, id="its own"),
        pytest.param("2026-11-29T20:00:00Z,other,me", False, id="of its name in another namespace"),
        pytest.param(held(NOW, "me-123"), False, id="of a longer name", marks=pytest.mark.case("LCK-04")),
        pytest.param(held(NOW, "not-me"), False, id="of a name with its end", marks=pytest.mark.case("LCK-04")),
        pytest.param("2026-11-29T20:00:00Z,x,ns,me", False, id="with a comma more", marks=pytest.mark.case("LCK-04")),
        pytest.param(held(NOW), False, id="of another", marks=pytest.mark.case("LCK-05")),
        pytest.param("2026-11-29T20:00:00Z", True, id="without owner"),
        pytest.param("garbage", False, id="malformed"),
    ],
)
def test_who_may_release_the_lock(value: str | None, released: bool) -> None:
    assert may_release(value, ME) is released


OWNERS = st.builds(
    OwnerView,
    node_name=st.sampled_from([NODE, "", "node-2"]),
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown", ""]),
    bind_phase=st.sampled_from(["", "allocating", "success", "failed", "odd"]),
    bound_at=st.none() | TIMES,
)


@given(OWNERS, TIMES, st.none() | TIMES, TIMES)
def test_an_owner_that_waits_never_loses_the_lock_unmarked(
    owner: OwnerView, locked_at: datetime, not_ready_since: datetime | None, now: datetime
) -> None:
    decision = may_take(
        held(locked_at),
        requester=ME,
        owner=owner,
        node_name=NODE,
        node_not_ready_since=not_ready_since,
        now=now,
    )
    waits = owner.node_name == NODE and owner.phase not in ("Succeeded", "Failed", "Running")
    if waits and owner.bind_phase not in ("failed", "success"):
        assert decision.step in (Step.WAIT, Step.FAIL_OWNER)
    else:
        assert decision.step in (Step.TAKE, Step.WAIT)


@given(st.none() | st.text(st.characters()), st.none() | OWNERS)
def test_no_value_crashes_the_decision(value: str | None, owner: OwnerView | None) -> None:
    decide(value, owner)
    may_release(value, ME)
