"""Pods wait here to be admitted one after another, the oldest first."""

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from itertools import count

from hami_sim.kubelet.admission import Refusal
from hami_sim.kubelet.objects import Pod

_Answer = asyncio.Future[Refusal | None]


class AdmissionQueue:
    """`admit` may be called by many; `run` works."""

    def __init__(self, admit_now: Callable[[Pod], Awaitable[Refusal | None]]) -> None:
        self._admit_now = admit_now
        self._waiting: list[tuple[str, int, Pod, _Answer]] = []
        self._arrivals = count()
        self._something = asyncio.Event()

    async def admit(self, pod: Pod) -> Refusal | None:
        """Returns when it was this pod's turn."""
        answer: _Answer = asyncio.get_running_loop().create_future()
        created = pod.metadata.creation_timestamp or ""
        heapq.heappush(self._waiting, (created, next(self._arrivals), pod, answer))
        self._something.set()
        return await answer

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._something.wait()
            while self._waiting:
                _, _, pod, answer = heapq.heappop(self._waiting)
                if answer.cancelled():
                    continue
                refusal = await self._admit_now(pod)
                if not answer.cancelled():
                    answer.set_result(refusal)
            self._something.clear()
