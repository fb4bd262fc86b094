"""The whole service over an imitated API server, with random faults: no card is ever promised beyond its size, and when
things have calmed down the book is what the server says."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from hami_model import allocations
from hami_sim.fake_kube import FakeKube

sys.path.insert(0, str(Path(__file__).parents[2] / "services" / "scheduler" / "tests"))

from scheduler_builders import ALLOCATED_KEY, Json, container, limits, node, pod
from scheduler_service import Scheduler, eventually, running, series, settings_for

NODES = ["n1", "n2"]
CARD_MIB = 10_000
STEPS = 60


@pytest.fixture
async def fake_kube() -> AsyncIterator[FakeKube]:
    fake = FakeKube()
    await fake.start()
    fake.put("nodes", node("n1", 2))
    fake.put("nodes", node("n2", 1, handoff="lock"))
    yield fake
    await fake.stop()


def promised(fake: FakeKube) -> Counter[str]:
    """MiB by card of live bound pods (none has init containers), as the server holds them."""
    found: Counter[str] = Counter()
    for each in fake.all("pods"):
        if each["spec"].get("nodeName") and each["status"].get("phase") not in ("Succeeded", "Failed"):
            for slot in allocations.decode(each["metadata"]["annotations"][ALLOCATED_KEY]):
                for held in slot:
                    found[held.card_id] += held.memory_mib
    return found


class History:
    """One random history."""

    def __init__(self, fake: FakeKube, seed: int, stack: AsyncExitStack) -> None:
        self.fake = fake
        self.choose = random.Random(seed)  # noqa: S311  # to be repeated
        self.stack = stack
        self.serial = 0
        self.placed: dict[str, str] = {}

    async def start(self) -> None:
        self.scheduler: Scheduler = await self.stack.enter_async_context(running(settings_for(self.fake.url)))

    def any_pod(self) -> Json | None:
        found = [each for each in self.fake.all("pods") if not each["spec"].get("nodeName")]
        return self.choose.choice(found) if found else None

    async def create(self) -> None:
        self.serial += 1
        ask = limits(self.choose.choice([1, 1, 2]), self.choose.choice([1000, 4000, 6000, 10_000]))
        plain = [container("plain")] if self.choose.random() < 0.5 else []
        self.fake.put("pods", pod(f"p{self.serial}", containers=[*plain, container("main", ask=ask)]))

    async def filter(self) -> None:
        chosen = self.any_pod()
        if chosen is not None:
            answer = await self.scheduler.filter(chosen, self.choose.choice([NODES, ["n1"], ["n2"]]))
            if answer["NodeNames"]:
                self.placed[chosen["metadata"]["name"]] = answer["NodeNames"][0]

    async def bind(self) -> None:
        chosen = self.any_pod()
        if chosen is not None:
            where = self.placed.get(chosen["metadata"]["name"], self.choose.choice(NODES))
            await self.scheduler.bind(chosen, where)

    async def faulty_bind(self) -> None:
        fault = self.choose.choice([403, 404, 409, 422, 429, 500, 503, "cut-before", "cut-after", "blind"])
        if isinstance(fault, int):
            self.fake.fail("create", "pods/binding", fault)
        else:
            self.fake.cut("create", "pods/binding", after_effect=fault != "cut-before")
        if fault == "blind":
            self.fake.fail("get", "pods", 503, times=3)
        await self.bind()
        self.fake.clear_faults()

    async def free_lock(self) -> None:
        """As the node agent does once the pod has its cards."""
        found = self.fake.get("nodes", "n2")
        if found["metadata"]["annotations"].pop("hami.io/mutex.lock", None):
            self.fake.put("nodes", found)

    async def delete(self) -> None:
        found = self.fake.all("pods")
        if found:
            self.fake.remove("pods", self.choose.choice(found)["metadata"]["name"], "default")

    async def end(self) -> None:
        found = [each for each in self.fake.all("pods") if each["spec"].get("nodeName")]
        if found:
            chosen = self.choose.choice(found)
            chosen["status"]["phase"] = self.choose.choice(["Succeeded", "Failed"])
            self.fake.put("pods", chosen)

    async def give_up(self) -> None:
        chosen = self.any_pod()
        if chosen is not None:
            self.serial += 1
            chosen["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": str(self.serial)}]
            self.fake.put("pods", chosen)

    async def disturb_watches(self) -> None:
        self.choose.choice([self.fake.drop_watches, self.fake.expire_watches, self.fake.compact])("pods")

    async def restart(self) -> None:
        await self.scheduler.stop()
        await self.start()

    async def run(self) -> None:
        await self.start()
        steps = [self.create, self.create, self.filter, self.filter, self.filter, self.bind, self.bind, self.bind]
        steps += [self.faulty_bind, self.free_lock, self.delete, self.end, self.give_up, self.disturb_watches]
        for number in range(STEPS):
            step = self.restart if number == STEPS // 2 else self.choose.choice(steps)
            await self.free_lock()
            await step()
            over = {card: mib for card, mib in promised(self.fake).items() if mib > CARD_MIB}
            assert not over, f"after {step.__name__}"

    async def is_calm(self) -> bool:
        _, text = await self.scheduler.observe("/metrics")
        cards = ["n1-0", "n1-1", "n2-0"]
        book = {
            card: (series(text, "hami_scheduler_card_memory_allocated_bytes", card=card) or 0) / 2**20 for card in cards
        }
        truth = promised(self.fake)
        return book == {card: truth[card] for card in cards} and series(text, "hami_scheduler_reservations") == 0


@pytest.mark.parametrize("seed", range(4))
async def test_a_random_history(fake_kube: FakeKube, seed: int) -> None:
    async with AsyncExitStack() as stack:
        history = History(fake_kube, seed, stack)
        await history.run()
        for each in fake_kube.all("pods"):
            if not each["spec"].get("nodeName"):
                fake_kube.remove("pods", each["metadata"]["name"], "default")
        await eventually(history.is_calm)

        def no_lock_is_a_stranger_s() -> bool:
            lock = fake_kube.get("nodes", "n2")["metadata"]["annotations"].get("hami.io/mutex.lock", "")
            owners = {one["metadata"]["name"] for one in fake_kube.all("pods") if one["spec"].get("nodeName") == "n2"}
            return not lock or lock.rpartition(",")[2] in owners

        await eventually(no_lock_is_a_stranger_s)  # it goes after the answer to a bind that failed
