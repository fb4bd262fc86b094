"""Kubelet's side of the device plugin protocol over unix sockets.

The Registration service lives on `<folder>/kubelet.sock`. A plugin that registers is dialled back on its own socket
before its call is answered, as kubelet does; it counts as gone when its ListAndWatch stream ends.
"""

import asyncio
import stat
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from hami_chassis.log import get_logger
from kubelet_api import deviceplugin_v1beta1_pb2 as pb
from kubelet_api.constants import DEVICE_PLUGIN_VERSION, HEALTHY, KUBELET_SOCKET
from kubelet_api.deviceplugin_v1beta1_pb2_grpc import (
    DevicePluginStub,
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)

from hami_sim.kubelet.devices import Device
from hami_sim.kubelet.ports import NodeEndingError, PluginError

CONNECT_TIMEOUT_SECONDS = 10.0
PRE_START_TIMEOUT_SECONDS = 30.0

_log = get_logger("kubelet")


class PluginEndpoint:
    """One registered plugin; implements ports.DevicePlugin."""

    def __init__(self, resource: str, socket: Path) -> None:
        self.resource = resource
        self._socket = socket
        self._channel = grpc.aio.insecure_channel(f"unix:{socket}")
        self._stub = DevicePluginStub(self._channel)
        self._options = pb.DevicePluginOptions()

    @property
    def pre_start_required(self) -> bool:
        return self._options.pre_start_required

    @property
    def prefers(self) -> bool:
        return self._options.get_preferred_allocation_available

    async def connect(self) -> None:
        """Dial and ask for the options. Raises PluginError."""
        with _plugin_errors():
            self._options = await self._stub.GetDevicePluginOptions(
                pb.Empty(), timeout=CONNECT_TIMEOUT_SECONDS, wait_for_ready=True
            )

    async def watch(self, on_devices: Callable[[list[Device]], None]) -> None:
        """Report every list until the plugin ends the stream or dies."""
        try:
            async for response in self._stub.ListAndWatch(pb.Empty()):
                on_devices([_device(device) for device in response.devices])
        except grpc.aio.AioRpcError as error:
            _log.info("plugin-stream-ended", resource=self.resource, reason=error.details())

    async def preferred(self, available: list[str], must_include: list[str], size: int) -> list[str]:
        request = pb.PreferredAllocationRequest(
            container_requests=[
                pb.ContainerPreferredAllocationRequest(
                    available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
                )
            ]
        )
        with _plugin_errors():
            response = await self._stub.GetPreferredAllocation(request)
        return list(response.container_responses[0].deviceIDs) if response.container_responses else []

    async def allocate(self, device_ids: list[str]) -> bytes:
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=device_ids)])
        with _plugin_errors():
            response = await self._stub.Allocate(request)
        if not response.container_responses:
            raise PluginError("no containers return in allocation response")
        return response.container_responses[0].SerializeToString()

    async def pre_start(self, device_ids: list[str]) -> None:
        request = pb.PreStartContainerRequest(devices_ids=device_ids)
        with _plugin_errors():
            await self._stub.PreStartContainer(request, timeout=PRE_START_TIMEOUT_SECONDS)

    async def close(self) -> None:
        await self._channel.close(None)


class PluginRegistry(RegistrationServicer):
    """The Registration service and the plugins that came through it."""

    def __init__(
        self,
        folder: Path,
        on_devices: Callable[[str, list[Device]], None],
        on_gone: Callable[[str], None],
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
    ) -> None:
        self._folder = folder
        self._on_devices = on_devices
        self._on_gone = on_gone
        self._endpoints: dict[str, PluginEndpoint] = {}
        self._spawn = spawn
        self._server: grpc.aio.Server | None = None

    def find(self, resource: str) -> PluginEndpoint | None:
        return self._endpoints.get(resource)

    async def start(self) -> None:
        """Serve on a fresh socket; every other socket in the folder belongs to a registration that is void now."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.iterdir():
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        server = grpc.aio.server()
        add_RegistrationServicer_to_server(self, server)
        server.add_insecure_port(f"unix:{self._folder / KUBELET_SOCKET}")
        await server.start()
        self._server = server

    async def stop(self) -> None:
        if self._server:
            await self._server.stop(None)
        self._endpoints.clear()

    async def Register(  # noqa: N802 (the protocol's name)
        self,
        request: pb.RegisterRequest,
        context: grpc.aio.ServicerContext[pb.RegisterRequest, pb.Empty],
    ) -> pb.Empty:
        if request.version != DEVICE_PLUGIN_VERSION:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"requested API version {request.version!r} is not supported by kubelet. "
                f"Supported version is {DEVICE_PLUGIN_VERSION!r}",
            )
        if "/" not in request.resource_name or "/" in request.endpoint:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"invalid registration: resource {request.resource_name!r}, endpoint {request.endpoint!r}",
            )
        endpoint = PluginEndpoint(request.resource_name, self._folder / request.endpoint)
        try:
            await endpoint.connect()
        except PluginError as error:
            await endpoint.close()
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"failed to dial device plugin: {error}")
        earlier = self._endpoints.get(request.resource_name)
        self._endpoints[request.resource_name] = endpoint
        if earlier:
            await earlier.close()
        try:
            self._spawn(self._watch(endpoint), f"plugin {request.resource_name}")
        except NodeEndingError:
            await endpoint.close()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "kubelet is ending")
        _log.info("plugin-registered", resource=request.resource_name, endpoint=request.endpoint)
        return pb.Empty()

    async def _watch(self, endpoint: PluginEndpoint) -> None:
        try:
            await endpoint.watch(lambda devices: self._devices_of(endpoint, devices))
        finally:
            await endpoint.close()
        if self._endpoints.get(endpoint.resource) is endpoint:
            self._on_gone(endpoint.resource)

    def _devices_of(self, endpoint: PluginEndpoint, devices: list[Device]) -> None:
        if self._endpoints.get(endpoint.resource) is endpoint:
            self._on_devices(endpoint.resource, devices)


def _device(device: pb.Device) -> Device:
    return Device(device.ID, device.health == HEALTHY, tuple(node.ID for node in device.topology.nodes))


@contextmanager
def _plugin_errors() -> Iterator[None]:
    """Whatever keeps a call from being answered becomes a PluginError."""
    try:
        yield
    except grpc.aio.UsageError as error:
        raise PluginError("endpoint has been stopped") from error
    except grpc.aio.AioRpcError as error:
        code = error.code().name.title().replace("_", "")
        raise PluginError(f"rpc error: code = {code} desc = {error.details()}") from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # The plugin is gone and its channel was closed, which cancels the calls on it: nobody asked this task to end.
        raise PluginError("rpc error: code = Unavailable desc = error reading from server: EOF") from error
