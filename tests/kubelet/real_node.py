"""The node with a real kubelet: its programs, started and ended one by one."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import configuration
import grpc
from hami_sim.binaries.containerd import ContainerdBinaries
from hami_sim.cluster import LocalCluster
from hami_sim.cluster.artefacts import find_artefacts
from hami_sim.cluster.driver_description import card_ids, description
from hami_sim.cluster.profile import CardGroup, NodeGroup, NodePlan
from hami_sim.cluster.service_spec import ServiceSpec, merged
from hami_sim.cluster.services import kubeconfig_of, program
from hami_sim.loopback_ports import LOOPBACK, choose_free_ports
from kubelet_api import podresources_v1_pb2
from kubelet_api.podresources_v1_pb2_grpc import PodResourcesListerStub
from node_places import (
    ADDRESS,
    CDI_FOLDER,
    CONTAINERD_SOCKET,
    KUBELET_FOLDER,
    NODE,
    PAUSE_IMAGE,
    WORKLOAD_IMAGE,
    Folders,
)

from images import library_folder, pause_image, workload_image

POD_RESOURCES = KUBELET_FOLDER / "pod-resources" / "kubelet.sock"
CARDS = 4
CARD_MEMORY_MIB = 40960
SPLIT_COUNT = 10
PATIENCE_SECONDS = 400.0
POLL_SECONDS = 0.1
DRIVER_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
WORKLOAD_PROGRAMS = ("vgpu-workload", "sim-driver")

JsonObject = dict[str, Any]
Progress = Callable[[str], None]


class Node:
    """A kubelet, containerd, our node-agent and our monitor, as on a machine with four cards."""

    def __init__(self, cluster: LocalCluster, folders: Folders, containerd: ContainerdBinaries) -> None:
        self.cluster = cluster
        self.folders = folders
        self.artefacts = find_artefacts()
        self.plan = NodePlan(name=NODE, index=0, group=NodeGroup(cards=(CardGroup(count=CARDS),)))
        self.cards = card_ids(self.plan)
        self._containerd = containerd
        agent_port, monitor_port = choose_free_ports(2)
        self.agent_url = f"http://{LOOPBACK}:{agent_port}"
        self.monitor_url = f"http://{LOOPBACK}:{monitor_port}"
        self.agent = self._agent_spec(agent_port)
        self.monitor = self._monitor_spec(monitor_port)
        self.kubelet = self._kubelet_spec()

    @property
    def driver_libraries(self) -> list[Path]:
        return [self.artefacts.driver_libraries / name for name in DRIVER_LIBRARIES]

    @property
    def library_folder(self) -> Path:
        """In containers, where the loader finds the driver."""
        return library_folder(self.artefacts.programs / WORKLOAD_PROGRAMS[0])

    # ---- starting ----

    async def start(self, progress: Progress) -> None:
        """Everything, one after the other."""
        self._write_files()
        progress("making images")
        archives = await asyncio.to_thread(self._make_images)
        progress("starting containerd 2.4.2")
        await self.start_containerd()
        progress("importing images")
        for archive in archives:
            await asyncio.to_thread(self.ctr, "images", "import", str(archive))
        progress("starting the kubelet")
        await self.launch(self.kubelet)
        progress("starting the node-agent")
        await self.launch(self.agent)
        progress("starting the monitor")
        await self.launch(self.monitor)
        progress("waiting until the kubelet offers the slices")
        await self.until_offered()

    async def start_what_ended(self) -> None:
        """After a test that ended something."""
        for spec in (self.kubelet, self.agent, self.monitor):
            if not self.cluster.runner.is_alive(spec.name):
                await self.launch(spec)
        await self.until_offered()

    async def stop_all(self) -> None:
        """What still runs of the node's programs."""
        for name in (self.monitor.name, self.agent.name, self.kubelet.name, "containerd"):
            await self.cluster.runner.stop(name)

    async def launch(self, spec: ServiceSpec) -> None:
        """Starts a program and returns when it is ready."""
        self.cluster.runner.launch(spec)
        async with self.cluster.client() as client:
            await self.cluster.runner.wait_ready(spec, client)

    async def stop(self, spec: ServiceSpec) -> None:
        """As an update would."""
        await self.cluster.runner.stop(spec.name)

    async def kill(self, spec: ServiceSpec) -> None:
        """As a crash would."""
        await self.cluster.runner.kill(spec.name)

    async def start_containerd(self) -> None:
        """Returns when it answers."""
        toml = str(self.folders.configuration / "containerd.toml")
        spec = ServiceSpec(
            name="containerd",
            argv=(str(self._containerd.containerd), "--config", toml),
            # It finds its shim there.
            environment={"PATH": f"{self._containerd.folder}:{os.environ['PATH']}"},
            stage=0,
        )
        found = self.cluster.runner.launch(spec)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not await asyncio.to_thread(self._containerd_answers):
            assert found.is_alive(), found.log_tail()
            assert time.monotonic() < deadline, found.log_tail()
            await asyncio.sleep(POLL_SECONDS)

    async def until_offered(self) -> None:
        """Returns when the kubelet that runs now has every slice from an agent, and the node object says so too."""
        wanted = CARDS * SPLIT_COUNT
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (known := await self._offered()) != wanted:
            assert time.monotonic() < deadline, f"the kubelet knows {known} of {wanted} slices"
            await asyncio.sleep(POLL_SECONDS)
        async with self.cluster.client() as client:
            await client.wait_until(
                f"/api/v1/nodes/{NODE}",
                lambda node: node is not None and node["status"]["allocatable"].get("nvidia.com/gpu") == str(wanted),
                timeout_seconds=PATIENCE_SECONDS,
            )

    async def _offered(self) -> int:
        """Healthy slices by the kubelet's own word; the node object may be a former kubelet's."""
        async with grpc.aio.insecure_channel(f"unix:{POD_RESOURCES}") as channel:
            try:
                answer = await PodResourcesListerStub(channel).GetAllocatableResources(
                    podresources_v1_pb2.AllocatableResourcesRequest(), timeout=PATIENCE_SECONDS
                )
            except grpc.aio.AioRpcError:
                return 0
        return sum(len(held.device_ids) for held in answer.devices if held.resource_name == "nvidia.com/gpu")

    async def use_handoff(self, mode: str) -> None:
        """The node-agent again with another hand-off."""
        await self.stop(self.agent)
        self.agent = _with_settings(self.agent, {"handoff": {"mode": mode}})
        await self.launch(self.agent)
        await self.until_offered()

    def ctr(self, *arguments: str) -> str:
        """Raises CalledProcessError."""
        command = [str(self._containerd.ctr), "--address", str(CONTAINERD_SOCKET), "--namespace", "k8s.io"]
        return subprocess.run([*command, *arguments], capture_output=True, text=True, check=True).stdout

    def books(self) -> JsonObject:
        """What the simulated driver has booked."""
        environment = {"HAMI_SIM_DRIVER": str(self.folders.driver), "HAMI_SIM_STATE": str(self.folders.driver_state)}
        tool = self.artefacts.programs / "sim-driver"
        printed = subprocess.run([tool, "books"], env=environment, capture_output=True, check=True)
        found: JsonObject = json.loads(printed.stdout)
        return found

    def _containerd_answers(self) -> bool:
        command = [str(self._containerd.ctr), "--address", str(CONTAINERD_SOCKET), "version"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    # ---- files ----

    def _write_files(self) -> None:
        folders = self.folders
        for folder in (
            folders.containerd, folders.images, folders.configuration / "cni", folders.driver_state, folders.hook,
            folders.agent_state, folders.lock,
        ):  # fmt: skip
            folder.mkdir(parents=True)
        folders.driver.write_text(json.dumps(description(self.plan)))
        runc = shutil.which("runc")
        assert runc is not None
        toml = configuration.containerd_toml(folders, _snapshotter(folders.root), runc)
        (folders.configuration / "containerd.toml").write_text(toml)
        (folders.configuration / "cni" / "10-pods.conflist").write_text(configuration.network())
        specification = configuration.nvidia_specification(
            list(self.cards), self.driver_libraries, self.library_folder, folders
        )
        (CDI_FOLDER / "nvidia.json").write_text(specification)

    def _make_images(self) -> list[Path]:
        programs = [self.artefacts.programs / name for name in WORKLOAD_PROGRAMS]
        return [
            pause_image(PAUSE_IMAGE, Path(__file__).with_name("pause.c"), self.folders.images),
            workload_image(
                WORKLOAD_IMAGE, programs, [self.artefacts.library, *self.driver_libraries], self.folders.images
            ),
        ]

    # ---- programs ----

    def _kubelet_spec(self) -> ServiceSpec:
        control_plane = self.cluster.control_plane
        serving = control_plane.issue_serving_certificate(NODE, (ADDRESS, NODE))
        kubeconfig = self.folders.state / "kubeconfigs" / "kubelet"
        control_plane.write_user_kubeconfig(kubeconfig, f"system:node:{NODE}", ("system:nodes",))
        kubelet = control_plane.binaries.kubelet
        assert kubelet is not None, "these programs of Kubernetes come without a kubelet"
        return ServiceSpec(
            name="kubelet",
            argv=(
                str(kubelet),
                f"--kubeconfig={kubeconfig}",
                f"--node-ip={ADDRESS}",
                f"--hostname-override={NODE}",
                "--node-labels=gpu=on",
                "--v=2",
            ),
            settings=configuration.kubelet(control_plane.ca_certificate, serving.certificate, serving.key),
            ready_nodes=(NODE,),
            stage=1,
        )

    def _agent_spec(self, port: int) -> ServiceSpec:
        folders = self.folders
        settings = {
            **self._connections("hami-node-agent"),
            "observation": {"host": LOOPBACK, "port": port},
            "node": {"name": NODE},
            "nvml": {"library_file": str(self.artefacts.driver_libraries / "libnvidia-ml.so.1")},
            "files": {
                "hook_path": str(folders.hook),
                "library_file": str(self.artefacts.library),
                "lock_dir": str(folders.lock),
                "state_dir": str(folders.agent_state),
            },
        }
        return ServiceSpec(
            name="node-agent",
            argv=(program("hami-node-agent"), "serve"),
            settings=settings,
            environment=self._driver_environment(),
            ready_url=f"{self.agent_url}/readyz",
            stage=2,
        )

    def _monitor_spec(self, port: int) -> ServiceSpec:
        settings = {
            **self._connections("hami-monitor"),
            "observation": {"host": LOOPBACK, "port": port},
            "node": {
                "name": NODE,
                "hook_path": str(self.folders.hook),
                "driver_library_folder": str(self.artefacts.driver_libraries),
            },
            "sampling": {"period_seconds": 1.0},
        }
        return ServiceSpec(
            name="monitor",
            argv=(program("hami-monitor"), "serve"),
            settings=settings,
            environment=self._driver_environment(),
            ready_url=f"{self.monitor_url}/readyz",
            stage=3,
        )

    def _connections(self, account: str) -> JsonObject:
        return {
            "log": {"format": "text"},
            "kube": {"kubeconfig": str(kubeconfig_of(self.cluster.layout, account))},
            "bus": {"servers": [self.cluster.nats_url]},
        }

    def _driver_environment(self) -> dict[str, str]:
        return {
            "HAMI_SIM_DRIVER": str(self.folders.driver),
            "HAMI_SIM_STATE": str(self.folders.driver_state),
            "LD_LIBRARY_PATH": str(self.artefacts.driver_libraries),
        }


def _with_settings(spec: ServiceSpec, settings: JsonObject) -> ServiceSpec:
    return ServiceSpec(
        name=spec.name,
        argv=spec.argv,
        settings=merged(spec.settings or {}, settings),
        environment=spec.environment,
        ready_url=spec.ready_url,
        stage=spec.stage,
    )


def _snapshotter(folder: Path) -> str:
    """`overlayfs` where it can be mounted on this file system."""
    layers = [folder / "overlay" / name for name in ("lower", "upper", "work", "merged")]
    for layer in layers:
        layer.mkdir(parents=True)
    lower, upper, work, mounted = layers
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    tried = subprocess.run(
        ["mount", "-t", "overlay", "overlay", "-o", options, mounted], capture_output=True, check=False
    )
    if tried.returncode != 0:
        return "native"
    subprocess.run(["umount", mounted], check=True)
    return "overlayfs"
