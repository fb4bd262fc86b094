"""The sample pods: applied, and waited for until each is as its label says."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import yaml
from hami_model import kube

from hami_sim.cluster.errors import ClusterError
from hami_sim.cluster.local_cluster import LocalCluster, Progress, say_nothing
from hami_sim.cluster.observe import observe
from hami_sim.controlplane import RestClient

EXPECTED_LABEL = "example.hami.io/expect"
"""Phase that a sample's pod reaches and stays in: Running, Succeeded, Pending or Failed."""
TIMEOUT_SECONDS = 300.0
USE_TIMEOUT_SECONDS = 15.0
POLL_SECONDS = 0.3

JsonObject = dict[str, Any]


async def apply_samples(
    cluster: LocalCluster, folder: Path, *, namespace: str = "default", progress: Progress = say_nothing
) -> None:
    """Raises ClusterError when they cannot be applied or are not as expected in time."""
    progress(f"applying the sample pods of {folder}")
    kubectl = str(cluster.control_plane.binaries.kubectl)
    arguments = ("--kubeconfig", str(cluster.kubeconfig), "--namespace", namespace, "apply", "-f", str(folder))
    process = await asyncio.create_subprocess_exec(
        kubectl, *arguments, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    if process.returncode != 0:
        raise ClusterError(f"the sample pods are refused: {said.decode(errors='replace').strip()}")
    count = expected_count(folder, controllers=cluster.record.profile.controllers)
    progress("waiting until every sample is as it should be")
    async with cluster.client() as client:
        missing = await wait_for_samples(client, count, namespace)
        if missing is not None:
            raise ClusterError(f"after {TIMEOUT_SECONDS:.0f} s {missing}")
    progress("waiting for the first samples of what is used")
    await _wait_for_use(cluster)


async def _wait_for_use(cluster: LocalCluster) -> None:
    """Returns when what running pods use is known; a monitor that says nothing is told by the table."""
    deadline = time.monotonic() + USE_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        status = await observe(cluster)
        running = [pod for pod in status.pods if pod.phase == "Running" and pod.cards]
        if all(any(held.memory_used_mib is not None for held in pod.cards) for pod in running):
            return
        await asyncio.sleep(POLL_SECONDS)


def expected_count(folder: Path, *, controllers: bool) -> int:
    """How many pods the manifests make; without controllers nobody makes those of a Deployment."""
    documents: list[JsonObject] = [
        document
        for file in sorted(folder.glob("*.yaml"))
        for document in yaml.safe_load_all(file.read_text(encoding="utf-8"))
        if document
    ]
    deployed = [int(document["spec"].get("replicas", 1)) for document in documents if document["kind"] == "Deployment"]
    return sum(deployed) * controllers + sum(1 for document in documents if document["kind"] == "Pod")


async def wait_for_samples(client: RestClient, count: int, namespace: str) -> str | None:
    """None when all pods are in the phase of their label, else what is missing after the time."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        listed = await client.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=EXPECTED_LABEL)
        missing = missing_in(msgspec.convert(listed["items"], list[kube.Pod]), count)
        if missing is None or time.monotonic() > deadline:
            return missing
        await asyncio.sleep(POLL_SECONDS)


def missing_in(pods: list[kube.Pod], count: int) -> str | None:
    """What the first pod that is not as expected still lacks."""
    if len(pods) < count:
        return f"there are {len(pods)} of {count} sample pods"
    for pod in pods:
        expected = pod.labels[EXPECTED_LABEL]
        scheduled = pod.condition("PodScheduled")
        if expected == "Pending" and (scheduled is None or scheduled.status != "False"):
            return f"pod {pod.key} has not been looked at by the scheduler"
        if pod.status.phase != expected:
            why = scheduled.message if scheduled is not None and scheduled.message else pod.status.reason
            return f"pod {pod.key} is {pod.status.phase or 'new'}, not {expected} {why}".rstrip()
    return None
