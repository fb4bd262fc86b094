"""How long a start takes and how much memory it leaves: `python -m hami_scheduler.bench_start [NODES PODS]`, JSON.

The real process lists a cluster from a local server that streams prepared pages, as an API server does, and is timed
until it is ready.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from aiohttp import web
from hami_model import register
from hami_model.cards import Card
from hami_model.ids import CardId
from hami_model.vendors import vendor

PAGE = 500
CARDS = 8
NVIDIA = vendor("NVIDIA")
_MIB = 1 << 20


def _pod(number: int, nodes: int) -> dict[str, Any]:
    """A bound pod of more than 4 kB, most of it things that are not read."""
    node, index = number % nodes, (number // nodes) % CARDS
    ask = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4k", "nvidia.com/gpucores": "10"}
    return {
        "metadata": {
            "name": f"pod-{number}",
            "namespace": f"team-{number % 50}",
            "uid": f"00000000-0000-4000-8000-{number:012}",
            "resourceVersion": str(number + 1),
            "labels": {"app": f"app-{number % 500}", "hami.io/vgpu-node": f"node-{node:05}"},
            "annotations": {
                "hami.io/vgpu-node": f"node-{node:05}",
                "hami.io/vgpu-time": "1767225600",
                "hami.io/allocation-id": f"0199aaaa-0000-7000-8000-{number:012}",
                NVIDIA.allocated_key: f"GPU-{node:05}-{index},NVIDIA,4000,10:;",
                NVIDIA.to_allocate_key: f"GPU-{node:05}-{index},NVIDIA,4000,10:;",
            },
            "managedFields": [{"manager": "kubelet", "fieldsV1": {f"f:field-{n}": {} for n in range(90)}}],
        },
        "spec": {
            "nodeName": f"node-{node:05}",
            "schedulerName": "hami-scheduler",
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/team/model:1",
                    "env": [{"name": f"VARIABLE_{n}", "value": "x" * 40} for n in range(20)],
                    "resources": {"limits": ask, "requests": ask},
                    "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
                }
            ],
        },
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
                for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
            ],
            "containerStatuses": [{"name": "main", "ready": True, "imageID": "sha256:" + "0" * 64}],
        },
    }


def _node(number: int) -> dict[str, Any]:
    cards = [
        Card(
            id=CardId(f"GPU-{number:05}-{index}"),
            index=index,
            slots=10,
            memory_mib=81_920,
            cores_percent=100,
            model="NVIDIA A100-SXM4-80GB",
            mode="hami-core",
            healthy=True,
        )
        for index in range(CARDS)
    ]
    return {
        "metadata": {
            "name": f"node-{number:05}",
            "uid": f"node-{number:05}",
            "resourceVersion": str(number + 1),
            "annotations": {
                NVIDIA.register_key: register.encode(NVIDIA, cards, "late-binding"),
                NVIDIA.handshake_key: "Requesting_2026.01.01 00:00:00",
            },
        },
        "status": {"allocatable": {"nvidia.com/gpu": "80"}, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def _pages(items: list[dict[str, Any]]) -> list[bytes]:
    chunks = [items[at : at + PAGE] for at in range(0, len(items), PAGE)] or [[]]
    return [
        msgspec.json.encode(
            {
                "metadata": {
                    "resourceVersion": "1000000",
                    **({"continue": str(at + 1)} if at + 1 < len(chunks) else {}),
                },
                "items": chunk,
            }
        )
        for at, chunk in enumerate(chunks)
    ]


def _serve(nodes: int, pods: int, port_to: Connection) -> None:
    uvloop.run(_serve_for_ever(nodes, pods, port_to))


async def _serve_for_ever(nodes: int, pods: int, port_to: Connection) -> None:
    lists = {
        "nodes": _pages([_node(number) for number in range(nodes)]),
        "pods": _pages([_pod(number, nodes) for number in range(pods)]),
        "resourcequotas": _pages([]),
    }

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            page = int(request.query.get("continue", "0"))
            return web.Response(body=lists[request.match_info["plural"]][page], content_type="application/json")
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.Event().wait()
        return response

    app = web.Application()
    app.router.add_get("/api/v1/{plural}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port_to.send((runner.addresses[0][1], sum(len(page) for page in lists["pods"]) // max(pods, 1)))
    await asyncio.Event().wait()


def measure(nodes: int, pods: int) -> dict[str, Any]:
    """Seconds from the start of the process to readiness, its processor time and memory then."""
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(nodes, pods, there), daemon=True)
    server.start()
    port, pod_bytes = here.recv()
    observed = _free_port()
    sets = [
        f"kube.kubeconfig=http://127.0.0.1:{port}",
        "bus.servers=",
        "election.enabled=false",
        "extender.http.port=0",
        f"observation.port={observed}",
        "metrics.per_card=false",
    ]
    argv = [sys.executable, "-m", "hami_scheduler.main", "serve", *(part for each in sets for part in ("--set", each))]
    began = time.perf_counter()
    scheduler = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not _ready(observed):
            if scheduler.poll() is not None:
                raise SystemExit(f"the scheduler ended with status {scheduler.returncode}")
            time.sleep(0.05)
        taken = time.perf_counter() - began
        status = Path(f"/proc/{scheduler.pid}/status").read_text(encoding="ascii")
        cpu = Path(f"/proc/{scheduler.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    finally:
        scheduler.terminate()
        scheduler.wait()
        server.terminate()
        server.join()
    memory = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("Vm")}
    return {
        "bench": "scheduler-start",
        "nodes": nodes,
        "pods": pods,
        "pod_bytes": pod_bytes,
        "ready_seconds": round(taken, 2),
        "cpu_seconds": (int(cpu[11]) + int(cpu[12])) / os.sysconf("SC_CLK_TCK"),
        "resident_mib": memory["VmRSS"] // _MIB,
        "peak_resident_mib": memory["VmHWM"] // _MIB,
    }


def _free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port: int = chosen.getsockname()[1]
        return port


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1):
            return True
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nodes", nargs="?", type=int, default=5_000)
    parser.add_argument("pods", nargs="?", type=int, default=50_000)
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.nodes, arguments.pods)))  # noqa: T201
