"""Watches pods, nodes and ResourceQuotas, reduced at once to what the scheduler reads, and tells the bookkeeper."""

from __future__ import annotations

import asyncio

from hami_chassis.clock import Clock
from hami_chassis.kube import Informer, KubeClient, NotFound
from hami_chassis.kube.resources import NODES, PODS, RESOURCE_QUOTAS
from hami_chassis.metrics import ChassisMetrics
from hami_model import keys, kube

from hami_scheduler.adapters.node_locks import NodeLocks
from hami_scheduler.bookkeeper import Bookkeeper
from hami_scheduler.core.reduction import Reduction


class Informers:
    """`pods`, `nodes` and `quotas` are to be run as root tasks."""

    def __init__(
        self,
        client: KubeClient,
        bookkeeper: Bookkeeper,
        locks: NodeLocks,
        *,
        metrics: ChassisMetrics,
        clock: Clock,
    ) -> None:
        self._client = client
        self._reduction = reduction = Reduction(bookkeeper.ledger.config)
        feed = _PodFeed(bookkeeper, reduction)
        self.pods: Informer[kube.Pod, kube.Pod] = Informer(
            client, PODS, into=kube.Pod, project=feed.project, handler=feed, metrics=metrics, clock=clock
        )
        self.nodes: Informer[kube.Node, kube.Node] = Informer(
            client,
            NODES,
            into=kube.Node,
            project=reduction.node,
            handler=_NodeFeed(bookkeeper, locks),
            metrics=metrics,
            clock=clock,
        )
        self.quotas: Informer[kube.ResourceQuota, kube.ResourceQuota] = Informer(
            client,
            RESOURCE_QUOTAS,
            into=kube.ResourceQuota,
            project=reduction.quota,
            handler=_QuotaFeed(bookkeeper),
            metrics=metrics,
            clock=clock,
        )

    @property
    def synced(self) -> bool:
        """Whether all three have been listed completely."""
        return all(informer.synced.is_set() for informer in (self.pods, self.nodes, self.quotas))

    async def find_pod(self, namespace: str, name: str) -> kube.Pod | None:
        """The live pod of that name; the server is asked for one that the watch has not told of. Raises Transient and
        Permanent."""
        for pod in self.pods.values():
            if (pod.metadata.namespace, pod.metadata.name) == (namespace, name):
                return pod
        try:
            return self._reduction.pod(await self._client.get(PODS, name, namespace=namespace, into=kube.Pod))
        except NotFound:
            return None

    async def resync(self) -> None:
        """Returns when consistent lists that began after this call have been delivered."""
        await asyncio.gather(self.pods.resync(), self.nodes.resync(), self.quotas.resync())


class _PodFeed:
    def __init__(self, bookkeeper: Bookkeeper, reduction: Reduction) -> None:
        self._bookkeeper = bookkeeper
        self._reduction = reduction
        self._endings: dict[str, str] = {}
        """Last phase by UID of pods that ended and are about to be delivered as deleted."""

    def project(self, pod: kube.Pod) -> kube.Pod | None:
        """An ended pod is not held: the informer delivers it as deleted."""
        if pod.is_finished and pod.uid in self._bookkeeper.ledger.bound_pods:
            self._endings[pod.uid] = pod.status.phase
        return self._reduction.pod(pod)

    def added(self, new: kube.Pod) -> None:
        self._bookkeeper.pod_seen(new)

    def modified(self, _old: kube.Pod, new: kube.Pod) -> None:
        self._bookkeeper.pod_seen(new)

    def deleted(self, last: kube.Pod) -> None:
        self._bookkeeper.pod_gone(last, self._endings.pop(last.uid, "deleted"))


class _NodeFeed:
    def __init__(self, bookkeeper: Bookkeeper, locks: NodeLocks) -> None:
        self._bookkeeper = bookkeeper
        self._locks = locks

    def added(self, new: kube.Node) -> None:
        self._bookkeeper.node_seen(new)

    def modified(self, old: kube.Node, new: kube.Node) -> None:
        self._bookkeeper.node_seen(new)
        if keys.NODE_LOCK in old.annotations and keys.NODE_LOCK not in new.annotations:
            self._bookkeeper.lock_freed(new.name)
        self._locks.look_again(new.name)

    def deleted(self, last: kube.Node) -> None:
        self._bookkeeper.node_gone(last.name)
        self._locks.look_again(last.name)


class _QuotaFeed:
    def __init__(self, bookkeeper: Bookkeeper) -> None:
        self._bookkeeper = bookkeeper

    def added(self, new: kube.ResourceQuota) -> None:
        self._bookkeeper.quota_seen(new)

    def modified(self, _old: kube.ResourceQuota, new: kube.ResourceQuota) -> None:
        self._bookkeeper.quota_seen(new)

    def deleted(self, last: kube.ResourceQuota) -> None:
        self._bookkeeper.quota_gone(last)
