"""Pods of this node in the API server: a watch, consistent reads, and writing what came of a hand-over."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from hami_chassis.clock import Clock
from hami_chassis.errors import Permanent, Transient
from hami_chassis.kube import Informer, KubeClient
from hami_chassis.kube.errors import Conflict, NotFound
from hami_chassis.kube.objects import MetadataOnly
from hami_chassis.kube.resources import PODS
from hami_chassis.log import get_logger
from hami_chassis.metrics import ChassisMetrics
from hami_chassis.retry import DEFAULT_BACKOFF, Retries
from hami_model import events, keys, kube

from hami_node_agent.core.entitlement import by_kubelet_uid, is_mirror, kubelet_uid
from hami_node_agent.metrics import NodeAgentMetrics

log = get_logger("pods")

_MAX_HINTS: Final = 1000


class PodSubscriber:
    """Who wants to hear of pods; filled in by main before the watch runs."""

    def __init__(self) -> None:
        self.on_added: list[Callable[[kube.Pod], None]] = []
        """The first time, also after a start."""
        self.on_seen: list[Callable[[kube.Pod], None]] = []
        """Every version."""
        self.on_gone: list[Callable[[kube.Pod], None]] = []

    def added(self, new: kube.Pod) -> None:
        self.modified(new, new)
        for tell in self.on_added:
            tell(new)

    def modified(self, _old: kube.Pod, new: kube.Pod) -> None:
        for tell in self.on_seen:
            tell(new)

    def deleted(self, last: kube.Pod) -> None:
        for tell in self.on_gone:
            tell(last)


class NodePods:
    """A PodLedger. `informer` is to be run as a root task."""

    def __init__(
        self,
        client: KubeClient,
        node_name: str,
        subscriber: PodSubscriber,
        *,
        metrics: ChassisMetrics,
        clock: Clock,
    ) -> None:
        self._client = client
        self._selector = f"spec.nodeName={node_name}"
        self._node_name = node_name
        self._mirrors: dict[str, set[str]] = {}
        """UIDs of objects that call themselves mirrors, by the UID that they claim."""
        self._hints: OrderedDict[str, events.PodRef] = OrderedDict()
        subscriber.on_seen.insert(0, self._remember)
        subscriber.on_gone.append(self._forget)
        self.informer: Informer[kube.Pod, kube.Pod] = Informer(
            client,
            PODS,
            into=kube.Pod,
            project=lambda pod: pod,
            handler=subscriber,
            metrics=metrics,
            clock=clock,
            field_selector=self._selector,
        )

    def _remember(self, pod: kube.Pod) -> None:
        if is_mirror(pod):
            self._mirrors.setdefault(kubelet_uid(pod), set()).add(pod.uid)
        self._hints.pop(pod.uid, None)

    def _forget(self, pod: kube.Pod) -> None:
        claimants = self._mirrors.get(kubelet_uid(pod), set())
        claimants.discard(pod.uid)
        if not claimants:
            self._mirrors.pop(kubelet_uid(pod), None)

    def hint(self, pod: events.PodRef) -> None:
        """An event said that this pod is being bound to the node: should the watch lag, it can be read by name."""
        self._hints[pod.uid] = pod
        while len(self._hints) > _MAX_HINTS:
            self._hints.popitem(last=False)

    @property
    def has_synced(self) -> bool:
        return self.informer.synced.is_set()

    def cached(self, uid: str) -> kube.Pod | None:
        candidates = [self.informer.get(known) for known in (uid, *self._mirrors.get(uid, ()))]
        return by_kubelet_uid(pod for pod in candidates if pod is not None).get(uid)

    def all_cached(self) -> Iterable[kube.Pod]:
        return tuple(by_kubelet_uid(self.informer.values()).values())

    async def read(self, uid: str) -> kube.Pod | None:
        hint = self._hints.get(uid) or self._name_of(uid)
        if hint is None:
            return next((pod for pod in await self.read_all() if kubelet_uid(pod) == uid), None)
        try:
            pod = await self._client.get(PODS, hint.name, namespace=hint.namespace, into=kube.Pod)
        except NotFound:
            return None
        return pod if kubelet_uid(pod) == uid == pod.uid and pod.spec.node_name == self._node_name else None

    def _name_of(self, uid: str) -> events.PodRef | None:
        pod = self.cached(uid)
        if pod is None or is_mirror(pod):
            return None  # only a list shows whether the UID that a mirror claims is another pod's
        return events.PodRef(namespace=pod.metadata.namespace, name=pod.metadata.name, uid=uid)

    async def read_all(self) -> Sequence[kube.Pod]:
        page = await self._client.list_all(PODS, into=kube.Pod, field_selector=self._selector)
        return tuple(by_kubelet_uid(page.items).values())


class _Wanted(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    uid: str
    annotations: dict[str, str]
    labels: dict[str, str]


class PodPatches:
    """A PodWriter. Root task `run`: writes each pod's last wish until it holds or the pod is gone."""

    def __init__(self, client: KubeClient, node_name: str, *, metrics: NodeAgentMetrics, clock: Clock) -> None:
        self._client = client
        self._node_name = node_name
        self._metrics = metrics
        self._clock = clock
        self._wanted: OrderedDict[str, _Wanted] = OrderedDict()
        self._work = asyncio.Event()
        self._retries = Retries(DEFAULT_BACKOFF)

    @property
    def waiting(self) -> int:
        return len(self._wanted)

    def want(self, pod: kube.Pod, annotations: Mapping[str, str]) -> None:
        labels: dict[str, str] = {}
        if keys.ASSIGNED_NODE not in pod.labels and len(self._node_name) <= keys.LABEL_VALUE_MAX:
            labels[keys.ASSIGNED_NODE] = self._node_name
        self._wanted[pod.uid] = _Wanted(pod.metadata.namespace, pod.metadata.name, pod.uid, dict(annotations), labels)
        self._work.set()

    async def run(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while self._wanted:
                uid, wanted = next(iter(self._wanted.items()))
                if await self._written(wanted):
                    # A later wish for the same pod may have come in while this one was being written.
                    if self._wanted.get(uid) is wanted:
                        del self._wanted[uid]
                else:
                    self._wanted.move_to_end(uid)

    async def _written(self, wanted: _Wanted) -> bool:
        metadata: dict[str, Any] = {"uid": wanted.uid, "annotations": wanted.annotations}
        if wanted.labels:
            metadata["labels"] = wanted.labels
        try:
            await self._client.patch(
                PODS, wanted.name, {"metadata": metadata}, namespace=wanted.namespace, into=MetadataOnly
            )
        except NotFound:
            self._metrics.pod_patches.labels("gone").inc()
            return True
        except Conflict as error:
            return await self._is_gone(wanted, error)
        except Transient as error:
            self._metrics.pod_patches.labels("failed").inc()
            delay = self._retries.delay_after(error)
            log.warning("pod-patch-failed", pod=f"{wanted.namespace}/{wanted.name}", reason=str(error))
            await self._clock.sleep(delay)
            return False
        except Permanent as error:
            # Such as a missing role: somebody must act, and then it must be written after all.
            self._metrics.pod_patches.labels("refused").inc()
            log.warning("pod-patch-refused", pod=f"{wanted.namespace}/{wanted.name}", reason=str(error))
            await self._clock.sleep(self._retries.delay_after(error))
            return False
        self._retries.succeeded()
        self._metrics.pod_patches.labels("done").inc()
        return True

    async def _is_gone(self, wanted: _Wanted, error: Conflict) -> bool:
        """Without a resource version it is nearly always another UID that conflicts: a new pod of the name."""
        try:
            found = await self._client.get(PODS, wanted.name, namespace=wanted.namespace, into=MetadataOnly)
        except NotFound:
            self._metrics.pod_patches.labels("gone").inc()
            return True
        except (Transient, Permanent) as trouble:
            log.warning("pod-patch-failed", pod=f"{wanted.namespace}/{wanted.name}", reason=str(trouble))
            await self._clock.sleep(self._retries.delay_after(trouble))
            return False
        if found.metadata.uid == wanted.uid:
            await self._clock.sleep(self._retries.delay_after(error))
            return False
        self._metrics.pod_patches.labels("gone").inc()
        return True
