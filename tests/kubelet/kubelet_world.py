"""What the tests do with the node, in their words."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from hami_model import allocations
from hami_sim.cluster.services import program
from hami_sim.controlplane import RestClient
from node_places import CDI_FOLDER, KUBELET_FOLDER, NODE, WORKLOAD_IMAGE
from prometheus_client.parser import text_string_to_metric_families
from real_node import Node

Json = dict[str, Any]
WORKLOAD = "vgpu-workload"
HOLD = (WORKLOAD, "alloc", "--mib", "100", "--hold-until-signal")
GROW = (WORKLOAD, "over-alloc")
LOCK = "hami.io/mutex.lock"
REGISTER = "hami.io/node-nvidia-register"
SHOWN = "shown.sh"
"""In front of commands of containers whose cards are shown by variable."""
ALLOCATED = "hami.io/vgpu-devices-allocated"
ENDS = ("Succeeded", "Failed")
COMMAND_FAILED = "command terminated with exit code"
"""In kubectl's error where the command itself failed; else it was not run."""
PATIENCE_SECONDS = 400.0
POLL_SECONDS = 0.1


def container(command: tuple[str, ...] = HOLD, name: str = "main", **limits: int) -> Json:
    """`limits`: gpu, gpumem, gpucores."""
    return {
        "name": name,
        "image": WORKLOAD_IMAGE,
        "imagePullPolicy": "Never",
        "command": list(command),
        "resources": {"limits": {f"nvidia.com/{key}": str(amount) for key, amount in limits.items()}},
    }


class World:
    """The node, seen from one namespace."""

    def __init__(self, node: Node, kube: RestClient, namespace: str) -> None:
        self.node = node
        self.kube = kube
        self.namespace = namespace
        self.driver_by_host_path = False
        """Whether containers get the driver's libraries by volumes; else by NVIDIA's CDI specification."""

    @property
    def pods_path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    # ---- pods ----

    async def create_pod(
        self, name: str, *containers: Json, init: tuple[Json, ...] = (), restart: str = "Never", **spec: Any
    ) -> Json:
        body: Json = {
            "metadata": {"name": name},
            "spec": {
                "restartPolicy": restart,
                "terminationGracePeriodSeconds": 2,
                "automountServiceAccountToken": False,
                "containers": list(containers),
                "initContainers": list(init),
                **spec,
            },
        }
        if self.driver_by_host_path:
            for one in (*containers, *init):
                one["command"] = list(self.shown(one["command"]))
            _mount_driver(body, self.node)
        return await self.kube.post(self.pods_path, body)

    def shown(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """The command as it is to be run in a container."""
        return (SHOWN, *command) if self.driver_by_host_path else command

    async def pod(self, name: str) -> Json:
        return await self.kube.get(f"{self.pods_path}/{name}")

    async def until_pod(self, name: str, condition: Callable[[Json], bool]) -> Json:
        """The pod once the condition holds; the test's own time limit bounds it."""
        found = await self.kube.wait_until(
            f"{self.pods_path}/{name}",
            lambda pod: pod is not None and condition(pod),
            timeout_seconds=PATIENCE_SECONDS,
        )
        assert found is not None
        return found

    async def until_phase(self, name: str, phase: str) -> Json:
        found = await self.until_pod(name, lambda pod: pod["status"].get("phase") in (phase, *ENDS))
        assert found["status"]["phase"] == phase, found["status"]
        return found

    async def until_running(self, *names: str) -> list[Json]:
        """The pods once all their containers run."""
        return [await self.until_pod(name, _all_run) for name in names]

    async def until_holding(self, name: str) -> Json:
        """The pod once the process of HOLD, its only container, has what it asks for and minds signals."""
        while True:
            (found,) = await self.until_running(name)
            if any(line["event"] == "allocated" for line in await self.output(name)):
                return found
            await asyncio.sleep(POLL_SECONDS)

    async def until_init_running(self, name: str) -> Json:
        """The pod once its first init container runs."""
        return await self.until_pod(name, _init_runs)

    async def until_restarted(self, name: str, count: int) -> Json:
        """The pod once its only container, of HOLD, holds after so many restarts."""
        await self.until_pod(
            name, lambda pod: _all_run(pod) and pod["status"]["containerStatuses"][0]["restartCount"] >= count
        )
        return await self.until_holding(name)

    async def delete_pod(self, name: str) -> None:
        path = f"{self.pods_path}/{name}"
        await self.kube.delete(path, gracePeriodSeconds="1")
        await self.kube.wait_until(path, lambda found: found is None, timeout_seconds=PATIENCE_SECONDS)

    async def clear(self) -> None:
        """Ends all pods of the namespace and waits until they are gone."""
        await self.kube.delete(self.pods_path, gracePeriodSeconds="1")
        await self.kube.wait_until(
            self.pods_path, lambda found: found is not None and not found["items"], timeout_seconds=PATIENCE_SECONDS
        )

    # ---- what is inside of containers ----

    async def logs(self, name: str, **query: str) -> str:
        return await self.kube.get_text(f"{self.pods_path}/{name}/log", **query)

    async def output(self, name: str, **query: str) -> list[Json]:
        """The JSON lines that a container wrote."""
        text = await self.logs(name, **query)
        whole = text[: text.rfind("\n") + 1]  # a line may be read while it is written
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    async def execute(self, name: str, *command: str, container_name: str = "main") -> str:
        """`kubectl exec` of a command that only looks: standard output, with standard error behind it where it failed.

        It is asked for again where it did not begin: a kubelet that has just started does not know its pods yet.
        """
        control_plane = self.node.cluster.control_plane
        argv = (
            str(control_plane.binaries.kubectl), f"--kubeconfig={control_plane.kubeconfig}",
            f"--namespace={self.namespace}", "exec", name, f"--container={container_name}", "--", *command,
        )  # fmt: skip
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return done.stdout
            if COMMAND_FAILED in done.stderr:
                return f"{done.stdout}{done.stderr}"
            assert time.monotonic() < deadline, done.stderr
            await asyncio.sleep(POLL_SECONDS)

    async def end_process(self, name: str) -> None:
        """Ends the process of HOLD in the pod, its container's first, from the node: no kubelet has to be asked."""
        uid = (await self.pod(name))["metadata"]["uid"]
        os.kill(self.host_pid_of(uid, WORKLOAD), signal.SIGTERM)

    async def touch(self, name: str, volume: str, file: str) -> None:
        """Makes a file in an emptyDir of the pod, from the node: no kubelet has to be asked."""
        uid = (await self.pod(name))["metadata"]["uid"]
        (KUBELET_FOLDER / "pods" / uid / "volumes" / "kubernetes.io~empty-dir" / volume / file).touch()

    async def said(self, name: str, *command: str) -> list[Json]:
        """The JSON lines of a command that is run in the container."""
        text = await self.execute(name, *self.shown(command))
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        assert lines, text
        return lines

    async def devices(self, name: str) -> list[Json]:
        """What a process in the container sees of its cards."""
        return [line for line in await self.said(name, WORKLOAD, "info") if line["event"] == "device"]

    async def granted_mib(self, name: str) -> int:
        """What an over-alloc workload got before it was refused."""
        await self.until_phase(name, "Succeeded")
        (said,) = await self.output(name)
        assert (said["event"], said["code"]) == ("refused", 2)
        return int(said["granted_mib"])

    async def environment(self, name: str, container_name: str = "main") -> dict[str, str]:
        said = await self.execute(name, "env", container_name=container_name)
        return dict(line.split("=", 1) for line in said.splitlines() if "=" in line)

    # ---- the node ----

    async def node_object(self) -> Json:
        return await self.kube.get(f"/api/v1/nodes/{NODE}")

    @asynccontextmanager
    async def node_annotations(self) -> AsyncIterator[list[set[str]]]:
        """Annotation keys of every version of the node while the block ran; to be read after it."""
        keys: list[set[str]] = []
        async with self.kube.versions("/api/v1/nodes") as seen:
            yield keys
        keys += [set(node["metadata"].get("annotations", {})) for node in seen]

    def register(self, node: Json) -> list[Json]:
        """The cards as the agent published them."""
        cards: list[Json] = json.loads(node["metadata"]["annotations"][REGISTER])
        return cards

    def allocated(self, pod: Json) -> list[tuple[int, str, int, int]]:
        """Position of the container, card, MiB and percent of each slice that the pod was given."""
        slots = allocations.decode(pod["metadata"]["annotations"][ALLOCATED])
        return [
            (position, str(piece.card_id), piece.memory_mib, piece.cores_percent)
            for position, slot in enumerate(slots)
            for piece in slot
        ]

    async def until_unlocked(self) -> None:
        """Returns when nobody holds the node's lock."""
        await self.kube.wait_until(
            f"/api/v1/nodes/{NODE}",
            lambda node: node is not None and LOCK not in node["metadata"]["annotations"],
            timeout_seconds=PATIENCE_SECONDS,
        )

    def left_of(self, uid: str) -> list[Path]:
        """What the node still has of a pod: specifications, folders, limits."""
        vgpu = self.node.folders.hook / "vgpu"
        places = (CDI_FOLDER, vgpu / "containers", vgpu / "limits")
        return [path for place in places if place.is_dir() for path in place.iterdir() if uid in path.name]

    async def until_left_of(self, uid: str, *, without: str) -> None:
        """Returns when nothing of a pod is in the folder of that name."""
        while True:
            if all(path.parent.name != without for path in self.left_of(uid)):
                return
            await asyncio.sleep(POLL_SECONDS)

    async def until_nothing_left_of(self, uid: str) -> None:
        """The test's own time limit bounds it."""
        while True:
            if not self.left_of(uid):
                return
            await asyncio.sleep(POLL_SECONDS)

    async def until_slice(self, pod: str, name: str, condition: Callable[[float], bool]) -> dict[str, float]:
        """The monitor's values of a pod's one slice by metric, once that one is as wanted."""
        while True:
            text = await self._metrics(self.node.monitor_url)
            samples = [
                sample
                for family in text_string_to_metric_families(text)
                for sample in family.samples
                if sample.labels.get("pod") == pod and sample.labels.get("namespace") == self.namespace
            ]
            values = {sample.name: sample.value for sample in samples}
            if name in values and condition(values[name]):
                return values
            await asyncio.sleep(POLL_SECONDS)

    def host_pid_of(self, uid: str, program: str) -> int:
        """Of the one process of a pod that runs a program, as the node sees it. It must have said something."""
        (found,) = [
            int(place.name)
            for place in Path("/proc").iterdir()
            if place.name.isdigit()
            and _read(place / "comm").strip() == program
            and f"pod{uid}" in _read(place / "cgroup")
        ]
        return found

    async def until_host_pids(self, uid: str) -> list[tuple[int, int]]:
        """Pids in the region of a pod's one container, as the container and as the node sees them, once told."""
        while True:
            (region,) = (self.node.folders.hook / "vgpu" / "containers").glob(f"{uid}_*/*.cache")
            argv = (program("hami-monitor"), "region", str(region), "--json")
            printed = await asyncio.to_thread(subprocess.run, argv, capture_output=True, check=True)
            found = [(one["pid"], one["hostpid"]) for one in json.loads(printed.stdout)["processes"]]
            if found and all(host for _, host in found):
                return found
            await asyncio.sleep(POLL_SECONDS)

    async def _metrics(self, url: str) -> str:
        async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
            return await response.text()


def _read(file: Path) -> str:
    """Empty where the process has ended meanwhile."""
    try:
        return file.read_text()
    except OSError:
        return ""


def _init_runs(pod: Json) -> bool:
    """Whether its first init container does."""
    return any("running" in one["state"] for one in pod["status"].get("initContainerStatuses", [])[:1])


def _all_run(pod: Json) -> bool:
    statuses = pod["status"].get("containerStatuses", [])
    return len(statuses) == len(pod["spec"]["containers"]) and all("running" in one["state"] for one in statuses)


def _mount_driver(body: Json, node: Node) -> None:
    """The simulated driver, as NVIDIA's runtime would bring it in."""
    files = [(file, node.library_folder / file.name) for file in node.driver_libraries]
    files += [(file, file) for file in (node.folders.driver, node.folders.driver_state)]
    spec = body["spec"]
    spec["volumes"] = [
        {"name": f"driver-{number}", "hostPath": {"path": str(host)}} for number, (host, _) in enumerate(files)
    ]
    for one in (*spec["containers"], *spec["initContainers"]):
        one["volumeMounts"] = [
            {"name": f"driver-{number}", "mountPath": str(inside)} for number, (_, inside) in enumerate(files)
        ]
        one["env"] = [
            {"name": "HAMI_SIM_DRIVER", "value": str(node.folders.driver)},
            {"name": "HAMI_SIM_STATE", "value": str(node.folders.driver_state)},
        ]
