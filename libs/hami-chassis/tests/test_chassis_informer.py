"""The informer against the fake API server over real sockets: gaps, 410, restarts, repetitions, large lists."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
from hami_chassis.clock import SystemClock
from hami_chassis.kube import Informer, KubeClient, KubeSettings, ObjectMeta
from hami_chassis.kube.resources import PODS
from hami_chassis.retry import Backoff
from hami_sim.fake_kube import FakeKube

FAST = Backoff(first_seconds=0.01, limit_seconds=0.05)


class PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""


class Pod(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: PodSpec = PodSpec()


class Reduced(msgspec.Struct, frozen=True):
    name: str
    mark: str


def reduce_pod(pod: Pod) -> Reduced | None:
    """Keeps the name and one annotation; pods marked `ignored` are of no interest."""
    mark = pod.metadata.annotations.get("mark", "")
    return None if mark == "ignored" else Reduced(pod.metadata.name, mark)


class Journal:
    """What was told, as short lines, and a way to wait for it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._changed = asyncio.Event()

    def added(self, new: Reduced) -> None:
        self._note(f"+{new.name}:{new.mark}")

    def modified(self, old: Reduced, new: Reduced) -> None:
        self._note(f"{old.name}:{old.mark}>{new.mark}")

    def deleted(self, last: Reduced) -> None:
        self._note(f"-{last.name}:{last.mark}")

    async def until(self, *expected: str) -> None:
        """Waits until exactly these lines were told."""
        await self.until_count(len(expected))
        assert self.lines == list(expected)

    async def until_count(self, count: int) -> None:
        while len(self.lines) < count:
            self._changed.clear()
            await self._changed.wait()

    def _note(self, line: str) -> None:
        self.lines.append(line)
        self._changed.set()


def pod(name: str, mark: str = "", **extra: object) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ns", "annotations": {"mark": mark}} | extra,
        "spec": {},
    }


@pytest.fixture
async def fake() -> AsyncIterator[FakeKube]:
    fake = FakeKube()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def client(fake, metrics) -> AsyncIterator[KubeClient]:
    settings = KubeSettings(kubeconfig=fake.url, timeout_seconds=60.0)
    client = await KubeClient.connect(settings, metrics=metrics, clock=SystemClock())
    yield client
    await client.close()


@pytest.fixture
def journal() -> Journal:
    return Journal()


@pytest.fixture
def new_informer(client, journal, metrics) -> Callable[..., Informer[Pod, Reduced]]:
    def make(**changes) -> Informer[Pod, Reduced]:
        options = {
            "into": Pod, "project": reduce_pod, "handler": journal, "metrics": metrics, "clock": SystemClock(),
            "backoff": FAST, "page_limit": 3,
        } | changes  # fmt: skip
        return Informer(client, PODS, **options)

    return make


@asynccontextmanager
async def running(informer: Informer[Pod, Reduced]) -> AsyncIterator[Informer[Pod, Reduced]]:
    task = asyncio.create_task(informer.run())
    waiter = asyncio.create_task(informer.synced.wait())
    await asyncio.wait([task, waiter], return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    try:
        if task.done():
            task.result()
        yield informer
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()


async def test_what_is_there_comes_first_then_every_change_in_order(fake, new_informer, journal):
    for name in "abcdefg":
        fake.put("pods", pod(name, "1"))
    async with running(new_informer()) as informer:
        assert journal.lines == [f"+{name}:1" for name in "abcdefg"]
        journal.lines.clear()
        fake.put("pods", pod("a", "2"))
        fake.put("pods", pod("h", "1"))
        fake.remove("pods", "b", "ns")
        await journal.until("a:1>2", "+h:1", "-b:1")
        assert {held.name: held.mark for held in informer.values()} == {"a": "2"} | dict.fromkeys("cdefgh", "1")
        uid = fake.get("pods", "a", "ns")["metadata"]["uid"]
        assert informer.get(uid) == Reduced("a", "2")
        assert len(informer) == 7


async def test_changes_while_no_watch_is_open_are_told_once(fake, new_informer, journal):
    fake.put("pods", pod("a", "1"))
    async with running(new_informer()):
        await fake.wait_for_requests("watch", "pods")
        fake.fail("watch", "pods", 503, times=2)
        fake.drop_watches("pods")
        fake.put("pods", pod("a", "2"))
        fake.put("pods", pod("b", "1"))
        await journal.until("+a:1", "a:1>2", "+b:1")
        assert fake.count("list", "pods") == 1


async def test_a_version_that_is_gone_during_a_watch_leads_to_a_list_that_tells_what_was_missed(
    fake, new_informer, journal, metrics
):
    for name in "abc":
        fake.put("pods", pod(name, "1"))
    async with running(new_informer()):
        await fake.wait_for_requests("watch", "pods")
        fake.pause_watches("pods")
        fake.remove("pods", "a", "ns")
        fake.put("pods", pod("b", "2"))
        fake.put("pods", pod("d", "1"))
        fake.expire_watches("pods")
        await journal.until("+a:1", "+b:1", "+c:1", "-a:1", "b:1>2", "+d:1")
    assert metrics.informer_relists.labels("pods", "gone")._value.get() == 1


async def test_a_client_that_is_killed_during_a_watch_is_no_error_of_the_server(fake, caplog):
    killed = aiohttp.ClientSession()
    watching = await killed.get(f"{fake.url}/api/v1/pods?watch=true")
    assert watching.connection is not None
    watching.connection.transport.abort()
    async with asyncio.timeout(60):
        while fake.open_watches:
            fake.put("pods", pod("a", "1"))
            await asyncio.sleep(0.01)
    await killed.close()
    assert [record for record in caplog.records if record.name.startswith("aiohttp")] == []


async def test_a_version_that_is_gone_before_a_watch_leads_to_a_list(fake, new_informer, journal):
    fake.put("pods", pod("a", "1"))
    async with running(new_informer()):
        await fake.wait_for_requests("watch", "pods")
        hold = fake.hold("watch", "pods")
        fake.drop_watches("pods")
        await hold.reached.wait()
        fake.remove("pods", "a", "ns")
        fake.compact("pods")
        hold.release()
        await journal.until("+a:1", "-a:1")


async def test_a_pod_made_anew_under_its_name_in_a_gap_is_deleted_first(fake, new_informer, journal):
    fake.put("pods", pod("a", "old"))
    async with running(new_informer()) as informer:
        await fake.wait_for_requests("watch", "pods")
        fake.pause_watches("pods")
        fake.remove("pods", "a", "ns")
        fake.put("pods", pod("a", "new"))
        fake.expire_watches("pods")
        await journal.until("+a:old", "-a:old", "+a:new")
        assert [held.mark for held in informer.values()] == ["new"]


@pytest.mark.parametrize("expirations", [1, 2, 3])
async def test_a_list_whose_pages_expire_begins_again_and_tells_nothing_twice(fake, new_informer, journal, expirations):
    for name in "abcdefg":
        fake.put("pods", pod(name, "1"))
    # The second page is refused; after two refusals the list is taken in one piece.
    for number in range(expirations):
        fake.fail("list", "pods", 410, reason="Expired", nth=2 * (number + 1))
    async with running(new_informer()) as informer:
        assert sorted(journal.lines) == [f"+{name}:1" for name in "abcdefg"]
        assert len(informer) == 7
        last_list = [request for request in fake.requests if request.verb == "list"][-1]
        assert ("limit" in last_list.query) == (expirations == 1)


async def test_what_disappears_between_two_tries_of_the_first_list_is_told(fake, new_informer, journal):
    for name in "abcdefg":
        fake.put("pods", pod(name, "1"))
    hold = fake.hold("list", "pods", nth=2)
    task = asyncio.create_task(new_informer().run())
    await hold.reached.wait()
    fake.remove("pods", "a", "ns")
    fake.expire_pages("pods")
    hold.release()
    await journal.until_count(8)
    assert sorted(journal.lines) == sorted(["+a:1", "-a:1", *[f"+{name}:1" for name in "bcdefg"]])
    task.cancel()
    await asyncio.wait([task])


async def test_a_restart_of_the_server_is_survived(fake, new_informer, journal):
    fake.put("pods", pod("a", "1"))
    async with running(new_informer()):
        await fake.wait_for_requests("watch", "pods")
        await fake.stop()
        fake.put("pods", pod("a", "2"))
        fake.put("pods", pod("b", "1"))
        await fake.start()
        await journal.until("+a:1", "a:1>2", "+b:1")
        fake.put("pods", pod("c", "1"))
        await journal.until("+a:1", "a:1>2", "+b:1", "+c:1")


async def test_a_watch_that_stays_open_and_falls_silent_is_asked_anew(fake, new_informer, journal):
    fake.put("pods", pod("a"))
    async with running(new_informer(silence_seconds=0.05)):
        await journal.until("+a:")
        fake.pause_watches("pods")
        fake.put("pods", pod("b"))
        await journal.until("+a:", "+b:")


async def test_a_watch_that_is_taken_and_never_answered_is_asked_anew(fake, new_informer, journal):
    hold = fake.hold("watch", "pods")
    async with running(new_informer(silence_seconds=0.05)):
        fake.put("pods", pod("a"))
        await journal.until("+a:")
    hold.release()


async def test_a_server_that_is_away_at_start_is_waited_for(fake, new_informer, journal):
    await fake.stop()
    fake.put("pods", pod("a", "1"))
    informer = new_informer()
    task = asyncio.create_task(informer.run())
    await asyncio.sleep(0)
    await fake.start()
    await informer.synced.wait()
    assert journal.lines == ["+a:1"]
    task.cancel()
    await asyncio.wait([task])


async def test_a_server_whose_history_went_back_is_listed_anew_at_its_next_bookmark(fake, new_informer, journal):
    for name in "abc":
        fake.put("pods", pod(name, "1"))
    async with running(new_informer()):
        await fake.wait_for_requests("watch", "pods")
        await fake.stop()
        fake.lose_state()
        await fake.start()
        fake.put("pods", pod("z", "1"))
        await fake.wait_for_requests("watch", "pods", 2)
        await until_bookmark_is_heard(fake, journal, 7)
        assert sorted(journal.lines[3:]) == ["+z:1", "-a:1", "-b:1", "-c:1"]


async def until_bookmark_is_heard(fake: FakeKube, journal: Journal, lines: int) -> None:
    while len(journal.lines) < lines:
        fake.bookmark("pods")
        await asyncio.sleep(0.01)


async def test_repeated_lines_are_told_once(fake, new_informer, journal):
    fake.put("pods", pod("a", "1"))
    async with running(new_informer()):
        await fake.wait_for_requests("watch", "pods")
        fake.put("pods", pod("a", "2"))
        fake.repeat_last_event("pods")
        fake.remove("pods", "a", "ns")
        fake.repeat_last_event("pods")
        fake.put("pods", pod("b", "1"))
        await journal.until("+a:1", "a:1>2", "-a:2", "+b:1")


async def test_a_bookmark_moves_the_version_on_so_that_a_quiet_watch_does_not_expire(fake, new_informer, journal):
    fake.put("pods", pod("a", "1"))
    async with running(new_informer()) as informer:
        await fake.wait_for_requests("watch", "pods")
        before = informer.resource_version
        fake.put("nodes", {"metadata": {"name": "n"}})
        fake.compact("pods")
        fake.bookmark("pods")
        await until(lambda: informer.resource_version != before)
        fake.drop_watches("pods")
        fake.put("pods", pod("b", "1"))
        await journal.until("+a:1", "+b:1")
        assert fake.count("list", "pods") == 1


async def test_an_object_of_no_interest_is_not_held_and_one_that_becomes_so_is_deleted(fake, new_informer, journal):
    fake.put("pods", pod("a", "ignored"))
    fake.put("pods", pod("b", "1"))
    async with running(new_informer()) as informer:
        assert journal.lines == ["+b:1"]
        fake.put("pods", pod("b", "ignored"))
        fake.put("pods", pod("a", "2"))
        fake.remove("pods", "a", "ns")
        await journal.until("+b:1", "-b:1", "+a:2", "-a:2")
        assert len(informer) == 0


async def test_a_field_selector_limits_what_is_held(fake, new_informer, journal):
    fake.put("pods", pod("a", "1") | {"spec": {"nodeName": "n1"}})
    fake.put("pods", pod("b", "1") | {"spec": {"nodeName": "n2"}})
    async with running(new_informer(field_selector="spec.nodeName=n1")):
        fake.put("pods", pod("c", "1"))
        fake.put("pods", pod("c", "2") | {"spec": {"nodeName": "n1"}})
        await journal.until("+a:1", "+c:2")


BROKEN = {"name": "x", "namespace": "ns", "labels": "not a mapping"}


async def test_one_object_that_cannot_be_read_does_not_hide_the_others(fake, new_informer, journal, metrics):
    fake.put("pods", pod("a", "1"))
    fake.put("pods", pod("x", "1", spec_is="fine"))
    broken = pod("broken", "1")
    broken["spec"] = {"nodeName": 7}
    fake.put("pods", broken)
    async with running(new_informer()):
        assert sorted(journal.lines) == ["+a:1", "+x:1"]
        fake.put("pods", pod("x", "2") | {"spec": {"nodeName": 7}})  # unreadable: what was known stays
        fake.put("pods", pod("a", "2"))
        fake.remove("pods", "x", "ns")
        await journal.until_count(4)
        assert journal.lines[2:] == ["a:1>2", "-x:1"]
    assert metrics.informer_undecodable.labels("pods")._value.get() >= 2


async def test_an_unreadable_object_that_was_known_is_not_deleted_by_a_new_list(fake, new_informer, journal):
    fake.put("pods", pod("a", "1"))
    async with running(new_informer()) as informer:
        await fake.wait_for_requests("watch", "pods")
        fake.pause_watches("pods")
        fake.put("pods", pod("a", "2") | {"spec": {"nodeName": 7}})
        fake.put("pods", pod("b", "1"))
        fake.expire_watches("pods")
        await journal.until("+a:1", "+b:1")
        assert len(informer) == 2


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"this is not JSON", id="no JSON"),
        pytest.param(b'{"type":"ADDED","object":{"kind":"Pod"}', id="cut off"),
        pytest.param(b'{"type":"ADDED","object":{"metadata":[]}}', id="without metadata"),
        pytest.param(b'{"type":"ERROR","object":{"code":500,"message":"oops"}}', id="an error of the server"),
        pytest.param(b'{"type":"ERROR","object":{}}', id="an error that says nothing"),
    ],
)
async def test_a_stream_that_makes_no_sense_is_left_and_nothing_is_lost(fake, new_informer, journal, raw):
    fake.put("pods", pod("a", "1"))
    async with running(new_informer()):
        await fake.wait_for_requests("watch", "pods")
        fake.send_line("pods", raw)
        fake.put("pods", pod("b", "1"))
        await journal.until("+a:1", "+b:1")


async def test_resync_returns_after_a_list_that_began_after_it(fake, new_informer, journal, metrics):
    fake.put("pods", pod("a", "1"))
    async with running(new_informer()) as informer:
        await fake.wait_for_requests("watch", "pods")
        fake.pause_watches("pods")  # the watch is far behind
        fake.put("pods", pod("b", "1"))
        fake.remove("pods", "a", "ns")
        await asyncio.gather(informer.resync(), informer.resync())
        assert journal.lines == ["+a:1", "-a:1", "+b:1"]
        fake.resume_watches("pods")
        fake.put("pods", pod("c", "1"))
        await journal.until("+a:1", "-a:1", "+b:1", "+c:1")
    assert metrics.informer_relists.labels("pods", "resync")._value.get() == 1


async def test_resync_waits_through_failures(fake, new_informer, journal):
    fake.put("pods", pod("a", "1"))
    async with running(new_informer()) as informer:
        fake.fail("list", "pods", 503, times=3)
        fake.put("pods", pod("b", "1"))
        await informer.resync()
        assert sorted(journal.lines) == ["+a:1", "+b:1"]


async def test_a_defect_in_the_handler_ends_the_informer(fake, new_informer):
    class Defective:
        def added(self, _new):
            raise KeyError("defect")

    fake.put("pods", pod("a", "1"))
    with pytest.raises(KeyError, match="defect"):
        await new_informer(handler=Defective()).run()


async def test_a_large_list_is_delivered_page_by_page(fake, new_informer, journal):
    for number in range(5000):
        fake.put("pods", pod(f"p{number:05}", "1"))
    hold = fake.hold("list", "pods", nth=2)
    task = asyncio.create_task(new_informer(page_limit=500).run())
    await hold.reached.wait()
    assert len(journal.lines) == 500  # before the second page has come
    hold.release()
    await journal.until_count(5000)
    assert journal.lines == [f"+p{number:05}:1" for number in range(5000)]
    assert fake.count("list", "pods") == 10
    task.cancel()
    await asyncio.wait([task])


async def test_any_sequence_of_changes_and_disturbances_ends_in_the_truth(fake, new_informer, journal):
    """A long, fixed mixture: after it the informer holds exactly what the server holds."""
    disturb = itertools.cycle(
        [
            lambda: None,
            lambda: fake.drop_watches("pods"),
            lambda: fake.expire_watches("pods"),
            lambda: fake.repeat_last_event("pods"),
            lambda: fake.compact("pods"),
            lambda: fake.fail("list", "pods", 410, reason="Expired", nth=2),
            lambda: fake.cut("watch", "pods", after_effect=False),
            lambda: fake.fail("watch", "pods", 500),
        ]
    )
    async with running(new_informer()) as informer:
        for step in range(400):
            name = f"p{(step * 7) % 23}"
            if step % 5 == 4 and any(held["metadata"]["name"] == name for held in fake.all("pods")):
                fake.remove("pods", name, "ns")
            else:
                fake.put("pods", pod(name, str(step)))
            if step % 3 == 0:
                next(disturb)()
            await asyncio.sleep(0.001 if step % 10 == 0 else 0)
        fake.clear_faults()
        fake.put("pods", pod("end", "end"))
        await until(lambda: "+end:end" in journal.lines)
        truth = {held["metadata"]["name"]: held["metadata"]["annotations"]["mark"] for held in fake.all("pods")}
        assert {held.name: held.mark for held in informer.values()} == truth
        assert replay(journal.lines) == truth


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  # the informer announces changes to its handler only
        await asyncio.sleep(0.005)


def replay(lines: list[str]) -> dict[str, str]:
    """What a handler that follows every line would hold; fails on an impossible step."""
    state: dict[str, str] = {}
    for line in lines:
        if line.startswith("+"):
            name, mark = line[1:].split(":")
            assert name not in state
            state[name] = mark
        elif line.startswith("-"):
            del state[line[1:].split(":")[0]]
        else:
            name, change = line.split(":")
            old, new = change.split(">")
            assert state[name] == old
            state[name] = new
    return state
