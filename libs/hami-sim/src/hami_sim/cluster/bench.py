"""How long pods take through the whole cluster: `python -m hami_sim.cluster.bench [--nodes 20] [--pods 500]`.

JSON lines: from the creation of a pod to its running process, on an otherwise idle cluster; from a card's XID to the
scheduler's book without it; pods per second when many come at once; resident memory of each service afterwards. The
cluster is made for it and removed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hami_sim.cluster.bench_health import xid_to_out_of_placement
from hami_sim.cluster.local_cluster import LocalCluster
from hami_sim.cluster.profile import uniform_profile
from hami_sim.cluster.starting import start_cluster
from hami_sim.cluster.workload_pod import CONTAINER, Slice, workload_pod
from hami_sim.controlplane import RestClient

CARDS = 8
WARM_UP = 3
ONE_BY_ONE = 30
CREATING_AT_ONCE = 32
POLL_SECONDS = 0.25
PODS = "/api/v1/namespaces/default/pods"
SMALL = Slice(cards=1, memory_mib=1000, cores_percent=5)
COMMAND = ("vgpu-workload", "info")

Json = dict[str, Any]


async def measure(directory: Path, nodes: int, pods: int) -> None:
    """Starts the cluster, measures, prints, ends it."""
    cluster = await start_cluster(directory, uniform_profile(nodes, CARDS), progress=_say)
    try:
        async with cluster.client() as client:
            _say(f"{ONE_BY_ONE} pods one by one")
            _print(await one_by_one(cluster, client))
            _say("cards that break")
            _print(await xid_to_out_of_placement(cluster, client))
            _say(f"{pods} pods at once on {nodes} nodes")
            _print(await all_at_once(cluster, client, pods, nodes))
        for line in memory(cluster):
            _print(line)
    finally:
        await cluster.stop()


async def one_by_one(cluster: LocalCluster, client: RestClient) -> Json:
    """Milliseconds from the request that creates a pod to the start of its process."""
    waits: list[float] = []
    for number in range(WARM_UP + ONE_BY_ONE):
        asked_at = time.time()
        created = await client.post(PODS, workload_pod(f"single-{number}", COMMAND, SMALL, {}))
        pod = await client.wait_until(f"{PODS}/{created['metadata']['name']}", _is_over)
        waits.append((started_at(cluster, pod or created) - asked_at) * 1000)
    counted = sorted(waits[WARM_UP:])
    return {
        "bench": "pod-create-to-process",
        "pods": len(counted),
        "p50_ms": round(statistics.median(counted), 1),
        "p90_ms": round(counted[int(len(counted) * 0.9)], 1),
        "max_ms": round(counted[-1], 1),
    }


async def all_at_once(cluster: LocalCluster, client: RestClient, count: int, nodes: int) -> Json:
    """Pods per second, from the first request to the start of the last process."""
    await client.delete(PODS, gracePeriodSeconds="0")
    await client.wait_until(PODS, lambda found: found is not None and not found["items"], timeout_seconds=120)
    permits = asyncio.Semaphore(CREATING_AT_ONCE)

    async def create(number: int) -> None:
        async with permits:
            await client.post(PODS, workload_pod(f"many-{number}", COMMAND, SMALL, {}))

    asked_at = time.time()
    await asyncio.gather(*(create(number) for number in range(count)))
    created_at = time.time()
    while True:
        pods = (await client.get(PODS))["items"]
        if len(pods) == count and all(_is_over(pod) for pod in pods):
            break
        await asyncio.sleep(POLL_SECONDS)
    last = max(started_at(cluster, pod) for pod in pods)
    return {
        "bench": "pods-at-once",
        "pods": count,
        "nodes": nodes,
        "failed": sum(pod["status"]["phase"] == "Failed" for pod in pods),
        "seconds_to_create": round(created_at - asked_at, 2),
        "seconds": round(last - asked_at, 2),
        "pods_per_second": round(count / (last - asked_at), 1),
    }


def started_at(cluster: LocalCluster, pod: Json) -> float:
    """When the pod's process was started, seconds since the epoch; the stand-in writes it down to the microsecond."""
    containers = cluster.node_layout(pod["spec"]["nodeName"]).kubelet / "containers"
    state: Json = json.loads((containers / pod["metadata"]["uid"] / CONTAINER / "0" / "state.json").read_text())
    return float(state["started_at"])


def memory(cluster: LocalCluster) -> list[Json]:
    """Resident MiB; of services that run once per node the largest."""
    found: dict[str, int] = {}
    for name, program in cluster.programs().items():
        kind = name
        if name in cluster.specs and cluster.specs[name].node:
            kind = name.removesuffix(f"-{cluster.specs[name].node}")
        found[kind] = max(found.get(kind, 0), _resident_mib(program.pid))
    return [{"bench": "memory", "service": name, "resident_mib": size} for name, size in found.items()]


def _is_over(pod: Json | None) -> bool:
    return pod is not None and pod["status"].get("phase") in ("Succeeded", "Failed")


def _resident_mib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS:")), 0)


def _print(line: Json) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _say(line: str) -> None:
    sys.stderr.write(f"bench: {line}\n")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--pods", type=int, default=500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hami-bench-") as folder:
        asyncio.run(measure(Path(folder) / "s", options.nodes, options.pods))


if __name__ == "__main__":
    main()
