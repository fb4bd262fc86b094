"""A running scheduler and the API server behind it, as the tests of cases use them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hami_scheduler.config import SchedulerSettings
from hami_sim.fake_kube import FakeKube
from scheduler_builders import ALLOCATED_KEY, Json, card, container, limits, node, pod
from scheduler_service import Scheduler, eventually, running, series, settings_for

TO_ALLOCATE_KEY = "hami.io/vgpu-devices-to-allocate"
_MARK = "mark"


def ask(memory: int | str | None, gpu: int = 1, **more: Any) -> Json:
    """Fields of a container that asks for cards."""
    return {"ask": limits(gpu, memory, more.get("cores"))}


def containers(*memories: int | None, names: str = "c") -> list[Json]:
    """One container for each entry; None asks for no card."""
    return [
        container(f"{names}{position}", **({} if memory is None else ask(memory)))
        for position, memory in enumerate(memories)
    ]


def ended(*names: str) -> Json:
    """Status fields of a pod whose init containers of these names succeeded."""
    return {"initContainerStatuses": [{"name": name, "state": {"terminated": {"exitCode": 0}}} for name in names]}


class Placing:
    """One replica, and what it writes and holds."""

    def __init__(self, fake: FakeKube, scheduler: Scheduler) -> None:
        self.fake = fake
        self.scheduler = scheduler
        self._marks = 0

    # ---- pods ----

    async def filter(self, name: str, *nodes: str, **fields: Any) -> Json:
        """Creates a pod and asks where it may go."""
        created = self.fake.put("pods", pod(name, **fields))
        return await self.scheduler.filter(created, list(nodes or ("n1",)))

    async def filter_again(self, name: str, *nodes: str, namespace: str = "default") -> Json:
        return await self.scheduler.filter(self.fake.get("pods", name, namespace), list(nodes or ("n1",)))

    async def refused(self, name: str, *nodes: str, **fields: Any) -> Json:
        """Why no node takes it, by node."""
        answer = await self.filter(name, *nodes, **fields)
        assert answer["NodeNames"] is None, answer
        return {**(answer["FailedNodes"] or {}), **(answer["FailedAndUnresolvableNodes"] or {})}

    async def bind(self, name: str, node_name: str = "n1", namespace: str = "default") -> str:
        """The error; empty when it is bound."""
        answer = await self.scheduler.bind(self.fake.get("pods", name, namespace), node_name)
        return str(answer["Error"])

    async def place(self, name: str, *nodes: str, **fields: Any) -> Json:
        """Creates, filters and binds; the pod as it stands then."""
        answer = await self.filter(name, *nodes, **fields)
        assert answer["NodeNames"] is not None, answer
        (chosen,) = answer["NodeNames"]
        namespace = fields.get("namespace", "default")
        assert await self.bind(name, chosen, namespace) == ""
        return self.fake.get("pods", name, namespace)

    def update(self, name: str, namespace: str = "default", **status: Any) -> Json:
        found = self.fake.get("pods", name, namespace)
        return self.fake.put("pods", {**found, "status": {**found["status"], **status}})

    def allocated(self, name: str) -> str:
        return str(self.fake.get("pods", name, "default")["metadata"]["annotations"][ALLOCATED_KEY])

    def held(self, name: str, allocated: str, **fields: Any) -> Json:
        """A bound pod as another program may have annotated it."""
        fields = {"node_name": "n1", "phase": "Running", **fields}
        return self.fake.put("pods", pod(name, annotations={ALLOCATED_KEY: allocated}, **fields))

    def writes_on_pods(self) -> list[tuple[str, str]]:
        return [
            (request.verb, request.resource)
            for request in self.fake.requests
            if request.verb not in ("get", "list", "watch") and request.resource.startswith("pods")
        ]

    def events(self, about: str) -> list[tuple[str, str]]:
        """(reason, message) of the Events of one object."""
        every = self.fake.all("events")
        return [(event["reason"], event["message"]) for event in every if event["involvedObject"]["name"] == about]

    # ---- what is held ----

    async def used_mib(self, card_id: str = "n1-0") -> float:
        _, text = await self.scheduler.observe("/metrics")
        return (series(text, "hami_scheduler_card_memory_allocated_bytes", card=card_id) or 0.0) / 2**20

    async def uses(self, mib: float, card_id: str = "n1-0") -> None:
        """Returns once the card has so much in use."""

        async def holds() -> bool:
            return await self.used_mib(card_id) == mib

        await eventually(holds)

    async def knows_card(self, card_id: str) -> None:
        async def holds() -> bool:
            _, text = await self.scheduler.observe("/metrics")
            return series(text, "hami_scheduler_card_memory_bytes", card=card_id) is not None

        await eventually(holds)

    async def quota_used_mib(self, namespace: str = "default") -> float:
        _, text = await self.scheduler.observe("/metrics")
        return (series(text, "hami_scheduler_quota_memory_used_bytes", namespace=namespace) or 0.0) / 2**20

    async def quota_is(self, mib: int | None, namespace: str = "default") -> None:
        """Returns once this is the limit that the scheduler knows."""

        async def holds() -> bool:
            _, text = await self.scheduler.observe("/metrics")
            found = series(text, "hami_scheduler_quota_memory_limit_bytes", namespace=namespace)
            return found == (None if mib is None else mib * 2**20)

        await eventually(holds)

    async def caught_up(self) -> None:
        """Returns once every change of pods so far was taken in: changes arrive in order, so a later one tells."""
        self._marks += 1
        self.held(_MARK, f"{_MARK},NVIDIA,{self._marks},0:;", node_name=_MARK, uid=_MARK, namespace=_MARK)
        await self.uses(self._marks, _MARK)


@asynccontextmanager
async def placing(
    fake: FakeKube, *nodes: Json, settings: SchedulerSettings | None = None, **changes: Any
) -> AsyncIterator[Placing]:
    """A replica over these nodes; by default n1 with one card of 10,000 MiB. `changes` are settings."""
    for each in nodes or (node("n1"),):
        fake.put("nodes", each)
    fake.put("nodes", node(_MARK, [card(_MARK)]))
    async with running(settings or settings_for(fake.url, **changes)) as scheduler:
        yield Placing(fake, scheduler)
