"""The kubelet stand-in as a process on a real API server with controllers: what MemoryKube only imitates."""

import asyncio
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hami_sim.controlplane import ControlPlane, RestClient
from hami_sim.kubelet import end_containers
from hami_sim.kubelet.processes import ContainerProcess
from hami_sim.kubelet.scripted_plugin import ScriptedPlugin
from kubelet_api.deviceplugin_v1beta1_pb2 import ContainerAllocateResponse

RESOURCE = "example.com/gpu"


@pytest.fixture
async def root() -> AsyncIterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="kl"))
    yield folder
    for node in folder.glob("n*"):  # noqa: ASYNC240 (a test's own folder)
        await end_containers(node)
    shutil.rmtree(folder)


@asynccontextmanager
async def stand_ins(control_plane: ControlPlane, root: Path, names: list[str]) -> AsyncIterator[None]:
    certificate, key = control_plane.issue_serving_certificate("kubelet-stand-in", ("127.0.0.1", "localhost"))
    config = root / "config.json"
    config.write_text(
        json.dumps(
            {
                "kube": {"kubeconfig": str(control_plane.kubeconfig)},
                "logs": {"certificate": str(certificate), "key": str(key)},
                "nodes": [
                    {
                        "node_name": name,
                        "root_dir": str(root / f"n{index}"),
                        "mode": "prefix",
                        "time_scale": 0.02,
                        "lease_renew_seconds": 1.0,
                    }
                    for index, name in enumerate(names)
                ],
            }
        )
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hami_sim.kubelet.main", "--config", str(config)
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


def ready(node: dict | None) -> bool:
    if node is None:
        return False
    status = {c["type"]: c["status"] for c in node.get("status", {}).get("conditions", [])}
    return status.get("Ready") == "True" and not node["spec"].get("taints")


def gpu_pod(name: str, script: str, gpus: int = 1, **spec) -> dict:
    main = {
        "name": "main",
        "image": "any",
        "command": ["/bin/sh", "-c", script],
        "resources": {"limits": {RESOURCE: str(gpus)}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "containers": [main], **spec},
    }


async def test_a_pod_from_the_scheduler_to_its_logs(
    control_plane: ControlPlane, kube: RestClient, namespace: str, root: Path
):
    node = f"node-{namespace}"
    pods = f"/api/v1/namespaces/{namespace}/pods"
    plugin = ScriptedPlugin(RESOURCE, ["a", "b"])
    plugin.allocate = lambda ids: ContainerAllocateResponse(envs={"HELD": ",".join(sorted(ids))})
    async with stand_ins(control_plane, root, [node]):
        await kube.wait_until(f"/api/v1/nodes/{node}", ready)
        async with plugin.serving(root / "n0/device-plugins"):
            await kube.wait_until(f"/api/v1/nodes/{node}", lambda o: o["status"]["allocatable"].get(RESOURCE) == "2")
            path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}"
            lease = await kube.wait_until(path, lambda o: o is not None)
            assert lease["spec"]["holderIdentity"] == node

            await kube.post(pods, gpu_pod("short", "echo $HELD; echo done", 2))
            short = await kube.wait_until(f"{pods}/short", lambda o: o["status"]["phase"] == "Succeeded")
            assert short["spec"]["nodeName"] == node
            assert short["status"]["qosClass"] == "BestEffort"
            conditions = {c["type"]: c["status"] for c in short["status"]["conditions"]}
            assert conditions["PodScheduled"] == "True"
            assert await logs(control_plane, namespace, "short") == "a,b\ndone\n"
            assert await logs(control_plane, namespace, "short", "--tail=1") == "done\n"

            await kube.post(
                pods, gpu_pod("long", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done")
            )
            running = await kube.wait_until(f"{pods}/long", lambda o: o["status"]["phase"] == "Running")
            assert {c["type"]: c["status"] for c in running["status"]["conditions"]}["Ready"] == "True"
            following = await kubectl_logs(control_plane, namespace, "long", "--follow")
            assert following.stdout is not None
            assert await following.stdout.readline() == b"up\n"
            await kube.delete(f"{pods}/long")
            assert await following.communicate() == (b"bye\n", None)
            await kube.wait_until(pods, lambda o: [pod["metadata"]["name"] for pod in o["items"]] == ["short"])


async def test_a_deployment_and_a_stand_in_that_starts_again(
    control_plane: ControlPlane, kube: RestClient, namespace: str, root: Path
):
    names = [f"a-{namespace}", f"b-{namespace}"]
    pods = f"/api/v1/namespaces/{namespace}/pods"
    template = {
        "metadata": {"labels": {"app": "x"}},
        "spec": {
            "nodeSelector": {"set": namespace},
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "any", "command": ["sleep", "3600"]}],
        },
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "many"},
        "spec": {"replicas": 4, "selector": {"matchLabels": {"app": "x"}}, "template": template},
    }

    async with stand_ins(control_plane, root, names):
        for name in names:
            await kube.wait_until(f"/api/v1/nodes/{name}", ready)
            await kube.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {"set": namespace}}})
        await kube.post(f"/apis/apps/v1/namespaces/{namespace}/deployments", deployment)
        path = f"/apis/apps/v1/namespaces/{namespace}/deployments/many"
        await kube.wait_until(path, lambda o: o["status"].get("availableReplicas") == 4)
    before = pids(root)
    async with stand_ins(control_plane, root, names):
        await kube.patch(path, {"spec": {"replicas": 1}})
        await kube.wait_until(path, lambda o: o["status"].get("replicas") == 1)
        await kube.wait_until(pods, lambda o: len(o["items"]) == 1)
        after = await pids_once(root, 1)  # the pod goes first, then what the stand-in kept of it
        assert len(before) == 4
        assert after <= before, "the one that stays is the process of before"
        await kube.delete(path)
        await kube.wait_until(pods, lambda o: o["items"] == [])
        await pids_once(root, 0)


async def pids_once(root: Path, count: int) -> set[int]:
    """Once there are that many."""
    async with asyncio.timeout(300):
        while len(found := pids(root)) != count:  # noqa: ASYNC110  # files tell nobody
            await asyncio.sleep(0.05)
    return found


def pids(root: Path) -> set[int]:
    starts = (ContainerProcess(attempt).begin() for node in entries(root) for attempt in attempts(node / "containers"))
    return {start.pid for start in starts if start is not None}


def attempts(containers: Path) -> list[Path]:
    return [attempt for pod in entries(containers) for name in entries(pod) for attempt in entries(name)]


def entries(folder: Path) -> list[Path]:
    """None where it is no folder, or no more: the stand-in removes those of pods that are gone."""
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


async def kubectl_logs(
    control_plane: ControlPlane, namespace: str, pod: str, *options: str
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        str(control_plane.binaries.kubectl),
        f"--kubeconfig={control_plane.kubeconfig}",
        f"--namespace={namespace}",
        "logs",
        *options,
        pod,
        stdout=asyncio.subprocess.PIPE,
    )


async def logs(control_plane: ControlPlane, namespace: str, pod: str, *options: str) -> str:
    process = await kubectl_logs(control_plane, namespace, pod, *options)
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()
