"""Faults on demand: refusals, cut connections, delays and holds, for the nth request of a kind."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Literal

from hami_sim.fake_kube.refusals import Refusal

EVERY = 10**9


@dataclass(frozen=True)
class Request:
    """One request as the fake understood it. `resource` is `pods`, `pods/binding`, `pods/status` ..."""

    verb: str
    resource: str
    namespace: str
    name: str
    query: dict[str, str]
    body: Any


class Hold:
    """A request that stands still until it is released; for races that must be exactly so."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        """Set when a request has arrived at the hold."""
        self._released = asyncio.Event()

    def release(self) -> None:
        """Lets it go on."""
        self._released.set()

    async def wait(self) -> None:
        self.reached.set()
        await self._released.wait()


@dataclass
class Fault:
    """Applies to the requests number `nth` to `nth + times - 1` of that verb and resource, counted from its making."""

    verb: str
    resource: str
    nth: int = 1
    times: int = 1
    refusal: Refusal | None = None
    cut: Literal["before", "after"] | None = None
    delay_seconds: float = 0.0
    hold: Hold | None = None
    seen: int = field(default=0, init=False)

    def matches(self, verb: str, resource: str) -> bool:
        """Counts the request, and says whether it is one of those."""
        if self.verb not in {verb, "*"} or self.resource not in {resource, "*"}:
            return False
        self.seen += 1
        return self.nth <= self.seen < self.nth + self.times


class Faults:
    """All faults in force."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> None:
        self._faults.append(fault)

    def clear(self) -> None:
        self._faults.clear()

    def for_request(self, verb: str, resource: str) -> list[Fault]:
        """The faults that this request meets."""
        return [fault for fault in self._faults if fault.matches(verb, resource)]
