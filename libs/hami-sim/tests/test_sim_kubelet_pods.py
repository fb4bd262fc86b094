"""Pods on one stand-in: real plugin sockets, real processes, an API server in memory. In both container modes."""

import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hami_sim.kubelet import KubeletSettings, KubeletStandIn, end_containers
from hami_sim.kubelet.container_mode import namespace_fault
from hami_sim.kubelet.log_server import LogServer
from hami_sim.kubelet.memory_kube import MemoryKube
from hami_sim.kubelet.scripted_plugin import ScriptedPlugin
from kubelet_api.deviceplugin_v1beta1_pb2 import ContainerAllocateResponse, Mount

RESOURCE = "example.com/gpu"


class Node:
    """A stand-in's surroundings, which outlive it."""

    def __init__(self, root: Path, mode: str) -> None:
        self.root = root
        self.kube = MemoryKube()
        self.plugin_folder = root / "device-plugins"
        self.settings = KubeletSettings(
            node_name="n1",
            root_dir=str(root),
            mode=mode,
            cdi_dirs=(str(root / "cdi"),),
            time_scale=0.01,
        )

    @asynccontextmanager
    async def kubelet(self) -> AsyncIterator[KubeletStandIn]:
        logs = LogServer("127.0.0.1")
        await logs.start()
        try:
            stand_in = await KubeletStandIn.create(self.settings, self.kube, events=self.kube, log_server=logs)
            async with stand_in.running():
                yield stand_in
        finally:
            await logs.stop()

    def log(self, name: str = "pod", container: str = "main", attempt: int = 0) -> str:
        uid = self.kube.pods[name]["metadata"]["uid"]
        return (self.root / "containers" / uid / container / str(attempt) / "log").read_text()

    async def allocatable(self, count: int) -> None:
        await self.kube.until(
            lambda: self.kube.nodes["n1"]["status"].get("allocatable", {}).get(RESOURCE) == str(count)
        )


@pytest.fixture
async def short_root() -> AsyncIterator[Path]:
    """A unix socket's path has a limit that pytest's own folders exceed."""
    root = Path(tempfile.mkdtemp(prefix="kl"))
    yield root
    await end_containers(root)
    shutil.rmtree(root)


@pytest.fixture(params=["prefix", "namespace"])
async def node(request: pytest.FixtureRequest, short_root: Path) -> Node:
    if request.param == "namespace":
        fault = await namespace_fault(short_root)
        if fault:
            pytest.skip(f"this machine allows no mount namespaces: {fault}")
    return Node(short_root, request.param)


def container(script: str, name: str = "main", gpus: int = 0, **more) -> dict:
    limits = {"resources": {"limits": {RESOURCE: str(gpus)}}} if gpus else {}
    return {"name": name, "image": "any", "command": ["/bin/sh", "-c", script], **limits, **more}


async def test_a_pod_without_devices_runs_to_its_end(node):
    async with node.kubelet():
        node.kube.run_pod(
            "n1",
            {
                "restartPolicy": "Never",
                "containers": [container("echo hello $WHO", env=[{"name": "WHO", "value": "you"}])],
            },
        )

        status = await node.kube.until_phase("pod", "Succeeded")

        assert node.log() == "hello you\n"
        assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0


async def test_a_container_gets_what_the_plugin_answers(node):
    library = node.root / "host-library"
    library.mkdir()
    (library / "file").write_text("from the host\n")
    plugin = ScriptedPlugin(RESOURCE, ["a", "b", "c"])
    plugin.allocate = lambda ids: ContainerAllocateResponse(
        envs={"IDS": str(len(ids)), "FILE": "/opt/library/file"},
        mounts=[Mount(container_path="/opt/library", host_path=str(library), read_only=True)],
    )
    async with node.kubelet(), plugin.serving(node.plugin_folder):
        await node.allocatable(3)
        node.kube.run_pod("n1", {"restartPolicy": "Never", "containers": [container('echo $IDS; cat "$FILE"', gpus=2)]})

        await node.kube.until_phase("pod", "Succeeded")

        assert node.log() == "2\nfrom the host\n"
