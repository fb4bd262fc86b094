"""The API server's part for tests of the stand-in, in memory: pods bound to nodes, their status and deletion.

It knows what the calls of ports.KubeApi need and nothing else; the same tests run against a real server where behaviour
of the server matters.
"""

import asyncio
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from hami_chassis.errors import Transient
from hami_chassis.kube.errors import AlreadyExists, Conflict, KubePermanent, NotFound

from hami_sim.kubelet.objects import ConfigMap, Pod, Secret
from hami_sim.kubelet.ports import PodHandler


class MemoryFeed:
    """Pods of one node."""

    def __init__(self, kube: "MemoryKube", node_name: str, handler: PodHandler) -> None:
        self._kube = kube
        self.node_name = node_name
        self.handler = handler
        self.synced = asyncio.Event()
        self.held: dict[str, Pod] = {}

    async def run(self) -> None:
        self._kube.feeds.append(self)
        try:
            for pod in list(self._kube.pods.values()):
                self.tell(pod)
            self.synced.set()
            await asyncio.Event().wait()
        finally:
            self._kube.feeds.remove(self)

    def tell(self, raw: dict[str, Any], *, gone: bool = False) -> None:
        if raw["spec"].get("nodeName") != self.node_name:
            return
        pod = msgspec.convert(raw, Pod)
        before = self.held.pop(pod.uid, None)
        if gone:
            self.handler.deleted(pod)
            return
        self.held[pod.uid] = pod
        if before:
            self.handler.modified(before, pod)
        else:
            self.handler.added(pod)


class MemoryKube:
    """Implements ports.KubeApi; `pods` and `nodes` are the raw objects."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.nodes: dict[str, dict[str, Any]] = {}
        self.leases: dict[str, dict[str, Any]] = {}
        self.config_maps: dict[str, ConfigMap] = {}
        self.secrets: dict[str, Secret] = {}
        self.feeds: list[MemoryFeed] = []
        self.warnings: list[tuple[str, str, str]] = []
        """(pod, reason, message) of Events."""
        self.away = False
        """Every call fails as when the server does not answer."""
        self._changed = asyncio.Condition()
        self._in_vain = asyncio.Semaphore(0)

    # ---- what users and the scheduler do ----

    def run_pod(self, node_name: str, spec: dict[str, Any], name: str = "pod", **metadata: Any) -> str:  # noqa: ANN401
        """Create a pod that is bound already; returns its UID."""
        uid = str(uuid.uuid4())
        self.pods[name] = {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": uid,
                "creationTimestamp": _now(),
                **metadata,
            },
            "spec": {"nodeName": node_name, **spec},
            "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]},
        }
        self._tell(self.pods[name])
        return uid

    def ask_deletion(self, name: str, grace_seconds: int | None = None) -> None:
        """What DELETE does to a pod that is bound."""
        pod = self.pods[name]
        grace = pod["spec"].get("terminationGracePeriodSeconds", 30) if grace_seconds is None else grace_seconds
        if grace == 0:
            del self.pods[name]
            self._tell(pod, gone=True)
            return
        pod["metadata"] |= {"deletionTimestamp": _now(), "deletionGracePeriodSeconds": grace}
        self._tell(pod)

    def touch(self, name: str) -> None:
        """An event of the pod as it is."""
        self._tell(self.pods[name])

    async def until_called_in_vain(self, times: int) -> None:
        """Returns after that many calls while `away`."""
        for _ in range(times):
            await self._in_vain.acquire()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Returns when it is true after some change."""
        async with self._changed:
            await self._changed.wait_for(condition)

    async def until_phase(self, name: str, phase: str) -> dict[str, Any]:
        """Returns the pod's status."""
        await self.until(lambda: self.pods[name]["status"].get("phase") == phase)
        status: dict[str, Any] = self.pods[name]["status"]
        return status

    async def until_gone(self, name: str) -> None:
        await self.until(lambda: name not in self.pods)

    # ---- ports.KubeApi ----

    def pods_of(self, node_name: str, handler: PodHandler) -> MemoryFeed:
        return MemoryFeed(self, node_name, handler)

    async def patch_pod_status(self, namespace: str, name: str, uid: str, status: dict[str, Any]) -> None:  # noqa: ARG002
        pod = self._pod(name, uid)
        conditions = {c["type"]: c for c in pod["status"].get("conditions", [])}
        for condition in status.get("conditions", []):
            kept = {key: value for key, value in condition.items() if value is not None}
            conditions[condition["type"]] = kept
        pod["status"] |= status | {"conditions": list(conditions.values())}
        await self._tell_soon(pod)

    async def delete_pod(self, namespace: str, name: str, uid: str) -> None:  # noqa: ARG002
        pod = self._pod(name, uid)
        del self.pods[name]
        await self._tell_soon(pod, gone=True)

    async def create_node(self, node: dict[str, Any]) -> None:
        self._answer()
        name = node["metadata"]["name"]
        if name in self.nodes:
            raise _refusal(AlreadyExists, 409, name)
        self.nodes[name] = node | {"status": {}}

    async def patch_node(self, name: str, patch: dict[str, Any]) -> None:
        self._answer()
        self.nodes[name]["metadata"] |= patch["metadata"]

    async def patch_node_status(self, name: str, status: dict[str, Any]) -> None:
        self._answer()
        before = self.nodes[name]["status"]
        for key, value in status.items():
            mergeable = isinstance(value, dict) and isinstance(before.get(key), dict)
            before[key] = before[key] | value if mergeable else value
        async with self._changed:
            self._changed.notify_all()

    async def get_node_uid(self, name: str) -> str:
        self._answer()
        return f"uid-of-{name}"

    async def create_lease(self, lease: dict[str, Any]) -> None:
        self._answer()
        self.leases[lease["metadata"]["name"]] = lease["spec"]

    async def patch_lease(self, name: str, spec: dict[str, Any]) -> None:
        self._answer()
        if name not in self.leases:
            raise _refusal(NotFound, 404, name)
        self.leases[name] = spec

    async def get_config_map(self, namespace: str, name: str) -> ConfigMap:  # noqa: ARG002
        self._answer()
        if name not in self.config_maps:
            raise _refusal(NotFound, 404, name)
        return self.config_maps[name]

    async def get_secret(self, namespace: str, name: str) -> Secret:  # noqa: ARG002
        self._answer()
        if name not in self.secrets:
            raise _refusal(NotFound, 404, name)
        return self.secrets[name]

    def warn(self, pod: Pod, reason: str, message: str) -> None:
        """ports.PodEvents."""
        self.warnings.append((pod.metadata.name, reason, message))

    def _answer(self) -> None:
        if self.away:
            self._in_vain.release()
            raise Transient("the server does not answer")

    def _pod(self, name: str, uid: str) -> dict[str, Any]:
        self._answer()
        pod = self.pods.get(name)
        if pod is None:
            raise _refusal(NotFound, 404, name)
        if pod["metadata"]["uid"] != uid:
            raise _refusal(Conflict, 409, name)
        return pod

    def _tell(self, pod: dict[str, Any], *, gone: bool = False) -> None:
        for feed in list(self.feeds):
            feed.tell(pod, gone=gone)

    async def _tell_soon(self, pod: dict[str, Any], *, gone: bool = False) -> None:
        self._tell(pod, gone=gone)
        async with self._changed:
            self._changed.notify_all()


def _refusal(kind: type[KubePermanent], code: int, name: str) -> KubePermanent:
    return kind(f"{name}: {code}", code=code, reason=kind.__name__)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
