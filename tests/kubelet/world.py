"""What the tests do with the node, in their words."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from hami_sim.controlplane import RestClient
from node import Node
from places import CDI_FOLDER, NODE, WORKLOAD_IMAGE

Json = dict[str, Any]
WORKLOAD = "vgpu-workload"
HOLD = (WORKLOAD, "alloc", "--mib", "100", "--hold-until-signal")
LOCK = "hami.io/mutex.lock"
PHASE = "hami.io/bind-phase"
ENDS = ("Succeeded", "Failed")
PATIENCE_SECONDS = 120.0
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
            _mount_driver(body, self.node)
        return await self.kube.post(self.pods_path, body)

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

    async def until_restarted(self, name: str, count: int) -> Json:
        """The pod once its first container runs after so many restarts."""
        return await self.until_pod(
            name, lambda pod: _all_run(pod) and pod["status"]["containerStatuses"][0]["restartCount"] >= count
        )

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
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    async def execute(self, name: str, *command: str, container_name: str = "main") -> str:
        """`kubectl exec`: standard output, with standard error behind it where it failed."""
        control_plane = self.node.cluster.control_plane
        argv = (
            str(control_plane.binaries.kubectl), f"--kubeconfig={control_plane.kubeconfig}",
            f"--namespace={self.namespace}", "exec", name, f"--container={container_name}", "--", *command,
        )  # fmt: skip
        done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else f"{done.stdout}{done.stderr}"

    async def environment(self, name: str, container_name: str = "main") -> dict[str, str]:
        said = await self.execute(name, "env", container_name=container_name)
        return dict(line.split("=", 1) for line in said.splitlines() if "=" in line)

    # ---- the node ----

    async def node_object(self) -> Json:
        return await self.kube.get(f"/api/v1/nodes/{NODE}")

    @asynccontextmanager
    async def node_annotations(self) -> AsyncIterator[list[set[str]]]:
        """Annotation keys of every version of the node that is seen while the block runs."""
        seen: list[set[str]] = []

        async def collect() -> None:
            async with self.kube.watch("/api/v1/nodes") as changes:
                async for change in changes:
                    keys = set(change["object"]["metadata"].get("annotations", {}))
                    seen.append(keys)

        task = asyncio.create_task(collect())
        try:
            yield seen
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def left_of(self, uid: str) -> list[Path]:
        """What the node still has of a pod: specifications, folders, limits."""
        vgpu = self.node.folders.hook / "vgpu"
        places = (CDI_FOLDER, vgpu / "containers", vgpu / "limits")
        return [path for place in places if place.is_dir() for path in place.iterdir() if uid in path.name]

    async def until_nothing_left_of(self, uid: str) -> None:
        """The test's own time limit bounds it."""
        while True:
            if not self.left_of(uid):
                return
            await asyncio.sleep(POLL_SECONDS)

    async def metrics(self, url: str) -> str:
        async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
            return await response.text()

    async def until_metrics(self, url: str, condition: Callable[[str], bool]) -> str:
        """What /metrics shows once the condition holds; the test's own time limit bounds it."""
        while True:
            text = await self.metrics(url)
            if condition(text):
                return text
            await asyncio.sleep(POLL_SECONDS)


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
