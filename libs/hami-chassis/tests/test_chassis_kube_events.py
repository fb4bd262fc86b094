"""Kubernetes Events: merged, bounded, retried, never in the way of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hami_chassis.clock import SystemClock
from hami_chassis.kube import EventRecorder, KubeClient, KubeSettings, ObjectReference
from hami_chassis.kube.events import MAX_MESSAGE_CHARACTERS, shorten
from hami_chassis.retry import Backoff
from hami_sim.fake_kube import FakeKube

POD = ObjectReference(kind="Pod", name="a", namespace="ns", uid="u1")
NODE = ObjectReference(kind="Node", name="n")


@pytest.fixture
async def fake() -> AsyncIterator[FakeKube]:
    fake = FakeKube()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def recorder(fake, metrics) -> AsyncIterator[EventRecorder]:
    clock = SystemClock()
    client = await KubeClient.connect(
        KubeSettings(kubeconfig=fake.url, timeout_seconds=60.0), metrics=metrics, clock=clock
    )
    yield EventRecorder(
        client, component="test", instance="host", metrics=metrics, clock=clock, max_queued=3,
        backoff=Backoff(first_seconds=0.01, limit_seconds=0.02),
    )  # fmt: skip
    await client.close()


@asynccontextmanager
async def running(recorder: EventRecorder) -> AsyncIterator[None]:
    task = asyncio.create_task(recorder.run())
    await asyncio.sleep(0)
    yield
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled(), task.exception()


async def until_written(fake: FakeKube) -> None:
    while not fake.all("events"):  # noqa: ASYNC110  # the fake announces the arrival of requests only
        await asyncio.sleep(0.001)


def events(fake: FakeKube) -> list[tuple[str, str, str, int]]:
    return [
        (event["involvedObject"]["name"], event["reason"], event["message"], event["count"])
        for event in fake.all("events")
    ]


async def test_an_event_names_its_object_and_who_says_it(fake, recorder):
    async with running(recorder):
        recorder.emit(POD, reason="Bound", message="on card 3")
        recorder.emit(NODE, reason="Sick", message="card lost", event_type="Warning")
    first, second = fake.all("events")
    about = first["involvedObject"]
    assert (about["apiVersion"], about["kind"], about["namespace"], about["name"], about["uid"]) == (
        "v1",
        "Pod",
        "ns",
        "a",
        "u1",
    )
    assert (first["metadata"]["namespace"], first["type"], first["source"]["component"]) == ("ns", "Normal", "test")
    assert (second["metadata"]["namespace"], second["type"]) == ("default", "Warning")


async def test_repetitions_become_a_count(fake, recorder, metrics):
    for _ in range(5):
        assert recorder.emit(POD, reason="Waiting", message="no room")
    async with running(recorder):
        await fake.wait_for_requests("create", "events")
        await until_written(fake)
        recorder.emit(POD, reason="Waiting", message="no room")
        recorder.emit(POD, reason="Waiting", message="other")
    assert sorted(events(fake)) == [("a", "Waiting", "no room", 6), ("a", "Waiting", "other", 1)]
    assert metrics.kube_events.labels("merged")._value.get() == 5


async def test_a_full_queue_drops_and_counts(fake, recorder, metrics):
    taken = [recorder.emit(POD, reason="R", message=str(number)) for number in range(5)]
    assert taken == [True, True, True, False, False]
    assert metrics.kube_events.labels("dropped")._value.get() == 2
    async with running(recorder):
        pass
    assert len(events(fake)) == 3  # a stopping recorder writes what waits


async def test_an_event_whose_answer_was_lost_is_not_written_twice(fake, recorder):
    fake.cut("create", "events", after_effect=True)
    async with running(recorder):
        recorder.emit(POD, reason="R", message="m")
        await fake.wait_for_requests("patch", "events")
    assert events(fake) == [("a", "R", "m", 1)]


async def test_a_server_that_is_busy_is_asked_again(fake, recorder):
    fake.fail("create", "events", 503, times=2)
    async with running(recorder):
        recorder.emit(POD, reason="R", message="m")
        await fake.wait_for_requests("create", "events", 3)
    assert events(fake) == [("a", "R", "m", 1)]


async def test_a_refusal_loses_one_event_and_not_the_next(fake, recorder, metrics):
    fake.fail("create", "events", 403, reason="Forbidden")
    async with running(recorder):
        recorder.emit(POD, reason="R", message="refused")
        recorder.emit(POD, reason="R", message="taken")
        await fake.wait_for_requests("create", "events", 2)
    assert events(fake) == [("a", "R", "taken", 1)]
    assert metrics.kube_events.labels("failed")._value.get() == 1


async def test_what_is_said_again_while_its_event_is_lost_is_written(fake, recorder, metrics):
    hold = fake.hold("create", "events")
    fake.fail("create", "events", 403)
    async with running(recorder):
        recorder.emit(POD, reason="R", message="m")
        await hold.reached.wait()
        recorder.emit(POD, reason="R", message="m")
        hold.release()
        await until_written(fake)
    assert events(fake) == [("a", "R", "m", 2)]
    assert metrics.kube_events.labels("failed")._value.get() == 1


async def test_an_event_that_aged_out_at_the_server_is_written_anew(fake, recorder):
    async with running(recorder):
        recorder.emit(POD, reason="R", message="m")
        await fake.wait_for_requests("create", "events")
        await until_written(fake)
        name = fake.all("events")[0]["metadata"]["name"]
        fake.remove("events", name, "ns")
        recorder.emit(POD, reason="R", message="m")
        await fake.wait_for_requests("create", "events", 2)
    assert events(fake) == [("a", "R", "m", 2)]


@pytest.mark.parametrize("length", [0, 1, 1022, 1023, 1024, 5000])
def test_a_message_fits_the_api(length):
    message = shorten("x" * length)
    assert len(message) == min(length, MAX_MESSAGE_CHARACTERS)
    assert message.endswith("…") == (length > MAX_MESSAGE_CHARACTERS)
