"""The PodResources API of the node, on `<root>/pod-resources/kubelet.sock`."""

from collections.abc import Callable, Iterable
from pathlib import Path

import grpc
from kubelet_api import podresources_v1_pb2 as pb
from kubelet_api.constants import KUBELET_SOCKET
from kubelet_api.podresources_v1_pb2_grpc import (
    PodResourcesListerServicer,
    add_PodResourcesListerServicer_to_server,
)

from hami_sim.kubelet.devices import DeviceBook
from hami_sim.kubelet.objects import Pod


class PodResourcesServer(PodResourcesListerServicer):
    """Answers from the device book."""

    def __init__(self, folder: Path, book: DeviceBook, active_pods: Callable[[], Iterable[Pod]]) -> None:
        self._folder = folder
        self._book = book
        self._active_pods = active_pods
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        socket = self._folder / KUBELET_SOCKET
        socket.unlink(missing_ok=True)
        server = grpc.aio.server()
        add_PodResourcesListerServicer_to_server(self, server)
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        self._server = server

    async def stop(self) -> None:
        if self._server:
            await self._server.stop(None)

    async def List(  # noqa: N802 (the protocol's name)
        self,
        request: pb.ListPodResourcesRequest,  # noqa: ARG002
        context: grpc.aio.ServicerContext[pb.ListPodResourcesRequest, pb.ListPodResourcesResponse],  # noqa: ARG002
    ) -> pb.ListPodResourcesResponse:
        return pb.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in self._active_pods()])

    async def GetAllocatableResources(  # noqa: N802
        self,
        request: pb.AllocatableResourcesRequest,  # noqa: ARG002
        context: grpc.aio.ServicerContext[pb.AllocatableResourcesRequest, pb.AllocatableResourcesResponse],  # noqa: ARG002
    ) -> pb.AllocatableResourcesResponse:
        return pb.AllocatableResourcesResponse(
            devices=[
                entry
                for resource, device in self._book.healthy_devices()
                for entry in _entries(resource, device.id, device.numa_nodes)
            ]
        )

    async def Get(  # noqa: N802
        self,
        request: pb.GetPodResourcesRequest,
        context: grpc.aio.ServicerContext[pb.GetPodResourcesRequest, pb.GetPodResourcesResponse],
    ) -> pb.GetPodResourcesResponse:
        for pod in self._active_pods():
            if (pod.metadata.namespace, pod.metadata.name) == (request.pod_namespace, request.pod_name):
                return pb.GetPodResourcesResponse(pod_resources=self._pod(pod))
        missing = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        return await context.abort(grpc.StatusCode.NOT_FOUND, missing)

    def _pod(self, pod: Pod) -> pb.PodResources:
        """Init containers that end are left out, sidecars are not."""
        stay = [*(c for c in pod.spec.init_containers if c.is_sidecar), *pod.spec.containers]
        return pb.PodResources(
            name=pod.metadata.name,
            namespace=pod.metadata.namespace,
            containers=[
                pb.ContainerResources(
                    name=container.name,
                    devices=[
                        entry
                        for holding in self._book.held(pod.uid, container.name)
                        for id_ in sorted(holding.ids)
                        for entry in _entries(holding.resource, id_, self._book.numa_nodes(holding.resource, id_))
                    ],
                )
                for container in stay
            ],
        )


def _entries(resource: str, device_id: str, numa_nodes: tuple[int, ...]) -> list[pb.ContainerDevices]:
    """One entry per device and NUMA node, as kubelet sends them."""
    if not numa_nodes:
        return [pb.ContainerDevices(resource_name=resource, device_ids=[device_id])]
    return [
        pb.ContainerDevices(
            resource_name=resource,
            device_ids=[device_id],
            topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=node)]),
        )
        for node in numa_nodes
    ]
