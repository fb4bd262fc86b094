"""One node with everything on it: scheduler, node agent, kubelet stand-in, simulated driver; and a bare kubelet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import msgspec
from case_placing import Placing
from kubelet_api import deviceplugin_v1beta1_pb2 as pb
from kubelet_api.deviceplugin_v1beta1_pb2_grpc import (
    DevicePluginStub,
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)
from node_agent_world import NODE, PRINT_ENVIRONMENT, World, card_id, new_world, until
from scheduler_builders import Json, container, limits, pod
from scheduler_service import running, settings_for

SLOTS = 10
MODES = ("late-binding", "lock")


def runs(name: str, memory: int | str | None = None, *, gpu: int = 1, script: str = PRINT_ENVIRONMENT, **more: Any) -> Json:  # fmt: skip  # noqa: E501
    """A container as kubelet starts it; without memory it asks for no card. `percent`: memory by percentage."""
    asked = limits(gpu, memory) if memory is not None else {}
    if (percent := more.pop("percent", None)) is not None:
        asked = {**limits(gpu), "nvidia.com/gpumem-percentage": str(percent)}
    return container(name, ask=asked, command=["/bin/sh", "-c", script], **more)


class Cluster(Placing):
    """What `Placing` does, on a node whose pods run."""

    def __init__(self, world: World, scheduler: Any) -> None:
        super().__init__(world.fake, scheduler)
        self.world = world

    async def create(self, name: str, *app: Json, init: Sequence[Json] = (), **more: Any) -> Json:
        """Creates a pod and has it placed, as often as it takes until the scheduler's watch has the node, and bound."""
        document = pod(name, containers=list(app), init_containers=list(init), **more)
        document["spec"]["restartPolicy"] = "Never"
        self.fake.put("pods", document)
        while (answer := await self.scheduler.filter(document, [NODE]))["NodeNames"] != [NODE]:
            assert answer["FailedNodes"] == {NODE: "node unregistered"}, answer
            await asyncio.sleep(0.05)
        assert await self.bind(name, NODE) == ""
        return document

    async def limit(self, name: str, container_name: str) -> str:
        """The memory limit that a running container was started with."""
        found = await self.world.environment(name, container_name)
        return found["CUDA_DEVICE_MEMORY_LIMIT_0"]

    def lock(self) -> str | None:
        return self.world.annotation_of_node("hami.io/mutex.lock")


def describe_cards(world: World, *memory_mib: int) -> None:
    """Other cards than the world's own. Before the agent starts."""
    cards = [
        {"uuid": card_id(number), "name": "NVIDIA A100-SXM4-40GB", "memory_mib": memory}
        for number, memory in enumerate(memory_mib)
    ]
    world.description.write_text(json.dumps({"cards": cards}))


@asynccontextmanager
async def cluster(
    handoff: str = "late-binding",
    *,
    cards: tuple[int, ...] = (40960, 40960),
    prepare: Callable[[World], None] = lambda _: None,
) -> AsyncIterator[Cluster]:
    """A cluster of one node; returns once pods can be placed there. `prepare` may change settings before the start."""
    async with new_world(cards=len(cards)) as world:
        world.configuration["handoff"] = {"mode": handoff}
        describe_cards(world, *cards)
        prepare(world)
        world.start_agent()
        settings = settings_for(world.configuration["kube"]["kubeconfig"])
        settings = msgspec.structs.replace(
            settings, bind=msgspec.structs.replace(settings.bind, lock_wait_seconds=120.0)
        )
        async with world.kubelet(allocatable=SLOTS * len(cards)), running(settings) as scheduler:
            found = Cluster(world, scheduler)
            await until(lambda: world.register()[0].get("handoff", "lock") == handoff, "the registration")
            for number in range(len(cards)):
                await found.knows_card(card_id(number))
            yield found


class BareKubelet(RegistrationServicer):
    """Takes the agent's registration and then asks what the test says: for calls in another order than kubelet's."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._folder = world.root / "kl" / "device-plugins"
        self._endpoint = asyncio.get_running_loop().create_future()
        self.stub: Any = None

    async def Register(self, request: pb.RegisterRequest, _context: Any) -> pb.Empty:  # noqa: N802  # the protocol's
        if not self._endpoint.done():
            self._endpoint.set_result(request.endpoint)
        return pb.Empty()

    async def allocate(self, *device_ids: str) -> pb.ContainerAllocateResponse:
        """One container's answer. Raises grpc.aio.AioRpcError."""
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=list(device_ids))])
        answer = await self.stub.Allocate(request)
        (found,) = answer.container_responses
        return found

    async def refusal(self, *device_ids: str) -> str:
        """Why Allocate fails."""
        try:
            await self.allocate(*device_ids)
        except grpc.aio.AioRpcError as error:
            return str(error.details())
        raise AssertionError(f"{device_ids} were given out")

    async def preferred(self, available: Sequence[str], size: int) -> list[str]:
        request = pb.ContainerPreferredAllocationRequest(available_deviceIDs=available, allocation_size=size)
        answer = await self.stub.GetPreferredAllocation(pb.PreferredAllocationRequest(container_requests=[request]))
        return list(answer.container_responses[0].deviceIDs)

    async def device_ids(self) -> list[str]:
        """Everything that the agent offers."""
        async for listed in self.stub.ListAndWatch(pb.Empty()):
            if listed.devices:
                return [device.ID for device in listed.devices]
        raise AssertionError("the agent ended its list")


@asynccontextmanager
async def bare_kubelet(handoff: str = "lock", *, cards: tuple[int, ...] = (40960, 40960)) -> AsyncIterator[BareKubelet]:
    """An agent alone on its node: pods bound there are started by nobody."""
    async with new_world(cards=len(cards)) as world:
        world.configuration["handoff"] = {"mode": handoff}
        world.configuration["kubelet"]["pod_resources_socket"] = ""
        describe_cards(world, *cards)
        status = {"nodeInfo": {"kubeletVersion": "v1.37.2", "containerRuntimeVersion": "containerd://2.4.2"}}
        world.fake.put("nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}, "status": status})
        kubelet = BareKubelet(world)
        kubelet._folder.mkdir(parents=True)
        server = grpc.aio.server()
        add_RegistrationServicer_to_server(kubelet, server)
        server.add_insecure_port(f"unix:{kubelet._folder / 'kubelet.sock'}")
        await server.start()
        world.start_agent()
        endpoint = await asyncio.wait_for(kubelet._endpoint, 300)
        async with grpc.aio.insecure_channel(f"unix:{kubelet._folder / endpoint}") as channel:
            kubelet.stub = DevicePluginStub(channel)
            yield kubelet
        await server.stop(None)
