from __future__ import annotations

import contextlib
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hami_model import allocation_id, events
from hami_model.cards import ContainerShape, Slice
from hami_model.events import Event, streams, subjects
from hami_model.events.catalogue import type_of
from hami_model.ids import CardId
from hami_model.lifecycle import ExpiryCause, Phase, rank
from hypothesis import given
from hypothesis import strategies as st
from model_event_examples import ALLOCATION, EXAMPLES, NODE, POD, SCHEDULER, TIME
from model_event_strategies import events_of

GOLDEN = Path(__file__).parent / "golden"
BY_TYPE = pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.type)


def extends(new: Any, old: Any) -> bool:
    """Whether `new` says all that `old` says; it may say more."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(key in new and extends(new[key], old[key]) for key in old)
    if isinstance(old, list):
        return isinstance(new, list) and len(new) == len(old) and all(map(extends, new, old))
    return bool(new == old)


def test_there_is_an_example_and_golden_bytes_of_every_event() -> None:
    types = {type_of(event) for event in events.ALL_EVENTS}
    assert {example.type for example in EXAMPLES} == types
    assert {path.stem for path in GOLDEN.glob("*.json")} == types


@BY_TYPE
def test_golden_bytes_are_read_as_ever_and_fields_are_only_added(event: Event) -> None:
    golden = (GOLDEN / f"{event.type}.json").read_bytes()
    assert events.decode(golden) == event
    assert extends(json.loads(events.encode(event)), json.loads(golden))


@BY_TYPE
def test_the_envelope_comes_first(event: Event) -> None:
    keys = list(json.loads(events.encode(event)))
    assert keys[:5] == ["type", "id", "source", "time", "traceparent"]


@BY_TYPE
def test_an_event_made_again_has_the_same_id_and_a_header_says_so(event: Event) -> None:
    again = msgspec.structs.replace(event, id="")
    assert again == event
    headers = events.headers(event)
    assert headers["ce-id"] == headers["Nats-Msg-Id"] == event.id
    assert headers["ce-type"] == event.type
    assert headers["ce-specversion"] == "1.0"
    assert headers["ce-time"] == "2026-11-29T20:15:30.250000Z"
    assert headers["content-type"] == "application/json"
    assert headers["ce-source"] == event.source
    assert ("traceparent" in headers) == bool(event.traceparent)


SUBJECTS = {
    "io.hami.inventory.reported.v1": "hami.v1.inventory.node-1_example_org.NVIDIA",
    "io.hami.health.changed.v1": "hami.v1.health.node-1_example_org.GPU-5e9bbe4a-0000-4000-8000-000000000001",
    "io.hami.admission.admitted.v1": "hami.v1.admission.team-a.admitted",
    "io.hami.admission.rejected.v1": "hami.v1.admission.team-a.rejected",
    "io.hami.placement.placed.v1": f"hami.v1.placement.team-a.{POD.uid}.placed",
    "io.hami.placement.unschedulable.v1": f"hami.v1.placement.team-a.{POD.uid}.unschedulable",
    "io.hami.usage.sampled.v1": f"hami.v1.usage.team-a.node-1_example_org.{POD.uid}",
    "io.hami.usage.slice-not-enforced.v1": f"hami.v1.usage.team-a.node-1_example_org.{POD.uid}.not-enforced",
    "io.hami.usage-node.sampled.v1": "hami.v1.usage-node.node-1_example_org",
    "io.hami.usage-node.out-of-band.v1": "hami.v1.usage-node.node-1_example_org.out-of-band",
} | {
    f"io.hami.allocation.{phase}.v1": f"hami.v1.allocation.team-a.node-1_example_org.{POD.uid}.{phase}"
    for phase in Phase
}


@BY_TYPE
def test_subject_of_each_event(event: Event) -> None:
    assert event.subject() == SUBJECTS[event.type]
    assert event.subject("acme.gpu") == "acme.gpu" + SUBJECTS[event.type].removeprefix("hami")


@pytest.mark.parametrize("phase", list(Phase))
def test_allocation_events_take_id_and_sequence_from_the_phase(phase: Phase) -> None:
    event = next(e for e in EXAMPLES if isinstance(e, events.AllocationEvent) and e.phase is phase)
    assert event.id == f"{ALLOCATION}.{phase}"
    assert event.sequence == rank(phase)
    assert event.type == f"io.hami.allocation.{phase}.v1"


def test_ids_of_moments_differ_by_their_time() -> None:
    sample = next(e for e in EXAMPLES if isinstance(e, events.UsageNodeSampled))
    later = msgspec.structs.replace(sample, id="", time=TIME.replace(second=31))
    assert later.id != sample.id


def test_a_time_without_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="zone"):
        events.UsageNodeSampled(source="/a", time=datetime(2026, 1, 1), node="n", cards=())  # noqa: DTZ001


def test_headers_hold_hostile_text_in_check() -> None:
    event = events.AllocationExpired(
        source="/a\r\nX: y",
        time=TIME,
        traceparent="00-evil\r\nX: y",
        allocation_id='a\r\nNats-Msg-Id: "b%',
        pod=events.PodRef(namespace="ä\n", name="b c", uid="u"),
        node="n",
        cause=ExpiryCause.TIMEOUT,
    )
    headers = events.headers(event)
    assert "traceparent" not in headers
    assert headers["ce-id"] == "a%0D%0ANats-Msg-Id:%20%22b%25.expired"
    assert headers["ce-subject"] == "pods/%C3%A4%0A/b%20c"
    assert all(value.isascii() and value.isprintable() and " " not in value for value in headers.values())


# ---- codec -----------------------------------------------------------------------------------------------------


def test_a_type_of_a_later_version_is_a_value() -> None:
    data = b'{"type":"io.hami.allocation.reserved.v2","id":"a","source":"/s","time":"2026-01-01T00:00:00Z","x":[1]}'
    unknown = events.decode(data)
    assert isinstance(unknown, events.UnknownEvent)
    assert (unknown.type, unknown.id, unknown.raw) == ("io.hami.allocation.reserved.v2", "a", data)


@BY_TYPE
def test_unknown_fields_are_skipped(event: Event) -> None:
    document = json.loads(events.encode(event)) | {"added_later": {"deep": [1, None]}}
    assert events.decode(json.dumps(document).encode()) == event


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"null", id="null"),
        pytest.param(b"[]", id="an array"),
        pytest.param(b"{}", id="no envelope"),
        pytest.param(b'{"type":1,"id":"a","source":"/s","time":"2026-01-01T00:00:00Z"}', id="a type that is no text"),
        pytest.param(b'{"type":"t","id":"","source":"/s","time":"2026-01-01T00:00:00Z"}', id="an empty id"),
        pytest.param(b'{"type":"t","id":"a","source":"/s","time":"2026-01-01T00:00:00"}', id="a time without zone"),
        pytest.param(b'{"type":"t","id":"a","source":"/s","time":"2026-01-01T00:00:00Z"', id="cut short"),
        pytest.param(b'{"x":' + b"[" * 200_000, id="nested without end"),
        pytest.param(b'{"type":"\xff"}', id="not UTF-8"),
        pytest.param(
            b'{"type":"io.hami.usage-node.sampled.v1","id":"a","source":"/s","time":"2026-01-01T00:00:00Z"}',
            id="a body that lacks fields",
        ),
        pytest.param(b" " * (1 << 20) + b"{}", id="too long"),
    ],
)
def test_hostile_bytes_are_a_typed_error(data: bytes) -> None:
    with pytest.raises(events.MalformedEvent):
        events.decode(data)


@given(st.binary(max_size=200))
def test_random_bytes_never_crash_the_codec(data: bytes) -> None:
    with contextlib.suppress(events.MalformedEvent):
        events.decode(data)


@given(st.data())
def test_damaged_events_never_crash_the_codec(data: st.DataObject) -> None:
    raw = bytearray(events.encode(data.draw(st.sampled_from(EXAMPLES))))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = events.decode(bytes(raw))
    except events.MalformedEvent:
        return
    if isinstance(decoded, Event):
        assert events.decode(events.encode(decoded)) == decoded
        assert all(value.isascii() and value.isprintable() for value in events.headers(decoded).values())


@pytest.mark.parametrize("event_type", events.ALL_EVENTS, ids=type_of)
@given(data=st.data())
def test_every_event_survives_its_codec(event_type: type[Event], data: st.DataObject) -> None:
    event = data.draw(events_of(event_type))
    decoded = events.decode(events.encode(event))
    assert isinstance(decoded, event_type)
    assert decoded == event
    assert is_publishable(event.subject())


# ---- subjects --------------------------------------------------------------------------------------------------


def is_publishable(subject: str) -> bool:
    return all(
        part and part.isascii() and part.isprintable() and not set(part) & set(" *>") for part in subject.split(".")
    )


@given(st.text(st.characters()))
def test_any_text_becomes_one_valid_token(text: str) -> None:
    token = subjects.token(text)
    assert "." not in token
    assert is_publishable(token)
    assert len(token) <= 256


@given(st.text(st.characters()), st.text(st.characters()))
def test_different_names_give_different_tokens(one: str, other: str) -> None:
    assert (subjects.token(one) == subjects.token(other)) == (one == other)


@pytest.mark.parametrize("length", [300, 5000])
def test_long_names_stay_apart_and_short(length: int) -> None:
    one, other = subjects.token("a" * length + "x"), subjects.token("a" * length + "y")
    assert one != other
    assert max(len(one), len(other)) <= 256


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("node-1.example.org", "node-1_example_org"),
        ("", "="),
        ("*", "=2A"),
        (">", "=3E"),
        ("a_b", "a=5Fb"),
        ("0000:3b:00.0", "0000=3A3b=3A00_0"),
        ("$SYS", "=24SYS"),
        ("a b\r\n", "a=20b=0D=0A"),
    ],
)
def test_tokens(text: str, token: str) -> None:
    assert subjects.token(text) == token


@pytest.mark.parametrize(
    "prefix", ["", ".", "a.", ".a", "a..b", "a b", "*", ">", "$SYS", "hami.>", "ä", "a" * 65, "a\n"]
)
def test_unusable_prefixes_are_refused(prefix: str) -> None:
    with pytest.raises(subjects.InvalidPrefixError):
        subjects.everything(prefix=prefix)


def test_readers_subscribe_with_any() -> None:
    assert subjects.everything() == "hami.v1.>"
    assert subjects.family("usage-node") == "hami.v1.usage-node.>"
    assert (
        subjects.allocation(subjects.ANY, NODE, subjects.ANY, Phase.ALLOCATING)
        == "hami.v1.allocation.*.node-1_example_org.*.allocating"
    )
    assert subjects.query("what-if", prefix="x") == "x.v1.query.what-if"


def matches(pattern: str, subject: str) -> bool:
    """NATS' rule: `*` is any one token, `>` the rest, at least one."""
    want, have = pattern.split("."), subject.split(".")
    if want[-1] == ">":
        want.pop()
        if len(have) <= len(want):
            return False
        have = have[: len(want)]
    return len(want) == len(have) and all(w in ("*", h) for w, h in zip(want, have, strict=True))


def test_a_node_may_publish_exactly_what_is_of_it() -> None:
    own = subjects.of_node(NODE)
    for event in EXAMPLES:
        of_this_node = not isinstance(
            event, events.AdmissionEvent | events.PlacementPlaced | events.PlacementUnschedulable
        )
        assert any(matches(pattern, event.subject()) for pattern in own) == of_this_node
    foreign = subjects.of_node("node-1_example.org")
    assert not any(matches(pattern, event.subject()) for pattern in foreign for event in EXAMPLES)


# ---- streams ---------------------------------------------------------------------------------------------------


@BY_TYPE
@pytest.mark.parametrize("prefix", ["hami", "acme.gpu-1"])
def test_every_event_is_kept_by_exactly_one_stream(event: Event, prefix: str) -> None:
    specs = streams.streams(streams.StreamSettings(), prefix=prefix)
    assert sum(matches(pattern, event.subject(prefix)) for spec in specs for pattern in spec.subjects) == 1


def test_streams_by_default() -> None:
    allocation, inventory, usage = streams.streams(streams.StreamSettings())
    assert (allocation.name, allocation.max_age_seconds, allocation.storage) == ("HAMI_ALLOCATION", 7 * 86400, "file")
    assert allocation.subjects == ("hami.v1.allocation.>", "hami.v1.placement.>", "hami.v1.admission.>")
    assert (inventory.name, inventory.max_messages_per_subject) == ("HAMI_INVENTORY", 1)
    assert inventory.subjects == ("hami.v1.inventory.>", "hami.v1.health.>")
    assert (usage.name, usage.max_age_seconds, usage.discard) == ("HAMI_USAGE", 3600, "old")
    assert usage.subjects == ("hami.v1.usage.>", "hami.v1.usage-node.>")
    assert {spec.replicas for spec in (allocation, inventory, usage)} == {1}


def test_streams_of_another_prefix_have_other_names() -> None:
    names = [spec.name for spec in streams.streams(streams.StreamSettings(replicas=3), prefix="acme.gpu-1")]
    assert names == ["ACME_GPU-1_ALLOCATION", "ACME_GPU-1_INVENTORY", "ACME_GPU-1_USAGE"]


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"replicas": 0}, "replicas"),
        ({"replicas": 2}, "replicas"),
        ({"replicas": 7}, "replicas"),
        ({"allocation_max_age_seconds": -1}, "allocation_max_age_seconds"),
        ({"usage_max_bytes": 0}, "usage_max_bytes"),
        ({"duplicate_window_seconds": 7200}, "duplicate_window_seconds"),
    ],
)
def test_stream_settings_that_a_server_would_refuse_are_refused_with_their_name(
    settings: dict[str, int], fault: str
) -> None:
    with pytest.raises(streams.StreamSettingsError, match=fault):
        streams.streams(streams.StreamSettings(**settings))


# ---- parts and ids ---------------------------------------------------------------------------------------------


def test_placement_names_the_ten_best_nodes() -> None:
    scores = {f"n{index:02}": float(index % 7) for index in range(50)}
    best = events.best_scores(scores)
    assert [(score.node, score.score) for score in best[:3]] == [("n06", 6.0), ("n13", 6.0), ("n20", 6.0)]
    assert len(best) == 10


def test_containers_without_slices_are_left_out() -> None:
    held = Slice(card_id=CardId("GPU-1"), vendor="NVIDIA", memory_mib=10, cores_percent=5)
    shapes = [ContainerShape(name=name, kind="app") for name in ("a", "b", "c")]
    assert events.container_shares(shapes, ((), (held,))) == (
        events.ContainerShare(
            container="b", cards=(events.CardShare(card_id="GPU-1", vendor="NVIDIA", memory_mib=10, cores_percent=5),)
        ),
    )


def test_uuid7_has_the_bits_of_the_standard() -> None:
    # The example of RFC 9562, appendix A.6.
    made = allocation_id.uuid7(0x017F22E279B0, bytes.fromhex("0cc3" + "18c4dc0c0c07398f"))
    assert made == "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**48 - 1), st.binary(min_size=10, max_size=10))
def test_uuid7_sorts_by_time(one: int, other: int, random_bytes: bytes) -> None:
    first, second = (allocation_id.uuid7(ms, random_bytes) for ms in (one, other))
    assert (first < second) == (one < other)


@pytest.mark.parametrize(("unix_ms", "random_bytes"), [(-1, bytes(10)), (2**48, bytes(10)), (0, bytes(9))])
def test_uuid7_refuses_what_does_not_fit(unix_ms: int, random_bytes: bytes) -> None:
    with pytest.raises(ValueError, match=r"uuid7|unix_ms"):
        allocation_id.uuid7(unix_ms, random_bytes)


def test_the_id_of_an_adopted_pod_never_changes() -> None:
    assert allocation_id.adopted(POD.uid, "1764446130") == "4106b886-db6a-5c84-bca8-5dd95965bccb"
    assert allocation_id.adopted(POD.uid, "1764446131") != allocation_id.adopted(POD.uid, "1764446130")


def test_source_escapes_its_parts() -> None:
    assert SCHEDULER == "/hami/scheduler/hami-scheduler-0"
    assert events.source("monitor", "a/b c") == "/hami/monitor/a%2Fb%20c"
