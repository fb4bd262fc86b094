"""One simulated node around a real node-agent process: API server imitation, kubelet stand-in, simulated driver."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from hami_chassis.clock import SystemClock
from hami_chassis.kube import EventRecorder, KubeClient, KubeSettings
from hami_chassis.metrics import ChassisMetrics
from hami_sim.fake_kube import FakeKube
from hami_sim.kubelet import DriverSettings, KubeletSettings, KubeletStandIn, end_containers
from hami_sim.kubelet.kube_api import KubeletKube, RecordedEvents
from hami_sim.kubelet.log_server import LogServer
from hami_sim.kubelet.settings import LogServerSettings
from hami_sim.processes import Program, kill_program, start_program, stop_program
from prometheus_client import CollectorRegistry

REPOSITORY = Path(__file__).parents[3]
SIMULATED_DRIVER = REPOSITORY / "libvgpu" / "build" / "sim"
SIM_DRIVER_TOOL = REPOSITORY / "libvgpu" / "build" / "bin" / "sim-driver"
NODE = "n1"
REGISTER_KEY = "hami.io/node-nvidia-register"
LOCK_KEY = "hami.io/mutex.lock"
PHASE_KEY = "hami.io/bind-phase"
TO_ALLOCATE_KEY = "hami.io/vgpu-devices-to-allocate"
ALLOCATED_KEY = "hami.io/vgpu-devices-allocated"
PATIENCE_SECONDS = 300
"""Of one wait: a machine of CI may be many times as slow as an idle one."""
SHOWN_LINES = 200
FOREVER = "while :; do sleep 0.05; done"
PRINT_ENVIRONMENT = "env; " + FOREVER

Json = dict[str, Any]


def card_id(number: int) -> str:
    return f"GPU-11111111-2222-3333-4444-{number:012d}"


def container(name: str = "main", gpus: int = 0, script: str = PRINT_ENVIRONMENT, **more: Any) -> Json:
    limits = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}} if gpus else {}
    return {"name": name, "image": "any", "command": ["/bin/sh", "-c", script], **limits, **more}


def slot(*slices: tuple[int, int, int]) -> str:
    """One container's part of an annotation: (card number, MiB, percent) each."""
    return "".join(f"{card_id(card)},NVIDIA,{memory},{cores}:" for card, memory, cores in slices) + ";"


async def until(condition: Callable[[], Any], what: str = "", seconds: float = PATIENCE_SECONDS) -> Any:
    """Waits until the condition gives something true; what it raises counts as not yet."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        try:
            found = condition()
        except (LookupError, FileNotFoundError, ValueError):
            found = None
        if found:
            return found
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"waited in vain for {what or condition}")
        await asyncio.sleep(0.02)


class World:
    """Everything around and including one agent. `configuration` may be changed before `start_agent`."""

    def __init__(self, root: Path, fake: FakeKube, url: str, nats_url: str | None, cards: int) -> None:
        self.root = root
        self.fake = fake
        self.description = root / "driver.json"
        self.description.write_text(
            json.dumps(
                {
                    "cards": [
                        {
                            "uuid": card_id(number),
                            "name": "NVIDIA A100-SXM4-40GB",
                            "memory_mib": 40960,
                            "numa_node": number % 2,
                        }
                        for number in range(cards)
                    ]
                }
            )
        )
        library = root / "libvgpu.so"
        library.write_bytes(b"stands for the library: containers of these tests run no CUDA\n")
        self.configuration: Json = {
            "node": {"name": NODE},
            "kube": {"kubeconfig": url, "timeout_seconds": 30},
            "bus": {"servers": [nats_url] if nats_url else []},
            "kubelet": {
                "plugins_dir": str(root / "kl" / "device-plugins"),
                "pod_resources_socket": str(root / "kl" / "pod-resources" / "kubelet.sock"),
            },
            "nvml": {"library_file": str(SIMULATED_DRIVER / "libnvidia-ml.so.1")},
            "files": {
                "hook_path": str(root / "hook"),
                "library_file": str(library),
                "lock_dir": str(root / "vgpulock"),
                "cdi_dir": str(root / "cdi"),
                "nvidia_cdi_dirs": [str(root / "nvidia-cdi")],
                "state_dir": str(root / "state"),
            },
            "health": {"probe_seconds": 0.2, "clean_probes": 2},
            "observation": {"port": 0},
        }
        self.kubelet_settings = KubeletSettings(
            node_name=NODE,
            root_dir=str(root / "kl"),
            mode="prefix",
            cdi_dirs=(str(root / "cdi"),),
            time_scale=0.01,
            graceful_floor_seconds=0.1,
            driver=DriverSettings(
                library_dir=str(SIMULATED_DRIVER), environment={"HAMI_SIM_DRIVER": str(self.description)}
            ),
        )
        self.stand_in: KubeletStandIn | None = None
        """The kubelet that runs."""
        self.agent: Program | None = None
        self.agent_starts = 0

    # ---- the agent ---------------------------------------------------------------------------------------------------

    def start_agent(self, **environment: str) -> Program:
        self.agent_starts += 1
        file = self.root / "agent.yaml"
        file.write_text(yaml.safe_dump(self.configuration))
        self.agent = start_program(
            "node-agent",
            [sys.executable, "-m", "hami_node_agent.main", "serve", "--config", file],
            log_path=self.agent_log(),
            process_file=self.root / "agent.json",
            environment={**os.environ, "HAMI_SIM_DRIVER": str(self.description), "NO_PROXY": "*", **environment},
        )
        return self.agent

    def agent_log(self) -> Path:
        return self.root / f"agent-{self.agent_starts}.log"

    def show_agent_logs(self) -> None:
        """For the report of a test that fails."""
        for log in sorted(self.root.glob("agent-*.log")):
            lines = log.read_text().splitlines(keepends=True)[-SHOWN_LINES:]
            sys.stdout.write(f"---- the end of {log.name}\n{''.join(lines)}\n")

    def agent_lines(self, event: str) -> list[Json]:
        text = self.agent_log().read_text()
        whole = text[: text.rfind("\n") + 1]  # a line may be read while it is written
        lines = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
        return [line for line in lines if line.get("event") == event]

    async def agent_serves(self) -> None:
        await until(lambda: self.agent_lines("registered"), "the registration with kubelet")

    async def metrics(self) -> str:
        """What the agent tells once it is ready."""
        url = await until(self._observed_at, "the agent to serve its metrics")
        async with aiohttp.ClientSession(url) as client:
            while True:
                async with client.get("/readyz") as ready:
                    if ready.status == 200:
                        break
                await asyncio.sleep(0.05)
            async with client.get("/metrics") as answer:
                return await answer.text()

    def _observed_at(self) -> str:
        urls = [str(line["url"]) for line in self.agent_lines("listening") if line["server"] == "observation"]
        return urls[0]

    async def agent_knows_pods(self, count: int) -> None:
        """Returns when the agent's watch has brought so many."""
        told = f'hami_informer_objects{{resource="pods"}} {float(count)}\n'
        while told not in await self.metrics():  # noqa: ASYNC110  # another process makes it so
            await asyncio.sleep(0.05)

    async def kill_agent(self) -> None:
        if self.agent is not None:
            await kill_program(self.agent)
            self.agent = None

    async def stop_agent(self) -> None:
        if self.agent is not None:
            await stop_program(self.agent)
            self.agent = None

    def sim_driver(self, *words: str) -> None:
        subprocess.run([SIM_DRIVER_TOOL, "--description", self.description, *words], check=True)

    # ---- the cluster -------------------------------------------------------------------------------------------------

    def node(self) -> Json:
        found: Json = copy.deepcopy(self.fake.get("nodes", NODE))
        return found

    def register(self) -> list[Json]:
        found: list[Json] = json.loads(self.node()["metadata"]["annotations"][REGISTER_KEY])
        return found

    def annotation_of_node(self, key: str = REGISTER_KEY) -> str | None:
        found: str | None = self.node()["metadata"].get("annotations", {}).get(key)
        return found

    def lock_node(self, pod: str, namespace: str = "default") -> None:
        node = self.node()
        annotations = {**node["metadata"].get("annotations", {}), LOCK_KEY: f"2026-03-04T05:06:07Z,{namespace},{pod}"}
        self.fake.put("nodes", {**node, "metadata": {**node["metadata"], "annotations": annotations}})

    def bind_pod(self, name: str, allocation: str | None, *containers: Json, **more: Any) -> str:
        """A pod as it stands after its Binding. Returns its UID."""
        uid = str(uuid.uuid4())
        annotations = {} if allocation is None else allocation_annotations(allocation)
        annotations |= more.pop("annotations", {})
        self.fake.put(
            "pods",
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "default", "uid": uid, "annotations": annotations},
                "spec": {"nodeName": NODE, "restartPolicy": "Never", "containers": list(containers), **more},
                "status": {"phase": "Pending"},
            },
        )
        return uid

    def pod(self, name: str) -> Json:
        """A copy: what the server holds must change by `put` only."""
        found: Json = copy.deepcopy(self.fake.get("pods", name, "default"))
        return found

    def annotation(self, name: str, key: str) -> str | None:
        found: str | None = self.pod(name)["metadata"].get("annotations", {}).get(key)
        return found

    def phase(self, name: str) -> str | None:
        return self.annotation(name, PHASE_KEY)

    def status(self, name: str, container_name: str = "main") -> Json:
        status = self.pod(name).get("status", {})
        every = [*status.get("containerStatuses", []), *status.get("initContainerStatuses", [])]
        found = [one for one in every if one["name"] == container_name]
        chosen: Json = found[0]
        return chosen

    async def runs(self, name: str, container_name: str = "main") -> None:
        await until(lambda: "running" in self.status(name, container_name)["state"], f"{name} to run")

    async def waits_with(self, name: str, text: str, container_name: str = "main") -> str:
        def message() -> str:
            return str(self.status(name, container_name)["state"].get("waiting", {}).get("message", ""))

        await until(lambda: text in message(), f"{name} to be refused with {text!r}")
        return message()

    def log(self, name: str, container_name: str = "main", attempt: int = 0) -> str:
        uid = self.pod(name)["metadata"]["uid"]
        return str((self.root / "kl" / "containers" / uid / container_name / str(attempt) / "log").read_text())

    async def environment(self, name: str, container_name: str = "main", attempt: int = 0) -> dict[str, str]:
        """What a container that prints its environment was started with."""
        await until(lambda: "PWD=" in self.log(name, container_name, attempt), f"the environment of {name}")
        lines = self.log(name, container_name, attempt).splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def events(self, reason: str) -> list[Json]:
        return [event for event in self.fake.all("events") if event.get("reason") == reason]

    # ---- kubelet -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def kubelet(self, allocatable: int | None = None) -> AsyncIterator[KubeletStandIn]:
        """A kubelet that has just started; `allocatable`: the block begins when it offers so many."""
        self._forget_what_was_offered()
        metrics, clock = ChassisMetrics(CollectorRegistry()), SystemClock()
        async with AsyncExitStack() as stack:
            client = await KubeClient.connect(
                KubeSettings(kubeconfig=self.configuration["kube"]["kubeconfig"]), metrics=metrics, clock=clock
            )
            stack.push_async_callback(client.close)
            recorder = EventRecorder(client, component="kubelet", instance=NODE, metrics=metrics, clock=clock)
            logs = await stack.enter_async_context(LogServer(LogServerSettings()).serving())
            stand_in = await KubeletStandIn.create(
                self.kubelet_settings,
                KubeletKube(client, metrics=metrics, clock=clock),
                events=RecordedEvents(recorder),
                log_server=logs,
            )
            self.stand_in = stand_in
            stack.callback(setattr, self, "stand_in", None)
            await stack.enter_async_context(stand_in.running())
            if allocatable is not None:
                await self.allocatable(allocatable)
            yield stand_in

    def _forget_what_was_offered(self) -> None:
        """So that the count on the node is that of the next kubelet, which has heard of the devices then."""
        if any(node["metadata"]["name"] == NODE for node in self.fake.all("nodes")):
            seen = self.node()
            seen.get("status", {}).get("allocatable", {}).pop("nvidia.com/gpu", None)
            self.fake.put("nodes", seen)

    def _known_to_kubelet(self) -> int:
        """Healthy devices by its own word."""
        assert self.stand_in is not None
        _, healthy = self.stand_in.device_counts().get("nvidia.com/gpu", (0, 0))
        return healthy

    async def allocatable(self, count: int) -> None:
        """Returns when kubelet knows and offers so many, and a running agent has told the node of its cards.

        A pod that comes before kubelet knows its devices is refused for good, and the node object may be late.
        """
        await until(lambda: self._known_to_kubelet() == count, f"{count} devices known to kubelet")
        await until(
            lambda: self.node()["status"].get("allocatable", {}).get("nvidia.com/gpu") == str(count),
            f"{count} allocatable",
        )
        if count and self.agent is not None:
            # Bound late, an agent tells kubelet and the node at the same time.
            await until(lambda: self.annotation_of_node() is not None, "the register annotation")


def allocation_annotations(allocation: str, node: str = NODE, bind_time: int = 1772600767) -> dict[str, str]:
    """What a Binding of our scheduler carries."""
    return {
        "hami.io/vgpu-node": node,
        "hami.io/vgpu-time": str(bind_time),
        "hami.io/bind-time": str(bind_time),
        PHASE_KEY: "allocating",
        "hami.io/allocation-id": str(uuid.uuid4()),
        TO_ALLOCATE_KEY: allocation,
        ALLOCATED_KEY: allocation,
    }


@asynccontextmanager
async def new_world(*, cards: int = 2, nats_url: str | None = None) -> AsyncIterator[World]:
    """A world without agent and kubelet. A unix socket's path has a limit, so its folder has a short name."""
    root = Path(tempfile.mkdtemp(prefix="na"))
    fake = FakeKube()
    world = World(root, fake, await fake.start(), nats_url, cards)
    try:
        yield world
    finally:
        await world.stop_agent()
        world.show_agent_logs()
        await end_containers(root / "kl")
        await fake.stop()
        shutil.rmtree(root, ignore_errors=True)
