"""What happens by the clock: old reservations end, handshakes grow old, the book is compared with the pods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hami_chassis.clock import Clock
from hami_chassis.errors import Permanent, Transient
from hami_chassis.kube import KubeClient, NotFound
from hami_chassis.kube.resources import PODS
from hami_chassis.log import get_logger
from hami_model import kube

from hami_scheduler.adapters.informers import Informers
from hami_scheduler.bookkeeper import Bookkeeper
from hami_scheduler.config import UpkeepSettings
from hami_scheduler.core.compare import compare
from hami_scheduler.core.records import BoundPod, Reservation
from hami_scheduler.metrics import SchedulerMetrics

log = get_logger("upkeep")

_NODES_AT_ONCE = 100  # the loop answers in between


class Upkeep:
    """Root task `run`."""

    def __init__(
        self,
        client: KubeClient,
        bookkeeper: Bookkeeper,
        informers: Informers,
        *,
        settings: UpkeepSettings,
        metrics: SchedulerMetrics,
        clock: Clock,
    ) -> None:
        self._client = client
        self._bookkeeper = bookkeeper
        self._informers = informers
        self._settings = settings
        self._metrics = metrics
        self._clock = clock

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._every(self._settings.expiry_pass_seconds, self._bookkeeper.time_passed))
            group.create_task(self._compare_for_ever())
            group.create_task(self._pass_over_nodes())

    async def _every(self, seconds: float, work: Callable[[], None]) -> None:
        while True:
            await self._clock.sleep(seconds)
            work()

    async def _pass_over_nodes(self) -> None:
        while True:
            await self._clock.sleep(self._settings.node_pass_seconds)
            nodes = list(self._informers.nodes.values())
            for position, node in enumerate(nodes):
                current = self._informers.nodes.get(node.metadata.uid)
                if current is not None:
                    self._bookkeeper.node_seen(current)
                if position % _NODES_AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def _compare_for_ever(self) -> None:
        while True:
            await self._clock.sleep(self._settings.compare_seconds)
            if self._informers.pods.synced.is_set():
                for found in self.compare_now():
                    await self._look_up(found)

    def compare_now(self) -> list[BoundPod | Reservation]:
        """Compares the book with the pods that are held, and mends the book. Returns what only the server can tell."""
        drift = compare(self._bookkeeper.ledger, self._informers.pods.values())
        for pod in drift.missing:
            log.error("book-lacked-a-pod", pod=pod.key, node=pod.assigned_node)
            self._metrics.drift.labels("missing").inc()
            self._bookkeeper.pod_seen(pod)
        return drift.absent

    async def _look_up(self, found: BoundPod | Reservation) -> None:
        """A pod that is not held: the watch may be late, or the pod lived and ended between two lists."""
        try:
            pod = await self._client.get(PODS, found.name, namespace=found.namespace, into=kube.Pod)
        except NotFound:
            self._drop(found)
        except (Transient, Permanent) as error:
            log.warning("pod-not-read", pod=f"{found.namespace}/{found.name}", error=str(error))
        else:
            if pod.uid != found.uid or pod.is_finished:
                self._drop(found)

    def _drop(self, found: BoundPod | Reservation) -> None:
        log.warning("book-held-a-gone-pod", pod=f"{found.namespace}/{found.name}", node=found.node)
        self._metrics.drift.labels("surplus").inc()
        self._bookkeeper.forget(found.uid)
