"""The API calls of the lock hand-off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hami_chassis.kube import KubeClient
from hami_chassis.kube.resources import NODES, PODS
from hami_model import keys, kube


class KubeLockApi:
    """A LockApi."""

    def __init__(self, client: KubeClient, node_name: str) -> None:
        self._client = client
        self._node_name = node_name

    async def node_lock(self) -> tuple[str | None, str]:
        node = await self._client.get(NODES, self._node_name, into=kube.Node)
        return node.annotations.get(keys.NODE_LOCK), node.metadata.resource_version

    async def clear_node_lock(self, resource_version: str) -> None:
        await self._client.patch_annotations(
            NODES, self._node_name, {keys.NODE_LOCK: None}, resource_version=resource_version
        )

    async def get_pod(self, namespace: str, name: str) -> kube.Pod:
        return await self._client.get(PODS, name, namespace=namespace, into=kube.Pod)

    async def pods_of_node(self) -> Sequence[kube.Pod]:
        page = await self._client.list_all(PODS, into=kube.Pod, field_selector=f"spec.nodeName={self._node_name}")
        return page.items

    async def patch_pod(self, pod: kube.Pod, annotations: Mapping[str, str]) -> None:
        await self._client.patch_annotations(
            PODS, pod.metadata.name, annotations, namespace=pod.metadata.namespace, uid=pod.uid
        )
