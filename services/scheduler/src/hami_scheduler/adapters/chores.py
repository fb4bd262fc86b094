"""Writes to the API server that nobody waits for: stale annotations, labels, handshakes, wakes, roles.

A chore is named by what it changes: asking for it again while it waits changes nothing. It is tried again while the
server is away, dropped when it has become moot (the object is gone or has changed), and forgotten with the leadership.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from hami_chassis.clock import Clock
from hami_chassis.errors import Permanent, Transient
from hami_chassis.kube import Conflict, KubeClient, NotFound
from hami_chassis.kube.objects import MetadataOnly
from hami_chassis.kube.resources import NODES, PODS
from hami_chassis.log import get_logger
from hami_chassis.retry import DEFAULT_BACKOFF
from hami_model import keys, kube
from hami_model.device_config import DeviceConfig
from hami_model.ids import AllocationId

from hami_scheduler.core import holdings
from hami_scheduler.metrics import SchedulerMetrics

log = get_logger("chores")

_WORKERS = 8
_TRIES = 8

Work = Callable[[], Awaitable[None]]


class _Chore(msgspec.Struct, frozen=True, kw_only=True):
    work: Work
    even_when_following: bool
    lasting: bool
    """It is never given up while this process leads: a role that is missing may be there in a moment."""


class ChoreList:
    """Root task `run`. Everything else returns at once."""

    def __init__(
        self,
        client: KubeClient,
        config: DeviceConfig,
        *,
        metrics: SchedulerMetrics,
        clock: Clock,
        is_leading: Callable[[], bool],
    ) -> None:
        self._client = client
        self._config = config
        self._metrics = metrics
        self._clock = clock
        self._is_leading = is_leading
        self._waiting: dict[tuple[str, str], _Chore] = {}
        self._busy: set[tuple[str, str]] = set()
        self._changed = asyncio.Event()

    # ---- what can be asked for ---------------------------------------------------------------------------------

    def strip_allocation(self, pod: kube.Pod) -> None:
        """Removes the allocation from an unbound pod, in the version that was seen."""
        self.add("strip", pod.uid, lambda: self._strip(pod))

    def withdraw_allocation(self, pod: kube.Pod, allocation_id: AllocationId) -> None:
        """Removes that allocation from the pod if it stands there: by the time that this is done the pod may carry
        another one, or be bound."""

        async def withdraw() -> None:
            found = await self._client.get(PODS, pod.metadata.name, namespace=pod.metadata.namespace, into=kube.Pod)
            if (found.uid, holdings.allocation_id_of(found)) != (pod.uid, allocation_id) or found.assigned_node:
                return
            try:
                await self._strip(found)
            except Conflict as error:
                raise Transient(f"pod {pod.key} changed while its allocation was removed: {error}") from error

        self.add("withdraw", pod.uid, withdraw)

    def label_bound(self, pod: kube.Pod) -> None:
        """Labels a pod whose Binding carried the label to a server that drops it. Nothing where it stands."""
        node = pod.assigned_node
        if pod.labels.get(keys.ASSIGNED_NODE) == node or len(node) > keys.LABEL_VALUE_MAX:
            return
        metadata = {"uid": pod.uid, "labels": {keys.ASSIGNED_NODE: node}}
        self.add("label", pod.uid, lambda: self._patch_pod(pod, metadata))

    def stamp_node(self, node: str, annotations: Mapping[str, str]) -> None:
        """Writes handshakes."""

        async def stamp() -> None:
            await self._client.patch_annotations(NODES, node, dict(annotations))

        self.add("stamp", node, stamp)

    def wake(self, *, namespace: str, name: str, uid: str, value: str, gone: Callable[[], None]) -> None:
        """Touches a rejected pod, so that kube-scheduler tries it again. `gone`: called when there is no such pod."""

        async def touch() -> None:
            try:
                await self._client.patch_annotations(PODS, name, {keys.WAKE: value}, namespace=namespace, uid=uid)
            except (NotFound, Conflict):
                gone()
                raise

        self.add("wake", uid, touch)

    def add(
        self, what: str, about: str, work: Work, *, even_when_following: bool = False, lasting: bool = False
    ) -> None:
        """Takes a chore; one of the same name that has not begun is replaced."""
        self._waiting[what, about] = _Chore(work=work, even_when_following=even_when_following, lasting=lasting)
        self._changed.set()
        self._count_waiting()

    # ---- doing them --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Does chores until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_WORKERS):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            name = next((name for name in self._waiting if name not in self._busy), None)
            if name is None:
                self._changed.clear()
                await self._changed.wait()
                continue
            chore = self._waiting.pop(name)
            self._busy.add(name)
            try:
                end = await self._do(name, chore)
            finally:
                self._busy.discard(name)
            self._metrics.chores.labels(name[0], end).inc()
            self._count_waiting()
            if name in self._waiting:
                self._changed.set()

    async def _do(self, name: tuple[str, str], chore: _Chore) -> str:
        for number in itertools.count(1) if chore.lasting else range(1, _TRIES + 1):
            if not (chore.even_when_following or self._is_leading()):
                return "moot"
            try:
                await chore.work()
            except (NotFound, Conflict):
                return "moot"
            except Transient as error:
                await self._clock.sleep(max(DEFAULT_BACKOFF.delay_seconds(number), error.retry_after_seconds or 0.0))
            except Permanent as error:
                log.warning("chore-refused", what=name[0], about=name[1], error=str(error))
                if not chore.lasting:
                    return "failed"
                await self._clock.sleep(DEFAULT_BACKOFF.delay_seconds(number))
            else:
                return "done"
        log.warning("chore-given-up", what=name[0], about=name[1])
        return "failed"

    async def _strip(self, pod: kube.Pod) -> None:
        gone: dict[str, str | None] = dict.fromkeys(holdings.written_keys(pod, self._config))
        metadata = {
            "uid": pod.uid,
            "resourceVersion": pod.metadata.resource_version,
            "annotations": gone,
            "labels": {keys.ASSIGNED_NODE: None},
        }
        await self._patch_pod(pod, metadata)

    async def _patch_pod(self, pod: kube.Pod, metadata: Mapping[str, object]) -> None:
        await self._client.patch(
            PODS, pod.metadata.name, {"metadata": metadata}, namespace=pod.metadata.namespace, into=MetadataOnly
        )

    def _count_waiting(self) -> None:
        self._metrics.chores_waiting.set(len(self._waiting) + len(self._busy))
