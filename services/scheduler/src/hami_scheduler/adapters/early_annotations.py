"""`--annotate-at=filter`: writes a reservation to its pod at once, as HAMi does, and takes it away when it fails."""

from __future__ import annotations

from hami_chassis.kube import KubeClient
from hami_chassis.kube.objects import MetadataOnly
from hami_chassis.kube.resources import PODS
from hami_model import kube

from hami_scheduler.core.filter import FilterAnswer
from hami_scheduler.core.records import Reservation
from hami_scheduler.ports import Chores


class EarlyAnnotations:
    def __init__(self, client: KubeClient, chores: Chores) -> None:
        self._client = client
        self._chores = chores

    async def write(self, pod: kube.Pod, answer: FilterAnswer) -> None:
        """Writes what the Binding will carry. Raises Transient and Permanent."""
        stale = answer.reservation.stale_keys if answer.reservation is not None else ()
        annotations: dict[str, str | None] = {**dict.fromkeys(stale), **answer.annotations}
        metadata = {"uid": pod.uid, "annotations": annotations, "labels": answer.labels}
        await self._client.patch(
            PODS,
            pod.metadata.name,
            {"metadata": metadata},
            namespace=pod.metadata.namespace,
            into=MetadataOnly,
        )

    def remove(self, pod: kube.Pod, reservation: Reservation) -> None:
        """The write failed, or nobody knows: whatever of it is there goes."""
        self._chores.withdraw_allocation(pod, reservation.allocation_id)
