"""Watches the pods of one node."""

from __future__ import annotations

from hami_chassis.clock import Clock
from hami_chassis.kube import Informer, KubeClient
from hami_chassis.kube.resources import PODS
from hami_chassis.metrics import ChassisMetrics
from hami_model import kube
from hami_model.device_config import DeviceConfig

from hami_monitor.core.pods import MonitoredPod, monitored_pod


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
