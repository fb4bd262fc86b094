"""The bus against a real nats-server: away at start, restarted, emptied, repeated."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import nats
import pytest
import structlog
from hami_chassis.bus import (
    Bus,
    BusSettings,
    DurableConsumer,
    Endpoint,
    Message,
    MicroService,
    Reply,
    Stream,
    publishing,
)
from hami_chassis.bus.streams import ensure_streams
from hami_chassis.cloudevents import event_headers
from hami_chassis.errors import Permanent, Transient
from hami_sim.nats_server import NatsServer
from nats.errors import NoRespondersError

STREAM = Stream(name="TEST", subjects=["test.>"], max_age_seconds=3600)
PATIENCE_SECONDS = 60
"""Of one answer: a machine of CI may be many times as slow as an idle one."""
_numbers = itertools.count()


@asynccontextmanager
async def running(bus: Bus) -> AsyncIterator[Bus]:
    task = asyncio.create_task(bus.run())
    try:
        yield bus
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()


def headers(event_id: str) -> dict[str, str]:
    return event_headers(event_id=event_id, event_type="io.test.v1", source="test", time="2026-01-01T00:00:00Z")


@pytest.fixture
def new_bus(nats_server, metrics) -> Callable[..., Bus]:
    def make(*, streams=(STREAM,), on_overflow=None, **changes) -> Bus:
        settings = BusSettings(**({"servers": (nats_server.url,), "reconnect_seconds": 0.05} | changes))
        return Bus(settings, name=f"bus-{next(_numbers)}", metrics=metrics, streams=streams, on_overflow=on_overflow)

    return make


async def stored(nats_server, stream: str = "TEST") -> list[tuple[str, bytes, str]]:
    """Subject, payload and id of all messages of the stream, read by a plain client."""
    client = await nats.connect(nats_server.url, **nats_server.credentials)
    try:
        jetstream = client.jetstream(timeout=PATIENCE_SECONDS)
        state = (await jetstream.stream_info(stream)).state
        found = []
        for sequence in range(max(state.first_seq, 1), state.last_seq + 1):  # 0 to 0: nothing yet
            message = await jetstream.get_msg(stream, sequence)
            found.append((message.subject, message.data, message.headers["ce-id"]))
        return found
    finally:
        await client.close()


class Collected:
    """Messages as they come, and a way to wait for a number of them."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._changed = asyncio.Condition()

    async def __call__(self, message: Message) -> None:
        async with self._changed:
            self.messages.append(message)
            self._changed.notify_all()

    async def wait_for(self, count: int) -> list[Message]:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.messages) >= count)
        return self.messages


async def test_what_is_published_lands_in_the_stream_with_its_headers(nats_server, new_bus):
    await nats_server.start()
    async with running(new_bus()) as bus:
        bus.publish("test.a", b"1", headers("one"))
        bus.publish("test.b", b"2", headers("two"))
        await bus.wait_published()
    assert await stored(nats_server) == [("test.a", b"1", "one"), ("test.b", b"2", "two")]


async def test_nats_that_is_away_at_start_gets_everything_later_in_order_and_once(nats_server, new_bus):
    async with running(new_bus()) as bus:
        for number in range(1200):
            bus.publish(f"test.{number % 7}", str(number).encode(), headers(f"id-{number}"))
        assert not bus.connected
        assert bus.waiting == 1200
        await nats_server.start()
        await bus.wait_published()
    assert [payload for _, payload, _ in await stored(nats_server)] == [str(n).encode() for n in range(1200)]


async def test_an_id_that_is_published_again_is_stored_once(nats_server, new_bus):
    await nats_server.start()
    async with running(new_bus()) as bus:
        for _ in range(3):
            bus.publish("test.a", b"x", headers("same"))
        await bus.wait_published()
        bus.publish("test.a", b"x", headers("same"))
        await bus.wait_published()
    assert await stored(nats_server) == [("test.a", b"x", "same")]


async def test_streams_lost_in_a_restart_are_made_again(nats_server, new_bus):
    await nats_server.start()
    async with running(new_bus()) as bus:
        bus.publish("test.a", b"before", headers("before"))
        await bus.wait_published()
        await nats_server.stop()
        bus.publish("test.a", b"while away", headers("away"))
        await nats_server.start(keep_data=False)
        bus.publish("test.a", b"after", headers("after"))
        await bus.wait_published()
    assert [event_id for _, _, event_id in await stored(nats_server)] == ["away", "after"]


async def test_streams_that_could_not_be_made_are_made_later_without_any_event(nats_server, new_bus, monkeypatch):
    """As where JetStream is slow to answer: who reads a stream waits for it, whether anything is published or not."""
    made = asyncio.Event()
    failures = iter([TimeoutError(), NoRespondersError()])

    async def make(jetstream, streams):
        if (failure := next(failures, None)) is not None:
            raise failure
        await ensure_streams(jetstream, streams)
        made.set()

    monkeypatch.setattr(publishing, "ensure_streams", make)
    await nats_server.start()
    async with running(new_bus()):
        await made.wait()


async def test_a_stream_deleted_under_a_live_connection_is_made_again(nats_server, new_bus):
    await nats_server.start()
    async with running(new_bus()) as bus:
        bus.publish("test.a", b"before", headers("before"))
        await bus.wait_published()
        client = await nats.connect(nats_server.url)
        await client.jetstream(timeout=PATIENCE_SECONDS).delete_stream("TEST")
        await client.close()
        bus.publish("test.a", b"after", headers("after"))
        await bus.wait_published()
    assert [event_id for _, _, event_id in await stored(nats_server)] == ["after"]


async def test_a_declared_stream_is_updated_and_a_refused_update_does_no_harm(nats_server, new_bus):
    await nats_server.start()
    changed = Stream(name="TEST", subjects=["test.>", "more.>"], max_age_seconds=60, storage="memory")
    for stream, expected in [
        (STREAM, {"test.>"}),
        (Stream(name="TEST", subjects=["test.>", "more.>"], max_age_seconds=60), {"test.>", "more.>"}),
        (changed, {"test.>", "more.>"}),
    ]:
        async with running(new_bus(streams=[stream])) as bus:
            bus.publish("test.a", b"x", headers(f"id-{next(_numbers)}"))
            await bus.wait_published()
            client = await nats.connect(nats_server.url)
            info = await client.jetstream(timeout=PATIENCE_SECONDS).stream_info("TEST")
            await client.close()
            assert set(info.config.subjects) == expected


async def test_overflow_drops_the_oldest_and_is_told_once_nats_is_back(nats_server, new_bus, metrics):
    told: list[int] = []
    heard = asyncio.Event()

    async def on_overflow(dropped: int) -> None:
        told.append(dropped)
        bus.publish("test.republished", b"from the ledger", headers("ledger"))
        heard.set()

    bus = new_bus(outbox_max_messages=10, on_overflow=on_overflow)
    async with running(bus):
        for number in range(25):
            bus.publish("test.a", str(number).encode(), headers(f"id-{number}"))
        assert bus.waiting == 10
        await nats_server.start()
        await heard.wait()
        await bus.wait_published()
    assert told == [15]
    assert [payload for _, payload, _ in await stored(nats_server)] == [
        *[str(number).encode() for number in range(15, 25)],
        b"from the ledger",
    ]
    assert metrics.bus_dropped.labels("overflow")._value.get() == 15


async def test_what_can_never_be_stored_does_not_hold_up_the_rest(nats_server, new_bus, metrics):
    await nats_server.start()
    async with running(new_bus()) as bus:
        bus.publish("test.large", b"x" * 2_000_000, headers("large"))
        bus.publish("test has a space", b"x", headers("space"))
        bus.publish("test.a", b"good", headers("good"))
        await bus.wait_published()
    assert [event_id for _, _, event_id in await stored(nats_server)] == ["good"]
    assert metrics.bus_dropped.labels("refused")._value.get() == 2


async def test_a_stopping_bus_publishes_what_waits(nats_server, new_bus):
    await nats_server.start()
    async with running(new_bus(flush_seconds=300)) as bus:
        await bus.wait_connected()
        for number in range(700):
            bus.publish("test.a", str(number).encode(), headers(f"id-{number}"))
    assert len(await stored(nats_server)) == 700


async def test_a_bus_without_servers_counts_what_it_drops(metrics):
    async with running(Bus(BusSettings(servers=()), name="none", metrics=metrics)) as bus:
        bus.publish("test.a", b"x", headers("x"))
    assert metrics.bus_dropped.labels("no-bus")._value.get() == 1


async def test_plain_subscriptions_live_through_a_restart(nats_server, new_bus):
    await nats_server.start()
    got = Collected()
    listener, speaker = new_bus(streams=()), new_bus()
    listener.subscribe("test.>", got)
    async with running(listener), running(speaker):
        await asyncio.gather(listener.wait_connected(), speaker.wait_connected())
        await publish_until(speaker, got, 1)
        await nats_server.stop()
        await nats_server.start()
        await publish_until(speaker, got, len(got.messages) + 1)


async def publish_until(speaker: Bus, got: Collected, count: int) -> None:
    """A plain subscription hears only what is published after it stands, so it is tried until it does."""
    while len(got.messages) < count:
        number = next(_numbers)
        speaker.publish("test.hint", b"x", headers(f"hint-{number}"))
        await speaker.wait_published()
        await asyncio.sleep(0.02)


async def test_a_refusing_plain_handler_goes_on_with_the_next_message(nats_server, new_bus):
    await nats_server.start()
    got = Collected()

    async def handle(message: Message) -> None:
        await got(message)
        raise Permanent("not for me")

    bus = new_bus()
    bus.subscribe("test.>", handle)
    async with running(bus):
        await publish_until(bus, got, 3)


CONSUMER = DurableConsumer(stream="TEST", name="reader", ack_seconds=600.0)
"""What is handled late, on a machine that is busy, must not come again meanwhile."""


async def test_a_durable_consumer_goes_on_where_it_ended(nats_server, new_bus):
    await nats_server.start()
    async with running(new_bus()) as speaker:
        for number in range(150):
            speaker.publish("test.a", str(number).encode(), headers(f"id-{number}"))
        await speaker.wait_published()
        first, second = Collected(), Collected()
        reader = new_bus()
        reader.consume(CONSUMER, first)
        async with running(reader):
            await first.wait_for(150)
        reader = new_bus()
        reader.consume(CONSUMER, second)
        async with running(reader):
            speaker.publish("test.a", b"new", headers("new"))
            # The last acknowledgements of a reader that was stopped may not have been flushed.
            while not second.messages or second.messages[-1].payload != b"new":
                await second.wait_for(len(second.messages) + 1)
    assert [message.payload for message in first.messages] == [str(number).encode() for number in range(150)]
    assert len(second.messages) < 150


async def test_a_transient_refusal_brings_the_message_again_and_a_permanent_one_never(nats_server, new_bus, metrics):
    await nats_server.start()
    seen: list[tuple[str, int]] = []
    done = asyncio.Event()

    async def handle(message: Message) -> None:
        seen.append((message.id, message.deliveries))
        if message.id == "flaky" and message.deliveries < 3:
            raise Transient("not now", retry_after_seconds=0.05)
        if message.id == "bad":
            raise Permanent("never")
        if len(seen) == 5:
            done.set()

    bus = new_bus()
    bus.consume(CONSUMER, handle)
    async with running(bus):
        for event_id in ("flaky", "bad", "good"):
            bus.publish("test.a", b"x", headers(event_id))
        await done.wait()
    assert sorted(seen) == [("bad", 1), ("flaky", 1), ("flaky", 2), ("flaky", 3), ("good", 1)]
    assert metrics.bus_consumed.labels("reader", "refused")._value.get() == 1


async def test_a_repetition_of_an_id_does_not_reach_the_handler_twice(nats_server, new_bus, metrics):
    await nats_server.start()
    got = Collected()
    window = Stream(name="TEST", subjects=["test.>"], duplicate_window_seconds=0.1)
    bus = new_bus(streams=[window])
    bus.consume(CONSUMER, got)
    async with running(bus):
        bus.publish("test.a", b"x", headers("same"))
        await got.wait_for(1)
        while len(await stored(nats_server)) < 2:  # beyond the window of the server it is stored again
            bus.publish("test.a", b"x", headers("same"))
            await bus.wait_published()
            await asyncio.sleep(0.05)
        bus.publish("test.a", b"end", headers("end"))
        await got.wait_for(2)
    assert [message.id for message in got.messages] == ["same", "end"]
    assert metrics.bus_consumed.labels("reader", "duplicate")._value.get() >= 1


async def test_a_durable_consumer_survives_the_loss_of_its_stream(nats_server, new_bus):
    await nats_server.start()
    got = Collected()
    bus = new_bus()
    bus.consume(CONSUMER, got)
    async with running(bus):
        bus.publish("test.a", b"before", headers("before"))
        await got.wait_for(1)
        await nats_server.stop()
        await nats_server.start(keep_data=False)
        bus.publish("test.a", b"after", headers("after"))
        await got.wait_for(2)
    assert [message.id for message in got.messages] == ["before", "after"]


async def test_a_durable_consumer_survives_a_stream_deleted_under_it(nats_server, new_bus):
    await nats_server.start()
    got = Collected()
    bus = new_bus()
    bus.consume(CONSUMER, got)
    async with running(bus):
        bus.publish("test.a", b"before", headers("before"))
        await got.wait_for(1)
        client = await nats.connect(nats_server.url)
        await client.jetstream(timeout=PATIENCE_SECONDS).delete_stream("TEST")
        await client.close()
        bus.publish("test.a", b"after", headers("after"))
        await got.wait_for(2)
    assert [message.id for message in got.messages] == ["before", "after"]


async def test_the_last_message_of_each_subject_can_be_read_back(nats_server, new_bus):
    await nats_server.start()
    async with running(new_bus()) as bus:
        for number in range(600):
            bus.publish(f"test.{number % 300}", str(number).encode(), headers(f"id-{number}"))
        await bus.wait_published()
        last = {message.subject: message.payload async for message in bus.last_per_subject("TEST", "test.>")}
        assert last == {f"test.{number % 300}": str(number).encode() for number in range(300, 600)}
        with pytest.raises(Transient):
            _ = [message async for message in bus.last_per_subject("MISSING", "test.>")]


async def answer_upper(message: Message) -> Reply:
    if message.payload == b"bad":
        return Reply(error_code="400", error_description="that is bad")
    if message.payload == b"defect":
        raise KeyError("inside")
    return Reply(payload=message.payload.upper())


@pytest.mark.parametrize(
    ("question", "payload", "code"),
    [
        pytest.param(b"hello", b"HELLO", None, id="a question gets its answer"),
        pytest.param(b"bad", b"", "400", id="an error comes as code and description"),
        pytest.param(b"defect", b"", "500", id="a defect shows nothing of its inside"),
    ],
)
async def test_queries(nats_server, new_bus, question, payload, code):
    await nats_server.start()
    server, client = new_bus(streams=()), new_bus(streams=())
    endpoint = Endpoint(name="upper", subject="test.query.upper", answer=answer_upper)
    server.serve(MicroService(name="upper", version="1.0.0", description="upper case", endpoints=[endpoint]))
    async with running(server), running(client):
        await asyncio.gather(server.wait_connected(), client.wait_connected())
        reply = await until_answered(lambda: client.request("test.query.upper", question))
        assert reply.payload == payload
        assert reply.headers.get("Nats-Service-Error-Code") == code
        assert "inside" not in str(reply.headers)
        listing = await client.request("$SRV.PING.upper", b"", timeout_seconds=PATIENCE_SECONDS)
        assert b'"name": "upper"' in listing.payload


async def until_answered(ask: Callable[[], Awaitable[Message]]) -> Message:
    while True:
        try:
            return await ask()
        except Transient:
            await asyncio.sleep(0.02)


async def test_a_query_without_anybody_to_answer_is_transient(nats_server, new_bus):
    bus = new_bus(streams=())
    async with running(bus):
        with pytest.raises(Transient, match="not connected"):
            await bus.request("nobody.home", b"")
        await nats_server.start()
        await bus.wait_connected()
        with pytest.raises(Transient, match="nobody answers"):
            await bus.request("nobody.home", b"", timeout_seconds=PATIENCE_SECONDS)


PERMISSIONS = """
authorization {
  users = [
    {user: all, password: secret}
    {user: node, password: "n1", permissions: {publish: ["test.n1.>", "$JS.API.>"], subscribe: ">"}}
  ]
}
"""


async def test_a_user_may_publish_only_where_it_is_allowed(nats_server, new_bus, tmp_path, metrics):
    (tmp_path / "nats.conf").write_text(PERMISSIONS)
    await nats_server.start(options=("-c", str(tmp_path / "nats.conf")))
    async with running(new_bus(user="node", password="n1")) as bus:
        bus.publish("test.n2.x", b"forged", headers("forged"))
        bus.publish("test.n1.x", b"own", headers("own"))
        await bus.wait_published()
    nats_server.credentials = {"user": "all", "password": "secret"}
    assert [event_id for _, _, event_id in await stored(nats_server)] == ["own"]
    assert metrics.bus_dropped.labels("refused")._value.get() == 1


async def test_wrong_credentials_are_tried_again_until_the_server_knows_them(nats_server, new_bus, tmp_path):
    config = tmp_path / "nats.conf"
    config.write_text("authorization {user: all, password: other}")
    await nats_server.start(options=("-c", str(config)))
    async with running(new_bus(user="all", password="secret")) as bus:
        bus.publish("test.a", b"x", headers("x"))
        await asyncio.sleep(0.2)  # some tries are refused meanwhile
        assert not bus.connected
        await nats_server.stop()
        config.write_text("authorization {user: all, password: secret}")
        await nats_server.start(options=("-c", str(config)))
        await bus.wait_published()


async def test_tls_to_nats_with_a_client_certificate(nats_server, new_bus, new_authority, tmp_path):
    authority = new_authority("ca")
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    certificate, key = authority.issue("server", tmp_path)
    own_certificate, own_key = authority.issue("client", tmp_path)
    await nats_server.start(
        options=(
            "--tlsverify",
            "--tlscert",
            str(certificate),
            "--tlskey",
            str(key),
            "--tlscacert",
            str(tmp_path / "ca.crt"),
        )
    )
    files = {
        "tls_ca_file": str(tmp_path / "ca.crt"), "tls_cert_file": str(own_certificate), "tls_key_file": str(own_key),
        "servers": (nats_server.url.replace("nats://", "tls://"),),
    }  # fmt: skip
    async with running(new_bus(**files)) as bus:
        bus.publish("test.a", b"x", headers("x"))
        await bus.wait_published()
    with pytest.raises(Permanent, match="certificates for NATS"):
        new_bus(**(files | {"tls_cert_file": str(tmp_path / "missing")}))


async def test_a_service_answers_only_while_it_is_active(nats_server, new_bus):
    await nats_server.start()

    def named(name: bytes):
        async def answer(_message: Message) -> Reply:
            return Reply(payload=name)

        return MicroService(
            name="who", version="1.0.0", description="", endpoints=[Endpoint(name="who", subject="who", answer=answer)]
        )

    one, two, client = new_bus(streams=()), new_bus(streams=()), new_bus(streams=())
    leader, follower = one.serve(named(b"one")), two.serve(named(b"two"), active=False)
    async with running(one), running(two), running(client):
        await client.wait_connected()
        assert (await until_answered(lambda: client.request("who", b""))).payload == b"one"
        leader.deactivate()
        follower.activate()
        await until_answer_is(client, b"two")
        follower.deactivate()
        leader.activate()
        await until_answer_is(client, b"one")


async def until_answer_is(client: Bus, payload: bytes) -> None:
    # A question that arrives while the service is switched off is lost, so it is not waited for long.
    ask = partial(client.request, "who", b"", timeout_seconds=0.2)
    while (await until_answered(ask)).payload != payload:  # noqa: ASYNC110  # only asking tells
        await asyncio.sleep(0.01)


async def lose_two(bus: Bus, nats_server: NatsServer) -> None:
    """Of three messages, in an outbox that holds one; then the server comes."""
    for number in range(3):
        bus.publish("test.a", b"x", headers(f"id-{number}"))
    await nats_server.start()


async def test_an_overflow_callback_that_is_interrupted_is_called_again(nats_server, new_bus):
    calls: list[int] = []
    done = asyncio.Event()

    async def on_overflow(dropped: int) -> None:
        calls.append(dropped)
        if len(calls) < 3:
            raise Transient("the ledger is away")
        done.set()

    bus = new_bus(outbox_max_messages=1, on_overflow=on_overflow)
    async with running(bus):
        await lose_two(bus, nats_server)
        await done.wait()
    assert calls == [2, 2, 2]


async def test_an_overflow_whose_telling_the_end_of_a_connection_cut_off_is_told_over_the_next(nats_server, new_bus):
    calls: list[int] = []
    begun, done = asyncio.Event(), asyncio.Event()

    async def on_overflow(dropped: int) -> None:
        calls.append(dropped)
        begun.set()
        if len(calls) == 1:
            await asyncio.Event().wait()
        done.set()

    bus = new_bus(outbox_max_messages=1, on_overflow=on_overflow)
    async with running(bus):
        await lose_two(bus, nats_server)
        await begun.wait()
        await bus._client.close()  # as after a refusal that the library takes for final
        await done.wait()
    assert calls == [2, 2]


async def test_a_loss_that_nobody_makes_good_is_logged(nats_server, new_bus):
    with structlog.testing.capture_logs() as logs:
        bus = new_bus(outbox_max_messages=1)
        async with running(bus):
            await lose_two(bus, nats_server)
            while not any(line["event"] == "outbox-had-overflowed" for line in logs):  # noqa: ASYNC110  # a log wakes nobody
                await asyncio.sleep(0.01)
    assert [line["dropped"] for line in logs if line["event"] == "outbox-had-overflowed"] == [2]
