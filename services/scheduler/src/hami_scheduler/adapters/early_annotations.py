"""`--annotate-at=filter`: writes a reservation to its pod at once, as HAMi does, and takes it away when it fails."""

from __future__ import annotations

from typing import Final

from hami_chassis.errors import Permanent, Transient
from hami_chassis.kube import Conflict, KubeClient
from hami_chassis.kube.objects import MetadataOnly
from hami_chassis.kube.resources import PODS
from hami_model import kube

from hami_scheduler.core.filter import FilterAnswer
from hami_scheduler.core.records import Reservation
from hami_scheduler.ports import Chores

_TRIES: Final = 3


class EarlyAnnotations:
    def __init__(self, client: KubeClient, chores: Chores) -> None:
        self._client = client
        self._chores = chores

    async def write(self, pod: kube.Pod, answer: FilterAnswer) -> None:
        """Writes what the Binding will carry, on the version that was placed, or a later one that is unbound: so a
        write that comes late never changes a bound pod. Raises Transient and Permanent."""
        stale = answer.reservation.stale_keys if answer.reservation is not None else ()
        annotations: dict[str, str | None] = {**dict.fromkeys(stale), **answer.annotations}
        version = pod.metadata.resource_version
        for _ in range(_TRIES):
            if not version:
                version = await self._unbound_version(pod)
            metadata = {"uid": pod.uid, "resourceVersion": version, "annotations": annotations, "labels": answer.labels}
            try:
                await self._client.patch(
                    PODS,
                    pod.metadata.name,
                    {"metadata": metadata},
                    namespace=pod.metadata.namespace,
                    into=MetadataOnly,
                )
            except Conflict:
                version = ""
            else:
                return
        raise Transient(f"pod {pod.key} was changed at each of {_TRIES} tries")

    async def _unbound_version(self, pod: kube.Pod) -> str:
        found = await self._client.get(PODS, pod.metadata.name, namespace=pod.metadata.namespace, into=kube.Pod)
        if found.uid != pod.uid or found.assigned_node:
            raise Permanent(f"pod {pod.key} is gone, or bound already")
        return found.metadata.resource_version

    def remove(self, pod: kube.Pod, reservation: Reservation) -> None:
        """The write failed, or nobody knows: whatever of it is there goes."""
        self._chores.withdraw_allocation(pod, reservation.allocation_id)
