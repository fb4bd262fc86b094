"""What the stand-in needs from the outside.

Calls to the API server raise the chassis' errors: NotFound, Conflict, other Permanent ones, and Transient.
"""

import asyncio
from typing import Any, Protocol

from hami_sim.kubelet.objects import ConfigMap, Pod, Secret


class PodHandler(Protocol):
    """Is told every change of the node's pods, in order."""

    def added(self, new: Pod) -> None: ...

    def modified(self, old: Pod, new: Pod) -> None: ...

    def deleted(self, last: Pod) -> None: ...


class PodFeed(Protocol):
    """The node's pods, for ever."""

    @property
    def synced(self) -> asyncio.Event:
        """Set once all pods of the first list were handed over."""

    async def run(self) -> None: ...


class KubeApi(Protocol):
    """The calls a kubelet makes. What we write are plain JSON values."""

    def pods_of(self, node_name: str, handler: PodHandler) -> PodFeed: ...

    async def patch_pod_status(self, namespace: str, name: str, uid: str, status: dict[str, Any]) -> None:
        """Strategic merge of the status, for this UID only."""

    async def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        """Remove the object at once, for this UID only."""

    async def create_node(self, node: dict[str, Any]) -> None: ...

    async def patch_node(self, name: str, patch: dict[str, Any]) -> None:
        """Strategic merge."""

    async def patch_node_status(self, name: str, status: dict[str, Any]) -> None:
        """Strategic merge of the status."""

    async def get_node_uid(self, name: str) -> str: ...

    async def create_lease(self, lease: dict[str, Any]) -> None:
        """In the namespace kube-node-lease, as the next one."""

    async def patch_lease(self, name: str, spec: dict[str, Any]) -> None: ...

    async def get_config_map(self, namespace: str, name: str) -> ConfigMap: ...

    async def get_secret(self, namespace: str, name: str) -> Secret: ...


class DevicePlugin(Protocol):
    """A registered plugin, from kubelet's side. Calls raise PluginError."""

    @property
    def pre_start_required(self) -> bool: ...

    @property
    def prefers(self) -> bool:
        """GetPreferredAllocation is offered."""

    async def preferred(self, available: list[str], must_include: list[str], size: int) -> list[str]: ...

    async def allocate(self, device_ids: list[str]) -> bytes:
        """The serialised ContainerAllocateResponse."""

    async def pre_start(self, device_ids: list[str]) -> None: ...


class NodeEndingError(RuntimeError):
    """Something was to begin on a node whose tasks have ended."""


class PluginError(Exception):
    """The plugin refused a call or is gone; the text is what kubelet would show."""


class ImagePuller(Protocol):
    """Stands for the image pull: comes before PreStartContainer and may take its time."""

    async def __call__(self, image: str) -> None: ...


class PodEvents(Protocol):
    """Kubernetes Events about pods; never fails and never waits."""

    def warn(self, pod: Pod, reason: str, message: str) -> None: ...
