"""A device plugin for tests: answers what the test says and writes down every call, over real unix sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from kubelet_api import deviceplugin_v1beta1_pb2 as pb
from kubelet_api.constants import DEVICE_PLUGIN_VERSION, HEALTHY, KUBELET_SOCKET, UNHEALTHY
from kubelet_api.deviceplugin_v1beta1_pb2_grpc import (
    DevicePluginServicer,
    RegistrationStub,
    add_DevicePluginServicer_to_server,
)

Allocate = Callable[[list[str]], pb.ContainerAllocateResponse]
Choose = Callable[[list[str], int], list[str]]


class Refused(Exception):  # noqa: N818 (what a scripted answer raises to refuse)
    """The call fails with this text."""


class ScriptedPlugin(DevicePluginServicer):
    """One resource. Change `allocate`, `choose`, `pre_start` and devices at any time."""

    def __init__(
        self,
        resource: str,
        device_ids: list[str],
        *,
        numa_node: int | None = None,
        pre_start_required: bool = True,
        preferred_allocation: bool = True,
    ) -> None:
        self.resource = resource
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.allocate: Allocate = lambda _: pb.ContainerAllocateResponse()
        self.choose: Choose = lambda available, size: sorted(available)[-size:]
        self.pre_start: Callable[[list[str]], None] = lambda _: None
        self._options = pb.DevicePluginOptions(
            pre_start_required=pre_start_required,
            get_preferred_allocation_available=preferred_allocation,
        )
        self._numa_node = numa_node
        self._health = dict.fromkeys(device_ids, True)
        self._changed = asyncio.Event()
        """Set, and replaced by a new one, at every change."""
        self.called = asyncio.Condition()
        """Notified after every call."""

    def set_health(self, health: dict[str, bool]) -> None:
        """Announce a change of some devices."""
        self._health |= health
        self._changed.set()
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def serving(self, folder: Path, endpoint: str = "scripted.sock") -> AsyncIterator[None]:
        """Serve in the device plugins folder and register with its kubelet.sock."""
        server = grpc.aio.server()
        add_DevicePluginServicer_to_server(self, server)
        (folder / endpoint).unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{folder / endpoint}")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"unix:{folder / KUBELET_SOCKET}") as channel:
                request = pb.RegisterRequest(
                    version=DEVICE_PLUGIN_VERSION,
                    endpoint=endpoint,
                    resource_name=self.resource,
                    options=self._options,
                )
                await RegistrationStub(channel).Register(request, wait_for_ready=True)
                self.calls.append(("registered", {}))
            yield
        finally:
            await server.stop(None)

    def bodies(self, call: str) -> list[dict[str, Any]]:
        """Of every call of that name."""
        return [body for name, body in self.calls if name == call]

    async def GetDevicePluginOptions(  # noqa: N802 (the protocol's name)
        self,
        request: pb.Empty,
        context: grpc.aio.ServicerContext[pb.Empty, pb.DevicePluginOptions],  # noqa: ARG002
    ) -> pb.DevicePluginOptions:
        await self._note("GetDevicePluginOptions", request)
        return self._options

    async def ListAndWatch(  # noqa: N802
        self,
        request: pb.Empty,
        context: grpc.aio.ServicerContext[pb.Empty, pb.ListAndWatchResponse],  # noqa: ARG002
    ) -> AsyncIterator[pb.ListAndWatchResponse]:
        await self._note("ListAndWatch", request)
        while True:
            changed = self._changed
            yield pb.ListAndWatchResponse(devices=[self._device(*item) for item in self._health.items()])
            await changed.wait()

    async def GetPreferredAllocation(  # noqa: N802
        self,
        request: pb.PreferredAllocationRequest,
        context: grpc.aio.ServicerContext[pb.PreferredAllocationRequest, pb.PreferredAllocationResponse],  # noqa: ARG002
    ) -> pb.PreferredAllocationResponse:
        await self._note("GetPreferredAllocation", request)
        return pb.PreferredAllocationResponse(
            container_responses=[
                pb.ContainerPreferredAllocationResponse(
                    deviceIDs=self.choose(list(one.available_deviceIDs), one.allocation_size)
                )
                for one in request.container_requests
            ]
        )

    async def Allocate(  # noqa: N802
        self, request: pb.AllocateRequest, context: grpc.aio.ServicerContext[pb.AllocateRequest, pb.AllocateResponse]
    ) -> pb.AllocateResponse:
        await self._note("Allocate", request)
        try:
            answers = [self.allocate(list(one.devices_ids)) for one in request.container_requests]
        except Refused as error:
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return pb.AllocateResponse(container_responses=answers)

    async def PreStartContainer(  # noqa: N802
        self,
        request: pb.PreStartContainerRequest,
        context: grpc.aio.ServicerContext[pb.PreStartContainerRequest, pb.PreStartContainerResponse],
    ) -> pb.PreStartContainerResponse:
        await self._note("PreStartContainer", request)
        try:
            self.pre_start(list(request.devices_ids))
        except Refused as error:
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return pb.PreStartContainerResponse()

    async def _note(self, call: str, request: Message) -> None:
        self.calls.append((call, MessageToDict(request, preserving_proto_field_name=True)))
        async with self.called:
            self.called.notify_all()

    def _device(self, device_id: str, healthy: bool) -> pb.Device:
        topology = None if self._numa_node is None else pb.TopologyInfo(nodes=[pb.NUMANode(ID=self._numa_node)])
        return pb.Device(ID=device_id, health=HEALTHY if healthy else UNHEALTHY, topology=topology)
