"""Leader election: two candidates, loss, a server that is away, release, and until when a lease certainly holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from hami_chassis.clock import SystemClock
from hami_chassis.kube import KubeClient, KubeSettings, LeaderElector, LeaderSettings
from hami_chassis.kube.leader import Leadership
from hami_sim.fake_kube import FakeKube
from hami_sim.manual_clock import ManualClock

SETTINGS = LeaderSettings(namespace="ns", name="lease", lease_seconds=15, renew_seconds=10, retry_seconds=2)


@pytest.fixture
async def fake() -> AsyncIterator[FakeKube]:
    fake = FakeKube()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def client(fake, metrics) -> AsyncIterator[KubeClient]:
    client = await KubeClient.connect(
        KubeSettings(kubeconfig=fake.url, timeout_seconds=60.0), metrics=metrics, clock=SystemClock()
    )
    yield client
    await client.close()


class Candidate:
    """An elector with a clock of its own, and what it told."""

    def __init__(self, client, metrics, identity: str, clock: ManualClock) -> None:
        self.clock = clock
        self.told: list[Leadership | str] = []
        self.elector = LeaderElector(
            client,
            SETTINGS,
            identity=identity,
            metrics=metrics,
            clock=clock,
            on_started=self.told.append,
            on_stopped=lambda: self.told.append("stopped"),
            random_unit=lambda: 0.5,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[LeaderElector]:
        task = asyncio.create_task(self.elector.run())
        await self.rest()
        try:
            yield self.elector
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def rest(self) -> None:
        """Until the elector sleeps again."""
        await self.clock.wait_for_sleepers()

    async def pass_time(self, seconds: float) -> None:
        """Lets time pass in steps of a second, with the rounds that fall into it."""
        for _ in range(round(seconds)):
            self.clock.advance(1.0)
            await asyncio.sleep(0)
            await self.rest()


@pytest.fixture
def new_candidate(client, metrics) -> Callable[..., Candidate]:
    def make(identity: str, clock: ManualClock | None = None) -> Candidate:
        return Candidate(client, metrics, identity, clock if clock is not None else ManualClock())

    return make


def holder(fake: FakeKube) -> str:
    return fake.get("leases", "lease", "ns")["spec"]["holderIdentity"]


async def test_the_first_one_leads_and_knows_until_when(fake, new_candidate):
    one = new_candidate("one")
    assert not one.elector.is_leader
    assert one.elector.remaining_seconds() == 0
    async with one.running() as elector:
        assert elector.is_leader
        assert one.told == [Leadership(previous_holder="", was_released=True)]
        assert elector.valid_until == 10.0
        assert holder(fake) == "one"
        await one.pass_time(4)
        assert elector.valid_until == 14.0  # renewed after 2 and 4 seconds
        assert elector.remaining_seconds() == 10.0


async def test_a_second_candidate_waits_until_the_lease_was_not_renewed_for_its_whole_duration(fake, new_candidate):
    one, two = new_candidate("one"), new_candidate("two")
    async with one.running(), two.running() as second:
        assert second.holder == "one"
        for _ in range(20):
            await one.pass_time(1)
            await two.pass_time(1)
        assert not second.is_leader
        # The first one hangs: its clock stands still for the others. The second sees no renewal from now on.
        await two.pass_time(14)
        assert not second.is_leader
        await two.pass_time(4)
        assert second.is_leader
        assert two.told == [Leadership(previous_holder="one", was_released=False)]
        assert fake.get("leases", "lease", "ns")["spec"]["leaseTransitions"] == 1
        # The first one comes to: what it believed has run out before it looks, and then it sees the other.
        one.clock.advance(18)
        assert not one.elector.is_leader
        assert one.elector.remaining_seconds() == 0
        await asyncio.sleep(0)
        await one.rest()
        assert one.told[-1] == "stopped"
        await one.pass_time(3)
        assert one.elector.holder == "two"


async def test_two_leaders_never_at_once_when_the_server_is_away_for_one(fake, new_candidate):
    one = new_candidate("one")
    async with one.running() as elector:
        fake.fail("update", "leases", 503, times=10**6)
        fake.fail("get", "leases", 503, times=10**6)
        await one.pass_time(9)
        assert elector.is_leader
        await one.pass_time(1)
        assert not elector.is_leader
        assert one.told[-1] == "stopped"
        fake.clear_faults()
        await one.pass_time(2)
        assert elector.is_leader


async def test_a_renewal_whose_answer_was_lost_is_read_anew(fake, new_candidate):
    one = new_candidate("one")
    async with one.running() as elector:
        fake.cut("update", "leases", after_effect=True)
        await one.pass_time(2)
        assert elector.valid_until == 10.0  # not proved
        await one.pass_time(2)
        assert elector.valid_until == 14.0
        assert one.told == [Leadership(previous_holder="", was_released=True)]


async def test_validity_counts_from_before_the_request(fake, new_candidate):
    one = new_candidate("one")
    async with one.running() as elector:
        hold = fake.hold("update", "leases")
        one.clock.advance(2.0)
        await hold.reached.wait()
        one.clock.advance(3.0)
        hold.release()
        await one.rest()
        assert elector.valid_until == 12.0


async def test_a_stopping_leader_tells_it_first_and_gives_the_lease_back(fake, new_candidate):
    one, two = new_candidate("one"), new_candidate("two")
    async with one.running():
        hold = fake.hold("update", "leases")
        async with two.running():
            pass
        assert two.told == []
        told_before_release: list[object] = []

        async def look() -> None:
            await hold.reached.wait()
            told_before_release.extend(one.told)
            hold.release()

        watcher = asyncio.create_task(look())
    await watcher
    assert told_before_release[-1] == "stopped"
    assert holder(fake) == ""
    async with two.running() as second:
        assert second.is_leader
        assert two.told == [Leadership(previous_holder="", was_released=True)]


async def test_a_lease_of_the_same_name_taken_by_force_is_respected(fake, new_candidate):
    one = new_candidate("one")
    async with one.running() as elector:
        lease = fake.get("leases", "lease", "ns")
        fake.put("leases", lease | {"spec": lease["spec"] | {"holderIdentity": "intruder"}})
        await one.pass_time(4)  # the renewal conflicts, then the lease is read
        assert not elector.is_leader
        assert elector.holder == "intruder"


async def test_two_candidates_that_create_at_once_leave_one_leader(fake, new_candidate):
    one, two = new_candidate("one"), new_candidate("two")
    hold_one, hold_two = fake.hold("create", "leases"), fake.hold("create", "leases", nth=2)
    async with one_by_one(one, two, hold_one, hold_two):
        leaders = [candidate for candidate in (one, two) if candidate.elector.is_leader]
        assert len(leaders) == 1
        assert holder(fake) == ("one" if leaders[0] is one else "two")


@asynccontextmanager
async def one_by_one(one, two, *holds) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(candidate.elector.run()) for candidate in (one, two)]
    for hold in holds:
        await hold.reached.wait()
    for hold in holds:
        hold.release()
    await asyncio.gather(one.rest(), two.rest())
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_a_lease_deleted_under_the_leader_is_made_again(fake, new_candidate):
    one = new_candidate("one")
    async with one.running() as elector:
        fake.remove("leases", "lease", "ns")
        await one.pass_time(6)
        assert elector.is_leader
        assert holder(fake) == "one"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"lease_seconds": 0.5}, "lease_seconds"),
        ({"lease_seconds": 15.5}, "lease_seconds"),
        ({"renew_seconds": 15.0}, "renew_seconds"),
        ({"renew_seconds": 2.0}, "renew_seconds"),
    ],
)
def test_durations_that_do_not_fit_together_are_faults(changes, field):
    settings = LeaderSettings(namespace="ns", name="lease", **changes)
    assert field in {name for name, _ in settings.faults()}


@pytest.mark.parametrize("answered", ["too late", "never"])
async def test_a_leader_that_stops_gives_back_what_a_renewal_without_an_answer_had_written(
    fake, new_candidate, answered: str
):
    one = new_candidate("one")
    async with one.running():
        if answered == "never":
            fake.cut("update", "leases", after_effect=True)
            await one.pass_time(2)
        else:  # the renewal is under way when the leader stops, and is written
            lease = fake.get("leases", "lease", "ns")
            fake.hold("update", "leases")
            one.clock.advance(2.0)
            await fake.wait_for_requests("update", "leases", 1)
            fake.put("leases", lease)
        assert holder(fake) == "one"
    assert holder(fake) == ""
