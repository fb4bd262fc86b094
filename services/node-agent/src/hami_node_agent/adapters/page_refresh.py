"""After a start of the agent: limits pages of running containers say what this agent's settings say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from hami_chassis.clock import Clock
from hami_chassis.errors import Transient
from hami_chassis.log import get_logger
from hami_model import kube

log = get_logger("page-refresh")

_AGAIN_SECONDS: Final = 5.0
"""A container can keep its page from being opened for up to 45 s, and others must not wait for that."""


class PageRefresh:
    """Root task `run`. Pods that the watch shows for the first time are looked at once, and again while that fails."""

    def __init__(self, refresh: Callable[[kube.Pod], Awaitable[None]], clock: Clock) -> None:
        self._refresh = refresh
        self._clock = clock
        self._waiting: dict[str, kube.Pod] = {}
        self._work = asyncio.Event()

    def pod_added(self, pod: kube.Pod) -> None:
        self._waiting[pod.uid] = pod
        self._work.set()

    def pod_gone(self, pod: kube.Pod) -> None:
        self._waiting.pop(pod.uid, None)

    async def run(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            for pod in tuple(self._waiting.values()):
                if pod.uid not in self._waiting:
                    continue
                try:
                    await self._refresh(pod)
                except Transient as error:
                    log.info("limits-page-not-refreshed-yet", pod=pod.key, pod_uid=pod.uid, reason=str(error))
                else:
                    self._waiting.pop(pod.uid, None)
            if self._waiting:
                await self._clock.sleep(_AGAIN_SECONDS)
                self._work.set()
