"""Kubelet's PodResources service: a second opinion on whose devices these are. Without it the agent works on."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import grpc
from hami_chassis.log import get_logger
from kubelet_api import podresources_v1_pb2 as pb
from kubelet_api.podresources_v1_pb2_grpc import PodResourcesListerStub

log = get_logger("pod-resources")

_TIMEOUT_SECONDS: Final = 2.0


class PodResources:
    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._channel: grpc.aio.Channel | None = None
        self._silent = False

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close(None)

    async def owner(self, resource: str, device_ids: frozenset[str]) -> tuple[str, str, str] | None:
        """Namespace, pod and container; None where the service says nothing, as for one-shot init containers."""
        if not self._socket.exists():
            self._say_once("no socket")
            return None
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}")
        try:
            answer = await PodResourcesListerStub(self._channel).List(
                pb.ListPodResourcesRequest(), timeout=_TIMEOUT_SECONDS
            )
        except grpc.aio.AioRpcError as error:
            self._say_once(error.details() or str(error.code()))
            return None
        self._silent = False
        found = [
            (pod.namespace, pod.name, container.name)
            for pod in answer.pod_resources
            for container in pod.containers
            if device_ids
            == {id_ for held in container.devices if held.resource_name == resource for id_ in held.device_ids}
        ]
        return found[0] if len(found) == 1 else None

    def _say_once(self, reason: str) -> None:
        if not self._silent:
            log.warning("pod-resources-unavailable", socket=str(self._socket), reason=reason)
        self._silent = True
