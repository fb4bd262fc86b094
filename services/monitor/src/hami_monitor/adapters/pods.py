"""Watches the pods of one node."""

from __future__ import annotations

from hami_chassis.clock import Clock
from hami_chassis.kube import Informer, KubeClient
from hami_chassis.kube.resources import PODS
from hami_chassis.metrics import ChassisMetrics
from hami_model import kube
from hami_model.device_config import DeviceConfig

from hami_monitor.core.pods import MIRROR_KEY, MonitoredPod, monitored_pod


def node_pods(
    client: KubeClient, *, node: str, config: DeviceConfig, metrics: ChassisMetrics, clock: Clock
) -> Informer[kube.Pod, MonitoredPod]:
    """A PodSource, whose `run` is to be a root task."""
    return Informer(
        client,
        PODS,
        into=kube.Pod,
        project=lambda pod: monitored_pod(pod, config),
        handler=_NoHandler(),
        metrics=metrics,
        clock=clock,
        field_selector=f"spec.nodeName={node}",
    )


class _NoHandler:
    """A sample takes all pods as they are then; single changes are of no use."""

    def added(self, new: MonitoredPod) -> None: ...

    def modified(self, old: MonitoredPod, new: MonitoredPod) -> None: ...

    def deleted(self, last: MonitoredPod) -> None: ...


class NodePodList:
    """A PodList: asks the API server each time, which answers with what is so now, or not at all."""

    def __init__(self, client: KubeClient, *, node: str) -> None:
        self._client = client
        self._node = node

    async def kubelet_uids(self) -> set[str]:
        """Raises Transient and Permanent."""
        found = await self._client.list_all(PODS, into=kube.Pod, field_selector=f"spec.nodeName={self._node}")
        return {uid for pod in found.items for uid in (pod.uid, pod.annotations.get(MIRROR_KEY, pod.uid))}
