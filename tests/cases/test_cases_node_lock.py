"""Cases of the area nodelock, at the scheduler. What the node agent does with the lock: test_cases_lock_handoff."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import structlog
from case_placing import Placing, placing
from hami_model import go_time, keys
from hami_sim.fake_kube import FakeKube
from hami_sim.fake_kube.faults import EVERY
from scheduler_builders import node
from scheduler_service import eventually, settings_for

ALLOCATING = {keys.BIND_PHASE: keys.BIND_PHASE_ALLOCATING}


@asynccontextmanager
async def locking(fake: FakeKube, *names: str, wait_seconds: float = 0.0) -> AsyncIterator[Placing]:
    """A replica over nodes whose hand-off is `lock`. Without a wait, what succeeds did so at the first look."""
    settings = settings_for(fake.url)
    settings = msgspec.structs.replace(
        settings, bind=msgspec.structs.replace(settings.bind, lock_wait_seconds=wait_seconds)
    )
    nodes = [node(name, handoff="lock") for name in names or ("n1",)]
    async with placing(fake, *nodes, settings=settings) as placed:
        for stamped in fake.all("nodes"):  # the stamp is one more write on the node; it is out of the way then
            name = stamped["metadata"]["name"]
            await eventually(lambda name=name: "hami.io/node-handshake" in _annotations(fake, name))
        yield placed


def _annotations(fake: FakeKube, name: str) -> dict[str, str]:
    found: dict[str, str] = fake.get("nodes", name)["metadata"]["annotations"]
    return found


def lock_of(fake: FakeKube, name: str = "n1") -> str | None:
    return _annotations(fake, name).get(keys.NODE_LOCK)


def set_lock(fake: FakeKube, value: str, name: str = "n1") -> None:
    found = copy.deepcopy(fake.get("nodes", name))
    found["metadata"]["annotations"][keys.NODE_LOCK] = value
    fake.put("nodes", found)


def at(**ago: float) -> str:
    return go_time.format_rfc3339(datetime.now(tz=UTC) - timedelta(**ago))


# ---- who gets the lock -------------------------------------------------------------------------------------------


@pytest.mark.case("LCK-01")
async def test_an_expired_lock_is_not_taken_from_an_owner_that_waits(fake_kube: FakeKube) -> None:
    """That each container then gets its own limits: test_cases_lock_handoff."""
    async with locking(fake_kube) as placed:
        await placed.place("a", memory=1000)
        set_lock(fake_kube, f"{at(minutes=6)},default,a")
        await placed.filter("b", memory=3000)
        assert "node lock contention" in await placed.bind("b")
        assert str(lock_of(fake_kube)).endswith(",default,a")


@pytest.mark.case("LCK-01")
@pytest.mark.parametrize("end", ["gone", "Succeeded", "Running", "failed"])
async def test_a_bind_that_waits_for_the_lock_goes_on_when_its_owner_no_longer_does(
    fake_kube: FakeKube, end: str
) -> None:
    async with locking(fake_kube, wait_seconds=120.0) as placed:
        owner = await placed.place("a", memory=1000)
        set_lock(fake_kube, f"{at(minutes=6)},default,a")
        await placed.filter("b", memory=3000)
        seen = fake_kube.count("get", "pods")
        waiting = asyncio.create_task(placed.bind("b"))
        await fake_kube.wait_for_requests("get", "pods", seen + 1)
        if end == "gone":
            fake_kube.remove("pods", "a", "default")
        elif end == "failed":
            annotations = {**owner["metadata"]["annotations"], keys.BIND_PHASE: keys.BIND_PHASE_FAILED}
            fake_kube.put("pods", {**owner, "metadata": {**owner["metadata"], "annotations": annotations}})
        else:
            placed.update("a", phase=end)
        assert await waiting == ""
        assert str(lock_of(fake_kube)).endswith(",default,b")


@pytest.mark.case("LCK-02")
@pytest.mark.parametrize(
    "owner",
    [
        pytest.param({"phase": "Failed"}, id="failed"),
        pytest.param({"phase": "Succeeded"}, id="succeeded"),
        pytest.param({"phase": "Pending", "node_name": "n2"}, id="on another node"),
    ],
)
async def test_the_lock_of_an_owner_that_ended_or_is_elsewhere_is_taken_at_once(
    fake_kube: FakeKube, owner: dict[str, str]
) -> None:
    async with locking(fake_kube) as placed:
        placed.held("h", ";", **owner)
        set_lock(fake_kube, f"{at(seconds=10)},default,h")
        await placed.place("a")
        assert str(lock_of(fake_kube)).endswith(",default,a")


@pytest.mark.case("LCK-03")
async def test_the_lock_of_an_owner_that_is_gone_is_taken_at_once(fake_kube: FakeKube) -> None:
    async with locking(fake_kube) as placed:
        set_lock(fake_kube, f"{at(seconds=1)},default,gone")
        await placed.place("a")
        assert str(lock_of(fake_kube)).endswith(",default,a")


@pytest.mark.case("LCK-04")
@pytest.mark.parametrize("owner", ["abc-123", "my-abc", "abc.abc"])
async def test_a_pod_does_not_free_the_lock_of_a_pod_of_a_similar_name(fake_kube: FakeKube, owner: str) -> None:
    async with locking(fake_kube) as placed:
        await placed.place(owner)
        held = lock_of(fake_kube)
        assert str(held).endswith(f",default,{owner}")
        await placed.filter("abc")
        assert "contention" in await placed.bind("abc")
        assert lock_of(fake_kube) == held


async def test_a_node_that_is_another_at_every_try_is_given_up_in_time(fake_kube: FakeKube) -> None:
    async with locking(fake_kube) as placed:
        await placed.filter("a")
        fake_kube.fail("patch", "nodes", 409, reason="Conflict", times=EVERY)
        assert "changed at every try" in await placed.bind("a")
        fake_kube.clear_faults()
        assert lock_of(fake_kube) is None


async def test_a_race_for_a_node_is_run_again_at_once(fake_kube: FakeKube) -> None:
    async with locking(fake_kube) as placed:
        await placed.filter("a")
        fake_kube.fail("patch", "nodes", 409, reason="Conflict", times=3)
        assert await placed.bind("a") == ""
        assert str(lock_of(fake_kube)).endswith(",default,a")


@pytest.mark.case("LCK-05")
@pytest.mark.parametrize("failure", ["the lock is held", "the Binding is refused"])
async def test_a_bind_that_fails_leaves_the_lock_of_another(fake_kube: FakeKube, failure: str) -> None:
    async with locking(fake_kube) as placed:
        await placed.filter("b")
        if failure == "the lock is held":
            await placed.place("a")
            held = lock_of(fake_kube)
            assert await placed.bind("b") != ""
        else:
            placed.held("a", ";", phase="Pending")
            hold = fake_kube.hold("create", "pods/binding")
            fake_kube.fail("create", "pods/binding", 403)
            binding = asyncio.create_task(placed.bind("b"))
            await hold.reached.wait()
            held = f"{at(seconds=0)},default,a"  # somebody took it over while the bind was under way
            set_lock(fake_kube, held)
            hold.release()
            assert await binding != ""
        await eventually(lambda: _unlocks_done(placed))
        assert lock_of(fake_kube) == held


async def _unlocks_done(placed: Placing) -> bool:
    return await placed.scheduler.metric("hami_scheduler_chores_waiting") == 0


@pytest.mark.case("LCK-07")
async def test_a_pod_that_holds_the_lock_already_is_bound_and_keeps_it(fake_kube: FakeKube) -> None:
    async with locking(fake_kube) as placed:
        held = at(seconds=60)
        set_lock(fake_kube, f"{held},default,me")
        await placed.place("me")
        since, _, owner = str(lock_of(fake_kube)).partition(",")
        assert owner == "default,me"
        assert since > held, "it is written anew: what gives back the lock of an earlier bind leaves this one alone"


@pytest.mark.case("LCK-08")
@pytest.mark.parametrize(
    ("written", "said"),
    [
        pytest.param(lambda: "", "warning", id="empty"),
        pytest.param(lambda: "not-a-time", "warning", id="no time"),
        pytest.param(lambda: "xx,default,p", "warning", id="no time, but an owner"),
        pytest.param(lambda: f"{at()},default", "warning", id="two parts"),
        pytest.param(lambda: at(minutes=4), None, id="only a time, young"),
        pytest.param(lambda: at(minutes=6), "info", id="only a time, expired"),
        pytest.param(lambda: at(minutes=-4), None, id="only a time, a little in the future"),
        pytest.param(lambda: at(minutes=-6), "warning", id="only a time, far in the future"),
    ],
)
async def test_a_lock_that_nobody_can_be_read_from_is_replaced(
    fake_kube: FakeKube, written: Callable[[], str], said: str | None
) -> None:
    value = written()
    async with locking(fake_kube) as placed:
        placed.held("p", ";", phase="Pending")
        set_lock(fake_kube, value)
        await placed.filter("a")
        with structlog.testing.capture_logs() as lines:
            error = await placed.bind("a")
        if said is None:
            assert "contention" in error
            assert lock_of(fake_kube) == value
            return
        assert error == ""
        assert str(lock_of(fake_kube)).endswith(",default,a")
        taken_over = [line for line in lines if line["event"] == "lock-taken-over"]
        assert [(line["log_level"], line["previous"]) for line in taken_over] == [(said, value)]


# ---- nodes do not wait for each other ----------------------------------------------------------------------------


@pytest.mark.case("LCK-09")
@pytest.mark.parametrize(
    ("verb", "resource"), [pytest.param("patch", "nodes", id="lock"), pytest.param("create", "pods/binding", id="bind")]
)
async def test_binds_on_other_nodes_go_on_while_one_is_under_way(fake_kube: FakeKube, verb: str, resource: str) -> None:
    async with locking(fake_kube, "n1", "n2") as placed:
        for name, where in (("a", "n1"), ("b", "n2"), ("c", "n2")):
            await placed.filter(name, where)
        hold = fake_kube.hold(verb, resource)
        first = asyncio.create_task(placed.bind("a", "n1"))
        await hold.reached.wait()
        assert await placed.bind("b", "n2") == ""
        assert not first.done()
        hold.release()
        assert await first == ""


@pytest.mark.case("LCK-09")
async def test_binds_on_one_late_binding_node_do_not_wait_for_each_other_either(fake_kube: FakeKube) -> None:
    async with placing(fake_kube) as placed:
        names = [f"p{number}" for number in range(8)]
        for name in names:
            await placed.filter(name, memory=100)
        holds = [fake_kube.hold("create", "pods/binding", nth=number + 1) for number in range(len(names))]
        binds: list[asyncio.Task[Any]] = [asyncio.create_task(placed.bind(name)) for name in names]
        for hold in holds:
            await hold.reached.wait()
        assert not any(bind.done() for bind in binds)
        for hold in holds:
            hold.release()
        assert await asyncio.gather(*binds) == [""] * len(names)
