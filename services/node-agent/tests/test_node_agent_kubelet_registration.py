"""Registration with a kubelet that refuses, goes away, comes back, and forgets."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from hami_chassis.clock import SystemClock
from hami_node_agent.adapters.device_plugin import DevicePlugin, KubeletRegistration
from hami_node_agent.core.inventory import KubeletDevice
from hami_node_agent.metrics import NodeAgentMetrics
from kubelet_api import deviceplugin_v1beta1_pb2 as pb
from kubelet_api.constants import KUBELET_SOCKET
from kubelet_api.deviceplugin_v1beta1_pb2_grpc import (
    DevicePluginStub,
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)
from node_agent_world import until
from prometheus_client import CollectorRegistry


class HurriedClock(SystemClock):
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 100)


class Answers:
    """A Handoff that is not asked."""

    prefers = True

    async def preferred(self, requests: Sequence[Any]) -> list[list[str]]:
        raise NotImplementedError

    async def allocate(self, requests: Sequence[Sequence[str]]) -> list[pb.ContainerAllocateResponse]:
        raise NotImplementedError

    async def pre_start(self, device_ids: Sequence[str]) -> None:
        raise NotImplementedError


class Kubelet(RegistrationServicer):
    """Counts registrations; `refusals` come first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.refusals = 0
        self.registered: list[pb.RegisterRequest] = []

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:  # noqa: N802
        if self.refusals:
            self.refusals -= 1
            await context.abort(grpc.StatusCode.UNKNOWN, "not now")
        self.registered.append(request)
        return pb.Empty()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        (self.folder / KUBELET_SOCKET).unlink(missing_ok=True)
        server = grpc.aio.server()
        add_RegistrationServicer_to_server(self, server)
        server.add_insecure_port(f"unix:{self.folder / KUBELET_SOCKET}")
        await server.start()
        try:
            yield
        finally:
            await server.stop(None)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[list[str]]:
        """Ids of all lists that come."""
        lists: list[str] = []

        async def follow() -> None:
            while True:
                async with grpc.aio.insecure_channel(f"unix:{self.folder / self.registered[-1].endpoint}") as channel:
                    with contextlib.suppress(grpc.aio.AioRpcError):  # it registers anew: it is dialled anew
                        async for answer in DevicePluginStub(channel).ListAndWatch(pb.Empty()):
                            lists.extend(device.ID for device in answer.devices)
                await asyncio.sleep(0.01)

        task = asyncio.create_task(follow())
        try:
            yield lists
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def plugins_folder() -> Iterator[Path]:
    """Its name is short, since a unix socket's path has a limit."""
    folder = Path(tempfile.mkdtemp(prefix="kr"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
async def registration(plugins_folder: Path) -> AsyncIterator[KubeletRegistration]:
    """Running."""
    metrics, clock = NodeAgentMetrics(CollectorRegistry()), HurriedClock()
    plugin = DevicePlugin(metrics=metrics, clock=clock)
    plugin.use(Answers())
    plugin.announce([KubeletDevice(id="A-0", healthy=True)])

    async def nothing_before() -> None: ...

    registration = KubeletRegistration(
        plugin, "nvidia.com/gpu", plugins_folder, before_registering=nothing_before, metrics=metrics, clock=clock
    )
    task = asyncio.create_task(registration.run())
    yield registration
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def kubelet(registration: KubeletRegistration, plugins_folder: Path) -> Kubelet:  # noqa: ARG001  # it runs
    return Kubelet(plugins_folder)


async def test_a_refusal_and_a_kubelet_that_is_not_there_are_tried_again(kubelet: Kubelet) -> None:
    kubelet.refusals = 3
    async with AsyncExitStack() as life:
        await life.enter_async_context(kubelet.running())
        await until(lambda: kubelet.registered, "the registration")
        async with kubelet.watching() as lists:
            await until(lambda: "A-0" in lists, "the devices")
    known = len(kubelet.registered)
    async with kubelet.running():
        await until(lambda: len(kubelet.registered) > known, "the registration with the kubelet that was started anew")

    asked = kubelet.registered[0]
    assert (asked.endpoint, asked.resource_name) == ("nvidia-gpu.sock", "nvidia.com/gpu")
    assert (asked.options.pre_start_required, asked.options.get_preferred_allocation_available) == (True, True)


async def test_what_lies_where_our_socket_belongs_is_no_end(kubelet: Kubelet) -> None:
    in_the_way = kubelet.folder / "nvidia-gpu.sock"
    (in_the_way / "x").mkdir(parents=True)
    async with kubelet.running():
        await asyncio.sleep(0.05)
        assert not kubelet.registered
        shutil.rmtree(in_the_way)
        await until(lambda: kubelet.registered, "the registration")


async def test_a_kubelet_that_took_us_and_does_not_watch_is_told_again(kubelet: Kubelet) -> None:
    async with kubelet.running():
        await until(lambda: len(kubelet.registered) >= 2, "another registration")
        async with kubelet.watching() as lists:
            await until(lambda: lists, "the devices")


async def test_ready_is_who_was_taken_and_is_watched(kubelet: Kubelet, registration: KubeletRegistration) -> None:
    async with kubelet.running():
        await until(lambda: kubelet.registered, "the registration")
        assert not registration.is_known()
        async with kubelet.watching():
            await until(registration.is_known, "kubelet's watch")
        await until(lambda: not registration.is_known(), "the end of kubelet's watch")
