"""Our side of kubelet's device plugin protocol, and the registration with kubelet.

serve own socket ──▶ register ──▶ watch the folder ──▶ kubelet.sock made anew, our socket gone, or kubelet does not
watch our devices: begin again
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import grpc
from hami_chassis.clock import Clock
from hami_chassis.errors import Permanent, Transient
from hami_chassis.log import get_logger
from hami_chassis.retry import DEFAULT_BACKOFF, Retries
from kubelet_api import deviceplugin_v1beta1_pb2 as pb
from kubelet_api.constants import DEVICE_PLUGIN_VERSION, HEALTHY, KUBELET_SOCKET, UNHEALTHY
from kubelet_api.deviceplugin_v1beta1_pb2_grpc import (
    DevicePluginServicer,
    RegistrationStub,
    add_DevicePluginServicer_to_server,
)

from hami_node_agent.core.inventory import KubeletDevice
from hami_node_agent.metrics import NodeAgentMetrics
from hami_node_agent.ports import RefusedForGoodError

log = get_logger("device-plugin")

Answer = TypeVar("Answer")

_Made = tuple[int, int]
"""Inode and time of a socket: tells it from a later one of the same path."""
_DIAL_SECONDS: Final = 5.0
_DETAILS_MAX: Final = 1000
"""Of an error's text: gRPC sends it as a header, and a client drops the whole answer where that is too long."""
_LOOK_SECONDS: Final = 0.5
"""How often the folder is looked at; kubelet makes its socket anew at every start."""
_UNWATCHED_SECONDS: Final = 30.0
"""A kubelet that took us and does not watch our devices that long has forgotten us."""


class Handoff(Protocol):
    """What answers kubelet's calls."""

    @property
    def prefers(self) -> bool:
        """Whether kubelet is to ask which devices it should choose."""
        ...

    async def preferred(self, requests: Sequence[pb.ContainerPreferredAllocationRequest]) -> list[list[str]]: ...

    async def allocate(self, requests: Sequence[Sequence[str]]) -> list[pb.ContainerAllocateResponse]: ...

    async def pre_start(self, device_ids: Sequence[str]) -> None: ...


class DevicePlugin(DevicePluginServicer):
    """The service. `announce` is called with every change of the devices."""

    def __init__(self, *, metrics: NodeAgentMetrics, clock: Clock) -> None:
        self._chosen: Handoff | None = None
        self._metrics = metrics
        self._clock = clock
        self._devices: tuple[KubeletDevice, ...] = ()
        self._changed = asyncio.Event()
        """Set, and replaced by a new one, at every change."""
        self._watchers = 0

    def use(self, handoff: Handoff) -> None:
        """Says what answers kubelet; before that there is no registration."""
        self._chosen = handoff

    @property
    def _handoff(self) -> Handoff:
        if self._chosen is None:
            raise Transient("the node-agent is starting")
        return self._chosen

    def announce(self, devices: Sequence[KubeletDevice]) -> None:
        """From now on these are the devices; kubelet is told where that is news."""
        if tuple(devices) != self._devices:
            self._devices = tuple(devices)
            self._changed.set()
            self._changed = asyncio.Event()

    def options(self) -> pb.DevicePluginOptions:
        return pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=self._handoff.prefers)

    async def GetDevicePluginOptions(  # noqa: N802  # the protocol's name
        self, _request: pb.Empty, _context: grpc.aio.ServicerContext[pb.Empty, pb.DevicePluginOptions]
    ) -> pb.DevicePluginOptions:
        return self.options()

    async def ListAndWatch(  # noqa: N802
        self, _request: pb.Empty, _context: grpc.aio.ServicerContext[pb.Empty, pb.ListAndWatchResponse]
    ) -> AsyncIterator[pb.ListAndWatchResponse]:
        self._metrics.registered.inc()
        self._watchers += 1
        try:
            while True:
                changed = self._changed
                yield _device_list(self._devices)
                await changed.wait()
        finally:
            self._metrics.registered.dec()
            self._watchers -= 1

    @property
    def is_watched(self) -> bool:
        """Whether kubelet takes our list of devices."""
        return self._watchers > 0

    async def GetPreferredAllocation(  # noqa: N802
        self,
        request: pb.PreferredAllocationRequest,
        context: grpc.aio.ServicerContext[pb.PreferredAllocationRequest, pb.PreferredAllocationResponse],
    ) -> pb.PreferredAllocationResponse:
        chosen = await self._answered(
            "GetPreferredAllocation", context, lambda: self._handoff.preferred(request.container_requests)
        )
        return pb.PreferredAllocationResponse(
            container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=ids) for ids in chosen]
        )

    async def Allocate(  # noqa: N802
        self,
        request: pb.AllocateRequest,
        context: grpc.aio.ServicerContext[pb.AllocateRequest, pb.AllocateResponse],
    ) -> pb.AllocateResponse:
        wanted = [list(container.devices_ids) for container in request.container_requests]
        answers = await self._answered("Allocate", context, lambda: self._handoff.allocate(wanted))
        return pb.AllocateResponse(container_responses=answers)

    async def PreStartContainer(  # noqa: N802
        self,
        request: pb.PreStartContainerRequest,
        context: grpc.aio.ServicerContext[pb.PreStartContainerRequest, pb.PreStartContainerResponse],
    ) -> pb.PreStartContainerResponse:
        await self._answered("PreStartContainer", context, lambda: self._handoff.pre_start(request.devices_ids))
        return pb.PreStartContainerResponse()

    async def _answered(
        self,
        call: str,
        context: grpc.aio.ServicerContext[Any, Any],
        work: Callable[[], Awaitable[Answer]],
    ) -> Answer:
        """The answer; a refusal and trouble that may pass become errors of the call."""
        began, result = self._clock.monotonic(), "ok"
        try:
            return await work()
        except Transient as error:
            result = "transient"
            log.warning("kubelet-call-failed", call=call, reason=str(error))
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error)[:_DETAILS_MAX])
        except (RefusedForGoodError, Permanent) as error:
            result = "refused"
            log.warning("kubelet-call-refused", call=call, reason=str(error))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error)[:_DETAILS_MAX])
        finally:
            self._metrics.calls.labels(call, result).observe(self._clock.monotonic() - began)
        raise AssertionError("abort raises")


def _device_list(devices: Sequence[KubeletDevice]) -> pb.ListAndWatchResponse:
    return pb.ListAndWatchResponse(
        devices=[
            pb.Device(
                ID=device.id,
                health=HEALTHY if device.healthy else UNHEALTHY,
                topology=None
                if device.numa_node is None
                else pb.TopologyInfo(nodes=[pb.NUMANode(ID=device.numa_node)]),
            )
            for device in devices
        ]
    )


def socket_name(resource: str) -> str:
    """Of the socket that serves a resource, beside kubelet's."""
    return f"nvidia-{resource.rpartition('/')[2]}.sock"


class KubeletRegistration:
    """Root task `run`: serves the plugin's socket and keeps kubelet knowing it."""

    def __init__(
        self,
        plugin: DevicePlugin,
        resource: str,
        plugins_folder: Path,
        *,
        before_registering: Callable[[], Awaitable[None]],
        metrics: NodeAgentMetrics,
        clock: Clock,
    ) -> None:
        self._plugin = plugin
        self._resource = resource
        self._folder = plugins_folder
        self._endpoint = socket_name(resource)
        self._before_registering = before_registering
        self._metrics = metrics
        self._clock = clock
        self._retries = Retries(DEFAULT_BACKOFF)
        self._is_registered = False

    def is_known(self) -> bool:
        """Kubelet took us, and takes our list of devices."""
        return self._is_registered and self._plugin.is_watched

    async def run(self) -> None:
        await self._before_registering()
        while True:
            server = grpc.aio.server()
            add_DevicePluginServicer_to_server(self._plugin, server)
            try:
                own, kubelet = await self._serve_and_register(server)
                await self._until_changed(own, kubelet)
                log.info("kubelet-changed", folder=str(self._folder))
            except _RegistrationFailedError as error:
                self._metrics.registrations.labels("failed").inc()
                delay = self._retries.delay_after()
                log.warning("registration-failed", reason=str(error), again_in_seconds=round(delay, 2))
                await self._clock.sleep(delay)
            finally:
                self._is_registered = False
                await server.stop(None)

    async def _serve_and_register(self, server: grpc.aio.Server) -> tuple[_Made, _Made]:
        """Which files our socket and kubelet's were when kubelet took us."""
        own_path, kubelet_path = self._folder / self._endpoint, self._folder / KUBELET_SOCKET
        kubelet = _made(kubelet_path)
        if kubelet is None:
            raise _RegistrationFailedError(f"{kubelet_path} is not there: kubelet does not run")
        try:
            own_path.unlink(missing_ok=True)
            server.add_insecure_port(f"unix:{own_path}")
            await server.start()
        except (RuntimeError, OSError) as error:
            raise _RegistrationFailedError(f"{own_path} cannot be served: {error}") from error
        own = _made(own_path)
        if own is None:
            raise _RegistrationFailedError(f"{own_path} was removed")
        request = pb.RegisterRequest(
            version=DEVICE_PLUGIN_VERSION,
            endpoint=self._endpoint,
            resource_name=self._resource,
            options=self._plugin.options(),
        )
        try:
            async with grpc.aio.insecure_channel(f"unix:{kubelet_path}") as channel:
                await RegistrationStub(channel).Register(request, timeout=_DIAL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise _RegistrationFailedError(f"kubelet refused: {error.details()}") from error
        self._retries.succeeded()
        self._metrics.registrations.labels("done").inc()
        self._is_registered = True
        log.info("registered", resource=self._resource, endpoint=self._endpoint)
        return own, kubelet

    async def _until_changed(self, own: _Made, kubelet: _Made) -> None:
        unwatched_seconds = 0.0
        while (_made(self._folder / self._endpoint), _made(self._folder / KUBELET_SOCKET)) == (own, kubelet):
            unwatched_seconds = 0.0 if self._plugin.is_watched else unwatched_seconds + _LOOK_SECONDS
            if unwatched_seconds >= _UNWATCHED_SECONDS:
                log.warning("kubelet-does-not-watch", seconds=unwatched_seconds)
                return
            await self._clock.sleep(_LOOK_SECONDS)


class _RegistrationFailedError(Exception):
    pass


def _made(path: Path) -> _Made | None:
    try:
        stat = path.lstat()
    except OSError:
        return None
    return stat.st_ino, stat.st_ctime_ns
