"""The API server, through the chassis' client; implements ports.KubeApi and ports.PodEvents."""

from typing import Any

from hami_chassis.clock import Clock
from hami_chassis.kube.client import KubeClient
from hami_chassis.kube.events import EventRecorder, ObjectReference
from hami_chassis.kube.informer import Informer
from hami_chassis.kube.objects import MetadataOnly
from hami_chassis.kube.resources import CONFIG_MAPS, LEASES, NODES, PODS, SECRETS
from hami_chassis.metrics import ChassisMetrics

from hami_sim.kubelet.objects import ConfigMap, Pod, Secret
from hami_sim.kubelet.ports import PodFeed, PodHandler

_STRATEGIC = "application/strategic-merge-patch+json"
_LEASE_NAMESPACE = "kube-node-lease"


class KubeletKube:
    """One client may serve many nodes."""

    def __init__(self, client: KubeClient, *, metrics: ChassisMetrics, clock: Clock) -> None:
        self._client = client
        self._metrics = metrics
        self._clock = clock

    def pods_of(self, node_name: str, handler: PodHandler) -> PodFeed:
        return Informer(
            self._client,
            PODS,
            into=Pod,
            project=lambda pod: pod,
            handler=handler,
            metrics=self._metrics,
            clock=self._clock,
            field_selector=f"spec.nodeName={node_name}",
        )

    async def patch_pod_status(self, namespace: str, name: str, uid: str, status: dict[str, Any]) -> None:
        await self._client.patch(
            PODS,
            name,
            {"metadata": {"uid": uid}, "status": status},
            namespace=namespace,
            subresource="status",
            into=MetadataOnly,
            content_type=_STRATEGIC,
        )

    async def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        await self._client.delete(PODS, name, namespace=namespace, uid=uid, grace_seconds=0)

    async def create_node(self, node: dict[str, Any]) -> None:
        await self._client.create(NODES, node, into=MetadataOnly)

    async def patch_node(self, name: str, patch: dict[str, Any]) -> None:
        await self._client.patch(NODES, name, patch, into=MetadataOnly, content_type=_STRATEGIC)

    async def patch_node_status(self, name: str, status: dict[str, Any]) -> None:
        await self._client.patch(
            NODES,
            name,
            {"status": status},
            subresource="status",
            into=MetadataOnly,
            content_type=_STRATEGIC,
        )

    async def get_node_uid(self, name: str) -> str:
        return (await self._client.get(NODES, name, into=MetadataOnly)).metadata.uid

    async def create_lease(self, lease: dict[str, Any]) -> None:
        await self._client.create(LEASES, lease, namespace=_LEASE_NAMESPACE, into=MetadataOnly)

    async def patch_lease(self, name: str, spec: dict[str, Any]) -> None:
        await self._client.patch(LEASES, name, {"spec": spec}, namespace=_LEASE_NAMESPACE, into=MetadataOnly)

    async def get_config_map(self, namespace: str, name: str) -> ConfigMap:
        return await self._client.get(CONFIG_MAPS, name, namespace=namespace, into=ConfigMap)

    async def get_secret(self, namespace: str, name: str) -> Secret:
        return await self._client.get(SECRETS, name, namespace=namespace, into=Secret)


class RecordedEvents:
    """Events through the chassis' recorder, which is a root task of its own."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def warn(self, pod: Pod, reason: str, message: str) -> None:
        self._recorder.emit(
            ObjectReference(kind="Pod", name=pod.metadata.name, namespace=pod.metadata.namespace, uid=pod.uid),
            reason=reason,
            message=message,
            event_type="Warning",
        )
