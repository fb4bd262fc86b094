"""What pods on one stand-in live among: real plugin sockets, real processes, an API server in memory."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hami_sim.kubelet import KubeletSettings, KubeletStandIn
from hami_sim.kubelet.container_mode import namespace_fault
from hami_sim.kubelet.log_server import LogServer
from hami_sim.kubelet.memory_kube import MemoryKube
from hami_sim.kubelet.scripted_plugin import ScriptedPlugin
from hami_sim.kubelet.settings import LogServerSettings
from hami_sim.kubelet.shim_server import ShimServer

RESOURCE = "example.com/gpu"
FOREVER = "while :; do sleep 0.05; done"


class Node:
    """A stand-in's surroundings, which outlive it."""

    def __init__(self, root: Path, mode: str) -> None:
        self.root = root
        self.kube = MemoryKube()
        self.plugin_folder = root / "device-plugins"
        self.log_port = 0
        self.settings = KubeletSettings(
            node_name="n1",
            root_dir=str(root),
            mode=mode,
            cdi_dirs=(str(root / "cdi"),),
            time_scale=0.002,
            graceful_floor_seconds=0.1,
        )

    @asynccontextmanager
    async def kubelet(self, shims: ShimServer | None = None) -> AsyncIterator[KubeletStandIn]:
        async with LogServer(LogServerSettings()).serving() as logs:
            self.log_port = logs.port
            stand_in = await KubeletStandIn.create(
                self.settings, self.kube, events=self.kube, log_server=logs, shims=shims
            )
            async with stand_in.running():
                yield stand_in

    @asynccontextmanager
    async def kubelet_and(self, plugin: ScriptedPlugin, count: int) -> AsyncIterator[KubeletStandIn]:
        async with self.kubelet() as stand_in, plugin.serving(self.plugin_folder):
            await self.allocatable(count)
            yield stand_in

    def run(self, *containers: dict, name: str = "pod", policy: str = "Never", **spec) -> str:
        return self.kube.run_pod("n1", {"restartPolicy": policy, "containers": list(containers), **spec}, name)

    def folder(self, name: str = "pod", container: str = "main", attempt: int = 0) -> Path:
        uid = self.kube.pods[name]["metadata"]["uid"]
        return self.root / "containers" / uid / container / str(attempt)

    def log(self, name: str = "pod", container: str = "main", attempt: int = 0) -> str:
        return (self.folder(name, container, attempt) / "log").read_text()

    def pid(self, name: str = "pod", container: str = "main", attempt: int = 0) -> int:
        return json.loads((self.folder(name, container, attempt) / "state.json").read_text())["pid"]

    def state(self, name: str = "pod", container: str = "main") -> dict:
        status = self.kube.pods[name]["status"]
        every = [*status.get("containerStatuses", []), *status.get("initContainerStatuses", [])]
        return next((one for one in every if one["name"] == container), {"state": {}, "restartCount": 0})

    async def running(self, name: str = "pod", container: str = "main") -> None:
        await self.kube.until(lambda: "running" in self.state(name, container)["state"])

    async def waiting(self, reason: str, name: str = "pod", container: str = "main") -> str:
        def found() -> bool:
            return self.state(name, container)["state"].get("waiting", {}).get("reason") == reason

        await self.kube.until(found)
        return self.state(name, container)["state"]["waiting"].get("message", "")

    async def allocatable(self, count: int) -> None:
        await self.kube.until(
            lambda: self.kube.nodes["n1"]["status"].get("allocatable", {}).get(RESOURCE) == str(count)
        )


async def skip_without_namespaces(root: Path, shims: ShimServer) -> None:
    fault = await namespace_fault(root, shims)
    if fault:
        pytest.skip(f"this machine allows no mount namespaces: {fault}")


def container(script: str, name: str = "main", gpus: int = 0, **more) -> dict:
    limits = {"resources": {"limits": {RESOURCE: str(gpus)}}} if gpus else {}
    return {"name": name, "image": "any", "command": ["/bin/sh", "-c", script], **limits, **more}


def alive(pid: int) -> bool:
    """A zombie is dead: who reaps it is not the stand-in's business."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
