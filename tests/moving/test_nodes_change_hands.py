"""A node moves from HAMi's device plugin to our node agent and back while pods run on it.

HAMi's plugin is a scripted one on kubelet's real sockets: its ids, its socket, and an answer of Allocate as recorded.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from hami_sim.kubelet.scripted_plugin import ScriptedPlugin
from kubelet_api import deviceplugin_v1beta1_pb2 as pb
from node_agent_world import PRINT_ENVIRONMENT, World, card_id, container, new_world, slot, until
from vectors import Row, rows

VECTORS = Path(__file__).parents[1] / "data/vectors"
LIMIT = "CUDA_DEVICE_MEMORY_LIMIT_0"
RESOURCE = "nvidia.com/gpu"
SOCKET = "nvidia-gpu.sock"
HANDOFFS = ("late-binding", "lock")


def limited(row: Row) -> bool:
    """One card with a limit of memory, nothing special asked."""
    response = row["expect"]["response"]
    return (
        row["op"] == "allocate"
        and row["tags"][:1] == ["basic"]
        and response is not None
        and response["container_responses"][0]["envs"].get(LIMIT, "0m") != "0m"
        and f"{LIMIT[:-1]}1" not in response["container_responses"][0]["envs"]
    )


ANSWER = next(row for row in rows(VECTORS / "node-allocate.jsonl.xz") if limited(row))


class TheirPlugin:
    """HAMi's plugin here: its answer has this node's card, folder and pod in place of the recorded ones."""

    def __init__(self, world: World) -> None:
        ids = [f"{card_id(card)}-{part}" for card in range(2) for part in range(10)]
        self.scripted = ScriptedPlugin(RESOURCE, ids, pre_start_required=False)
        self.scripted.allocate = lambda _: self._answer()
        self._world = world
        self.hook = Path(world.configuration["files"]["hook_path"]) / "vgpu"
        self.pod_uid = ""
        """Of the pod that kubelet admits next."""
        self.limit: str = ANSWER["expect"]["response"]["container_responses"][0]["envs"][LIMIT]

    def install(self) -> None:
        """What its installer leaves on the host, also where our agent has been."""
        (self.hook / "containers").mkdir(parents=True, exist_ok=True)
        (self.hook / "libvgpu.so").write_bytes(b"HAMi's library\n")
        (self.hook / "ld.so.preload").write_text(f"{self.hook}/libvgpu.so\n")
        Path(self._world.configuration["files"]["lock_dir"]).mkdir(exist_ok=True)

    def _answer(self) -> pb.ContainerAllocateResponse:
        (pod,) = ANSWER["pods"]
        envs = ANSWER["expect"]["response"]["container_responses"][0]["envs"]
        text = json.dumps(ANSWER["expect"]["response"]["container_responses"][0])
        for recorded, here in (
            ("/usr/local/vgpu", str(self.hook)),
            ("/tmp/vgpulock", self._world.configuration["files"]["lock_dir"]),
            (f"{pod['metadata']['uid']}_{pod['spec']['containers'][0]['name']}", f"{self.pod_uid}_main"),
            (envs["NVIDIA_VISIBLE_DEVICES"], card_id(0)),
            ("<UUID4>", "0c6e7b1a"),
        ):
            text = text.replace(recorded, here)
        (self.hook / "containers" / f"{self.pod_uid}_main").mkdir()
        response: dict[str, Any] = json.loads(text)
        del response["cdi_devices"]
        return ParseDict(response, pb.ContainerAllocateResponse())


def identity(file: Path) -> tuple[int, int, bytes]:
    """Which file it is, when it was written last, and what it holds; not when it was read, which a start does."""
    found = file.stat()
    return found.st_ino, found.st_mtime_ns, file.read_bytes()


class LongLived:
    """A pod that writes its environment at every start and ends when it is told to."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        self._seen, self._end = world.root / f"{name}.seen", world.root / f"{name}.end"

    @property
    def script(self) -> str:
        return f"env >> {self._seen}; until [ -e {self._end} ]; do sleep 0.05; done; rm {self._end}; exit 1"

    def limits(self) -> list[str]:
        """One for each start."""
        prefix = f"{LIMIT}="
        lines = self._seen.read_text().splitlines() if self._seen.exists() else []
        return [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]

    async def started(self, times: int) -> None:
        await until(lambda: len(self.limits()) == times, f"start {times} of {self.name}")
        await self._world.runs(self.name)

    def end(self) -> None:
        self._end.touch()

    def process(self) -> tuple[str, int]:
        status = self._world.status(self.name)
        return status["containerID"], status["restartCount"]


@pytest.fixture(params=HANDOFFS)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with new_world() as found:
        found.configuration["handoff"] = {"mode": request.param}
        yield found


def place(world: World, name: str, allocation: str, script: str) -> str:
    """A pod as a scheduler bound it, of either kind, with the lock that HAMi's takes."""
    world.lock_node(name)
    return world.bind_pod(name, allocation, container(gpus=1, script=script), restartPolicy="Always")


async def test_pods_of_hami_s_plugin_run_on_and_restart_under_our_agent(world: World) -> None:
    theirs = TheirPlugin(world)
    theirs.install()
    pod = LongLived(world, "before")
    async with world.kubelet():
        async with theirs.scripted.serving(world.root / "kl/device-plugins", SOCKET):
            await world.allocatable(20)
            theirs.pod_uid = place(world, "before", slot((0, int(theirs.limit[:-1]), 0)), pod.script)
            await pod.started(1)
        process = pod.process()
        library = identity(theirs.hook / "libvgpu.so")

        await world.allocatable(0)
        world.start_agent()
        await world.agent_serves()
        await world.allocatable(20)
        assert pod.process() == process, "its process is another one"

        place(world, "after", slot((1, 2345, 0)), PRINT_ENVIRONMENT)
        assert (await world.environment("after"))[LIMIT] == "2345m"
        assert pod.process() == process

        pod.end()
        await pod.started(2)
        assert pod.limits() == [theirs.limit, theirs.limit]
        # What it has mounted is as it was: HAMi's library, its own folder.
        assert identity(theirs.hook / "libvgpu.so") == library
        assert (theirs.hook / "containers" / f"{theirs.pod_uid}_main").is_dir()


async def test_pods_of_our_agent_run_on_and_restart_under_hami_s_plugin(world: World) -> None:
    theirs = TheirPlugin(world)
    pod = LongLived(world, "before")
    world.start_agent()
    async with world.kubelet(allocatable=20):
        uid = place(world, "before", slot((1, 2345, 0)), pod.script)
        await pod.started(1)
        process = pod.process()
        await world.stop_agent()
        await world.allocatable(0)

        theirs.install()
        async with theirs.scripted.serving(world.root / "kl/device-plugins", SOCKET):
            await world.allocatable(20)  # a pod that comes before kubelet knows the devices is refused for good
            assert pod.process() == process
            theirs.pod_uid = place(world, "after", slot((0, int(theirs.limit[:-1]), 0)), PRINT_ENVIRONMENT)
            assert (await world.environment("after"))[LIMIT] == theirs.limit
            pod.end()
            await pod.started(2)
            assert pod.limits() == ["2345m", "2345m"]
            assert (theirs.hook / "containers" / f"{uid}_main").is_dir()
