"""A simulated node without a kubelet, and the monitor's process over it.

Containers are local processes with the environment and the folder that the node-agent gives them.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
from hami_sim.fake_kube import FakeKube
from hami_sim.loopback_ports import choose_free_ports
from prometheus_client.parser import text_string_to_metric_families

BUILD = Path(__file__).parents[3] / "libvgpu/build"
CARDS = ("GPU-11111111-2222-3333-4444-000000000000", "GPU-11111111-2222-3333-4444-000000000001")
MIB = 1 << 20
NODE = "sim-0"
PERIOD_SECONDS = 0.2
PATIENCE_SECONDS = 300
"""Of one wait: a machine of CI may be many times as slow as an idle one."""

Json = dict[str, Any]


class SimulatedNode:
    """A node's folders, its driver, and the containers on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.hook_path = root / "hook"
        self.containers = self.hook_path / "vgpu/containers"
        self.containers.mkdir(parents=True)
        description = {
            "driver_version": "570.124.06",
            "cuda_version": "12.8",
            "cards": [
                {
                    "uuid": card,
                    "name": "NVIDIA A100-SXM4-40GB",
                    "memory_mib": 40960,
                    "pci_bus_id": f"00000000:0{n}:00.0",
                }
                for n, card in enumerate(CARDS, start=1)
            ],
        }
        (root / "driver.json").write_text(json.dumps(description))
        self.environment = {
            **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
            "HAMI_SIM_DRIVER": str(root / "driver.json"),
            "HAMI_SIM_STATE": str(root / "state"),
        }
        self.processes: list[subprocess.Popen[str]] = []

    def folder(self, pod: str) -> Path:
        return self.containers / f"uid-{pod}_main"

    def run(self, pod: str, card: int, limit_mib: int, *command: str) -> subprocess.Popen[str]:
        """A container's process, once it has said its first word."""
        return after_first_word(self.start(pod, card, limit_mib, *command))

    def run_without_library(self, pod: str, card: int, *command: str) -> subprocess.Popen[str]:
        """A container's process that the library is not in. Like a container it has its folder mounted."""
        inside = self.root / "inside"
        inside.mkdir(exist_ok=True)
        mount = f'mount --bind "{self.folder(pod)}" "{inside}" && exec "$@"'
        wrapper = ("unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh")
        return after_first_word(self.start(pod, card, 0, *command, wrapper=wrapper, preload=False))

    def start(
        self,
        pod: str,
        card: int,
        limit_mib: int,
        *command: str,
        wrapper: tuple[str, ...] = (),
        preload: bool = True,
        priority: int | None = None,
    ) -> subprocess.Popen[str]:
        folder = self.folder(pod)
        folder.mkdir(exist_ok=True)
        process = subprocess.Popen(
            [*wrapper, BUILD / "bin/vgpu-workload", *command],
            env={
                **self.environment,
                "HAMI_SIM_VISIBLE_DEVICES": str(card),
                "LD_LIBRARY_PATH": str(BUILD / "sim"),
                **({"LD_PRELOAD": str(BUILD / "lib/libvgpu.so")} if preload else {}),
                **({"CUDA_TASK_PRIORITY": str(priority)} if priority is not None else {}),
                "CUDA_DEVICE_MEMORY_LIMIT_0": f"{limit_mib}m",
                "CUDA_DEVICE_SM_LIMIT": "30",
                "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(folder / "region.cache"),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def driver(self, *command: str) -> str:
        return subprocess.run(
            [BUILD / "bin/sim-driver", *command], env=self.environment, check=True, capture_output=True, text=True
        ).stdout

    def books(self) -> Json:
        found: Json = json.loads(self.driver("books"))
        return found

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def after_first_word(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    assert process.stdout is not None
    assert process.stdout.readline(), "the workload ended without a word"
    return process


def pod(name: str, card: int, memory_mib: int, cores: int = 30) -> Json:
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "labels": {"hami.io/vgpu-node": NODE},
            "annotations": {"hami.io/vgpu-devices-allocated": f"{CARDS[card]},NVIDIA,{memory_mib},{cores}:;"},
        },
        "spec": {"nodeName": NODE, "containers": [{"name": "main"}]},
        "status": {"phase": "Running"},
    }


class Monitor:
    """The running service, seen from outside."""

    def __init__(self, url: str, client: aiohttp.ClientSession, process: asyncio.subprocess.Process) -> None:
        self.url = url
        self.process = process
        self._client = client

    async def get(self, path: str) -> tuple[int, str]:
        async with self._client.get(self.url + path) as response:
            return response.status, await response.text()

    async def series(self) -> dict[tuple[str, ...], float]:
        """Values by name and the values of pod, container, card and what else tells series apart."""
        _, text = await self.get("/metrics")
        wanted = ("pod", "card", "state", "of", "query")
        return {
            (one.name, *(one.labels[label] for label in wanted if label in one.labels)): one.value
            for family in text_string_to_metric_families(text)
            for one in family.samples
        }

    async def until(self, holds: Callable[[dict[tuple[str, ...], float]], bool]) -> dict[tuple[str, ...], float]:
        """The series once it holds of them; one that is missing counts as not yet.

        The cards are read apart from the slices, and a view of them that is some periods old counts as none: on a busy
        machine any sample may lack them. So whatever is to be seen belongs into the condition.
        """
        while True:
            found = await self.series()
            with suppress(KeyError):
                if holds(found):
                    return found
            await asyncio.sleep(PERIOD_SECONDS / 2)

    async def shows(self, expected: Mapping[tuple[str, ...], float | None]) -> None:
        """Returns once one answer has all these values; None stands for no such series."""
        found: dict[tuple[str, ...], float | None] = {}

        def holds(series: dict[tuple[str, ...], float]) -> bool:
            found.update({key: series.get(key) for key in expected})
            return found == expected

        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self.until(holds)
        except TimeoutError as error:
            raise AssertionError(f"{found} and not {expected}") from error


@asynccontextmanager
async def monitor_of(node: SimulatedNode, kube: FakeKube, servers: str = "", *sets: str) -> AsyncIterator[Monitor]:
    (port,) = choose_free_ports(1)
    values = (
        f"node.name={NODE}",
        f"node.hook_path={node.hook_path}",
        f"node.driver_library_folder={BUILD / 'sim'}",
        f"sampling.period_seconds={PERIOD_SECONDS}",
        f"observation.port={port}",
        f"kube.kubeconfig={kube.url}",
        f"bus.servers={servers}",
        *sets,
    )
    arguments = [word for value in values for word in ("--set", value)]
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("hami-monitor")), "serve", *arguments, env=node.environment
    )
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(aiohttp.ClientSession())
        found = Monitor(f"http://127.0.0.1:{port}", client, process)
        try:
            await ready(found.get, process)
            yield found
        finally:
            if process.returncode is None:
                process.terminate()
            assert await process.wait() == 0


async def ready(get: Callable[[str], Awaitable[tuple[int, str]]], process: asyncio.subprocess.Process) -> None:
    while True:
        assert process.returncode is None, "the monitor ended"
        try:
            status, _ = await get("/readyz")
        except aiohttp.ClientConnectionError:
            status = 0
        if status == 200:
            return
        await asyncio.sleep(0.05)
