"""The small pure parts: backoff, outbox, ids that were seen, headers of events."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hami_chassis.bus import Outbox, Outgoing, SeenIds
from hami_chassis.cloudevents import event_headers, event_id
from hami_chassis.errors import Transient
from hami_chassis.retry import Backoff, Retries
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(0, 10_000), st.floats(0, 1))
def test_a_backoff_stays_within_its_limits(failures, unit):
    backoff = Backoff(first_seconds=0.2, factor=2.0, limit_seconds=15.0)
    delay = backoff.delay_seconds(failures, random_unit=lambda: unit)
    assert 0.1 <= delay <= 15.0


def test_a_backoff_grows_and_begins_anew_after_success():
    retries = Retries(Backoff(first_seconds=1, factor=2, limit_seconds=5), random_unit=lambda: 0.0)
    assert [retries.delay_after() for _ in range(4)] == [1, 2, 4, 5]
    retries.succeeded()
    assert retries.delay_after() == 1


def test_what_the_server_asks_for_is_respected():
    retries = Retries(Backoff(first_seconds=1), random_unit=lambda: 0.0)
    assert retries.delay_after(Transient("busy", retry_after_seconds=30)) == 30
    assert retries.delay_after(Transient("busy", retry_after_seconds=0.1)) == 2


def outgoing(number: int, size: int = 1) -> Outgoing:
    return Outgoing(str(number), b"x" * size, {})


operations = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 60)),
        st.tuples(st.just("take"), st.integers(0, 5)),
        st.tuples(st.just("back"), st.integers(0, 5)),
    ),
    max_size=80,
)


@given(operations)
def test_an_outbox_keeps_order_and_bounds_and_counts_every_loss(steps):
    outbox = Outbox(max_messages=8, max_bytes=200)
    out: list[Outgoing] = []  # taken and not given back, oldest first
    number = lost = settled = 0
    for operation, argument in steps:
        if operation == "put":
            lost += outbox.put(outgoing(number, argument))
            number += 1
        elif operation == "take":
            settled += len(out)
            out = outbox.take(argument)
        else:
            kept, out = out[argument:], []
            lost += outbox.put_back(kept)
            settled += 0
        assert len(outbox) <= 8
    settled += len(out)
    rest = outbox.take(100)
    numbers = [int(message.subject) for message in rest]
    assert numbers == sorted(numbers)
    assert sum(message.size_bytes for message in rest) <= 200 or len(rest) == 1
    assert outbox.take_dropped() == lost
    assert outbox.take_dropped() == 0


def test_an_outbox_drops_the_oldest():
    outbox = Outbox(max_messages=3, max_bytes=10**6)
    assert [outbox.put(outgoing(number)) for number in range(5)] == [0, 0, 0, 1, 1]
    batch = outbox.take(2)
    assert [message.subject for message in batch] == ["2", "3"]
    outbox.put(outgoing(5))
    assert outbox.put_back(batch) == 1
    assert [message.subject for message in outbox.take(9)] == ["3", "4", "5"]


@given(st.lists(st.text(max_size=2)), st.integers(1, 5))
def test_ids_are_remembered_within_the_bound(ids, limit):
    seen = SeenIds(limit)
    for event in ids:
        before = event in seen
        assert seen.add(event) == (not before)
        assert (event in seen) == (event != "")
        assert len(seen) <= limit


def test_ids_need_room():
    with pytest.raises(ValueError, match="at least 1"):
        SeenIds(0)


def test_headers_of_an_event():
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_900, tzinfo=timezone(timedelta(hours=2)))
    headers = event_headers(
        event_id="a.reserved", event_type="io.hami.allocation.reserved.v1", source="scheduler", time=moment,
        subject="ns/pod", traceparent="00-1-2-01",
    )  # fmt: skip
    assert headers == {
        "ce-specversion": "1.0", "ce-id": "a.reserved", "ce-type": "io.hami.allocation.reserved.v1",
        "ce-source": "scheduler", "ce-time": "2026-01-02T01:04:05.678Z", "ce-subject": "ns/pod",
        "content-type": "application/json", "Nats-Msg-Id": "a.reserved", "traceparent": "00-1-2-01",
    }  # fmt: skip
    assert event_id(headers) == "a.reserved"
    assert event_id({}) == ""
    bare = event_headers(event_id="x", event_type="t", source="s", time=datetime(2026, 1, 1, tzinfo=UTC))
    assert not {"ce-subject", "traceparent"} & set(bare)
