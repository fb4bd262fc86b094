"""How long a filter call takes from request to answer: `python -m hami_scheduler.bench [SIZE …]`, JSON lines.

The service's own endpoint on a loopback socket, in a process of its own, over a book filled without an API server;
the caller sends what kube-scheduler sends: the pod and the names of all nodes. No write follows, events apart.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import msgspec
import uvloop
from hami_chassis.clock import SystemClock
from hami_chassis.http import HttpServer, HttpSettings
from hami_chassis.kube.events import ObjectReference
from hami_chassis.log import LogSettings, configure_logging
from hami_model import allocation_id, device_config, kube, register
from hami_model.cards import Card
from hami_model.ids import AllocationId, CardId
from hami_model.requests import Policies
from hami_model.vendors import vendor
from prometheus_client import CollectorRegistry

from hami_scheduler.adapters.http_extender import ExtenderEndpoint
from hami_scheduler.bookkeeper import Bookkeeper
from hami_scheduler.config import ExtenderSettings
from hami_scheduler.core.advice import Case, Looked
from hami_scheduler.core.announcements import Announcements
from hami_scheduler.core.extender import BindArguments
from hami_scheduler.core.ledger import Ledger
from hami_scheduler.garbage import keep_out_of_collections
from hami_scheduler.metrics import SchedulerMetrics

NVIDIA = vendor("NVIDIA")
MEMORY_MIB = 81_920
SEED = 1


class Size(msgspec.Struct, frozen=True):
    name: str
    nodes: int
    cards: int
    pods: int
    calls: int


SIZES = {size.name: size for size in (Size("100x16", 100, 16, 5_000, 2_000), Size("5000x8", 5_000, 8, 80_000, 500))}


class _Silence:
    """Takes what the bookkeeper tells, and does nothing with it."""

    def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> None: ...

    def emit(
        self,
        about: ObjectReference,  # noqa: ARG002
        *,
        reason: str,  # noqa: ARG002
        message: str,  # noqa: ARG002
        event_type: Literal["Normal", "Warning"] = "Normal",  # noqa: ARG002
    ) -> bool:
        return True

    def capacity_grew(self, cause: str, *, watched: bool) -> None: ...
    def take(self, case: Case, tell: Callable[[Looked], None]) -> bool:  # noqa: ARG002
        return True

    def strip_allocation(self, pod: kube.Pod) -> None: ...
    def withdraw_allocation(self, pod: kube.Pod, allocation_id: AllocationId) -> None: ...
    def label_bound(self, pod: kube.Pod) -> None: ...
    def stamp_node(self, node: str, annotations: Mapping[str, str]) -> None: ...

    async def bind(self, asked: BindArguments) -> str:
        return f"pod {asked.pod_name}: this measures filter calls only"


def _pod(uid: str, memory_mib: int, **fields: Any) -> dict[str, Any]:  # noqa: ANN401  # fields of the spec
    ask = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(memory_mib), "nvidia.com/gpucores": "10"}
    padding = [{"name": f"VARIABLE_{number}", "value": "x" * 40} for number in range(40)]
    return {
        "metadata": {
            "name": uid,
            "namespace": "default",
            "uid": uid,
            "resourceVersion": "1",
            **fields.pop("metadata", {}),
        },
        "spec": {
            "containers": [
                {"name": "main", "image": "x", "env": padding, "resources": {"limits": ask, "requests": ask}}
            ],
            **fields,
        },
    }


def fill(size: Size, policies: Policies) -> Ledger:
    """A book with pods of mixed sizes on cards chosen at random, always the same."""
    ledger = Ledger(device_config.default_config(), policies)
    ledger.adopting = False
    now = datetime.now(UTC)
    chosen = random.Random(SEED)  # noqa: S311  # a fixed load, no secret
    for number in range(size.nodes):
        cards = [
            Card(
                id=CardId(f"GPU-{number:05}-{index}"),
                index=index,
                slots=10,
                memory_mib=MEMORY_MIB,
                cores_percent=100,
                model="NVIDIA A100-SXM4-80GB",
                mode="hami-core",
                healthy=True,
            )
            for index in range(size.cards)
        ]
        node = kube.Node(
            metadata=kube.Metadata(
                name=f"node-{number:05}",
                resource_version="1",
                annotations={NVIDIA.register_key: register.encode(NVIDIA, cards, "late-binding")},
            ),
            status=kube.NodeStatus(allocatable={"nvidia.com/gpu": str(10 * size.cards)}),
        )
        ledger.upsert_node(node, now)
    for number in range(size.pods):
        node_number, index = (number // size.cards) % size.nodes, number % size.cards
        text = f"GPU-{node_number:05}-{index},NVIDIA,{chosen.choice((4096, 8192, 16384))},10:;"
        document = _pod(
            f"pod-{number}",
            4096,
            metadata={"annotations": {NVIDIA.allocated_key: text}},
            nodeName=f"node-{node_number:05}",
        )
        ledger.upsert_pod(msgspec.convert(document, kube.Pod), now)
    return ledger


def _serve(size: Size, node_policy: str, port_to: Connection) -> None:
    uvloop.run(_serve_for_ever(size, node_policy, port_to))


async def _serve_for_ever(size: Size, node_policy: str, port_to: Connection) -> None:
    configure_logging(LogSettings(level="error"), service="bench")  # only rows go to standard output
    silence, clock, metrics = _Silence(), SystemClock(), SchedulerMetrics(CollectorRegistry())
    bookkeeper = Bookkeeper(
        fill(size, Policies(node=node_policy)),
        rejected={},
        announcements=Announcements("/hami/scheduler/bench"),
        sink=silence,
        prefix="hami",
        board=silence,
        alarm=silence,
        chores=silence,
        adviser=silence,
        metrics=metrics,
        clock=clock,
        new_allocation_id=lambda: allocation_id.uuid7(time.time_ns() // 1_000_000, os.urandom(10)),
        pod_of=lambda _uid: None,
    )
    bookkeeper.in_charge = True
    keep_out_of_collections()
    endpoint = ExtenderEndpoint(
        bookkeeper,
        silence,
        settings=ExtenderSettings(),
        early_annotations=None,
        metrics=metrics,
        clock=clock,
    )
    server = HttpServer(endpoint.app(), HttpSettings())
    serving = asyncio.create_task(server.run())
    await server.listening.wait()
    port_to.send(server.port)
    await serving


def measure(size: Size, node_policy: str, row: str) -> dict[str, Any]:
    """One row: milliseconds from request to answer."""
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_serve, args=(size, node_policy, there), daemon=True)
    process.start()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", here.recv())
        names = [f"node-{number:05}" for number in range(size.nodes)]
        memory = 4096 if row == "fits" else MEMORY_MIB + 1
        bodies = [
            json.dumps({"Pod": _pod(f"new-{n}", memory), "Nodes": None, "NodeNames": names}).encode() for n in range(50)
        ]
        for body in bodies:  # these warm up
            _call(connection, body, row)
        cpu_before = _cpu_seconds(process.pid)
        taken = sorted(_call(connection, bodies[number % len(bodies)], row) for number in range(size.calls))
        cpu_seconds = _cpu_seconds(process.pid) - cpu_before
    finally:
        process.terminate()
        process.join()
    return {
        "bench": "scheduler-filter",
        "size": size.name,
        "pods": size.pods,
        "policy": node_policy,
        "row": row,
        "calls": len(taken),
        "request_bytes": len(bodies[0]),
        "p50_ms": round(statistics.median(taken), 3),
        "p99_ms": round(taken[int(len(taken) * 0.99)], 3),
        "max_ms": round(taken[-1], 3),
        "cpu_ms_a_call": round(cpu_seconds * 1000 / len(taken), 3),
    }


def _cpu_seconds(pid: int | None) -> float:
    """Processor time of the serving process: holds on a busy machine too."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _call(connection: http.client.HTTPConnection, body: bytes, row: str) -> float:
    began = time.perf_counter()
    connection.request("POST", "/filter", body)
    answer = connection.getresponse().read()
    taken = (time.perf_counter() - began) * 1000
    fits = msgspec.json.decode(answer)["NodeNames"] is not None
    if fits is not (row == "fits"):
        raise SystemExit(f"the bench measures something else than it says: {answer[:300]!r}")
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", metavar="SIZE", help=f"of {', '.join(SIZES)}; all when none is given")
    chosen = parser.parse_args().sizes or list(SIZES)
    unknown = [name for name in chosen if name not in SIZES]
    if unknown:
        parser.error(f"unknown size {', '.join(unknown)}; known: {', '.join(SIZES)}")
    for name in chosen:
        for policy in ("binpack", "spread"):
            for row in ("fits", "fits-nowhere"):
                print(json.dumps(measure(SIZES[name], policy, row)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
