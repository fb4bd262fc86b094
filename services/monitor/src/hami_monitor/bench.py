"""What the monitor costs a node: `python -m hami_monitor.bench [--containers 100] [--seconds 60]`, one JSON object.

The service's own loops (samples and events, feedback, host pids, scrapes) at their usual periods, over real region
files, limits pages and processes, which do nothing but live. All containers launch all the time. It is measured from
when everything has been seen once. The API server, NATS and the driver are left out: pods stand in memory, events are
encoded and dropped, and the cards are told as read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import mmap
import os
import resource
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import uvloop
from hami_chassis.clock import SystemClock
from hami_chassis.log import LogSettings, configure_logging
from hami_model import device_config, events, kube, limits_page
from hami_model.limits_page import CardLimits, LimitsPage
from prometheus_client import CollectorRegistry, generate_latest

from hami_monitor.adapters.exposition import SampleCollector, SeriesCollector
from hami_monitor.adapters.limits_pages import LimitsPages
from hami_monitor.adapters.proc import ProcProcesses
from hami_monitor.adapters.region_files import RegionFiles
from hami_monitor.adapters.region_writing import RegionWriting
from hami_monitor.config import MonitorSettings
from hami_monitor.core.feedback_series import feedback_series
from hami_monitor.core.host import HostCard, HostProcess, HostReading
from hami_monitor.core.pods import MonitoredPod, monitored_pod
from hami_monitor.core.process_trace import process_stat
from hami_monitor.core.region_layouts import (
    EXTENSION_MAGIC,
    EXTENSION_OFFSET,
    EXTENSION_OWNER_BYTES,
    EXTENSION_OWNERS,
    MAGIC,
    SLOT_MAX,
    UUID_BYTES,
    V1,
)
from hami_monitor.feeding_back import FeedbackLoop
from hami_monitor.host_pid_watch import HostPidWatch
from hami_monitor.metrics import MonitorMetrics
from hami_monitor.watching import HostWatch, Sampler

BUDGET_PERCENT: Final = 2.0
"""Of a core, at 100 containers."""
CARDS: Final = 8
SCRAPE_SECONDS: Final = 15.0
MIB: Final = 1 << 20
NODE: Final = "bench"


def card_id(index: int) -> str:
    return f"GPU-00000000-0000-4000-8000-{index:012x}"


class Node:
    """Pods in memory, each with one container, whose region is on disk and whose one process lives."""

    def __init__(self, root: Path, containers: int) -> None:
        self.root = root
        self.pods = [_pod(number) for number in range(containers)]
        for number in range(containers):
            _write_page(root / "limits" / f"uid-{number}_main", card_id(number % CARDS))
        self.files = [
            _new_region(root / "containers" / f"uid-{number}_main", card_id(number % CARDS))
            for number in range(containers)
        ]
        self.pids = [_start_process(file) for file in self.files]
        self.events: Counter[str] = Counter()

    def values(self) -> Iterable[MonitoredPod]:
        return self.pods

    async def resync(self) -> None: ...

    def read(self) -> HostReading:
        """The driver's view."""
        return HostReading(
            cards=tuple(
                HostCard(
                    id=card_id(index),
                    index=index,
                    memory_total_bytes=81920 * MIB,
                    memory_used_bytes=1024 * MIB,
                    utilisation_percent=90,
                    processes=tuple(
                        HostProcess(pid=pid, memory_used_bytes=100 * MIB, utilisation_percent=5)
                        for pid in self.pids[index::CARDS]
                    ),
                )
                for index in range(CARDS)
            )
        )

    def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> None:
        self.events["bytes"] += len(subject) + len(payload) + sum(map(len, headers))
        self.events["count"] += 1

    def launch(self) -> None:
        """As the library does at every launch."""
        for file in self.files:
            os.pwrite(file, struct.pack("<i", 2), V1.recent_kernel)
            os.pwrite(file, struct.pack("<q", int(time.time())), V1.last_kernel_time or 0)

    def end(self) -> None:
        for file in self.files:
            os.close(file)
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


async def measure(node: Node, *, seconds: float, settings: MonitorSettings) -> dict[str, float]:
    known = asyncio.Event()
    known.set()
    registry, clock = CollectorRegistry(), SystemClock()
    metrics, regions = MonitorMetrics(registry), RegionFiles(node.root / "containers")
    host = HostWatch(node, period_seconds=settings.sampling.period_seconds, metrics=metrics, clock=clock)
    sampler = Sampler(
        node=NODE,
        period_seconds=settings.sampling.period_seconds,
        regions=regions,
        owners=ProcProcesses(),
        pages=LimitsPages(node.root / "limits"),
        pods=node,
        pods_known=known,
        host=host,
        sink=node,
        source=events.source("monitor", NODE),
        prefix=settings.events.prefix,
        metrics=metrics,
        clock=clock,
    )
    feedback = FeedbackLoop(
        period_seconds=settings.feedback.period_seconds,
        hold_ticks=settings.feedback.hold_ticks,
        regions=regions,
        sink=RegionWriting(node.root / "containers"),
        pages=LimitsPages(node.root / "limits"),
        pods=node,
        pods_known=known,
        metrics=metrics,
        clock=clock,
    )
    host_pids = HostPidWatch(
        period_seconds=settings.host_pids.period_seconds,
        regions=regions,
        sink=RegionWriting(node.root / "containers"),
        processes=ProcProcesses(),
        pods=node,
        pods_known=known,
        metrics=metrics,
        clock=clock,
    )
    registry.register(SampleCollector(lambda: sampler.last, hami_names=False, hami_legacy_names=False, version="bench"))
    registry.register(SeriesCollector(lambda: feedback_series(NODE, feedback.pods, feedback.last)))

    async def scrape() -> None:
        while True:
            generate_latest(registry)
            await clock.sleep(SCRAPE_SECONDS)

    loops = [asyncio.ensure_future(run()) for run in (host.run, sampler.run, feedback.run, host_pids.run, scrape)]
    await asyncio.sleep(settings.sampling.period_seconds * 1.5)
    began, used = time.monotonic(), time.process_time()
    while time.monotonic() - began < seconds:
        before = time.process_time()
        node.launch()
        used += time.process_time() - before  # the containers' own doing
        await asyncio.sleep(1.0)
    spent, lasted = time.process_time() - used, time.monotonic() - began
    for loop in loops:
        loop.cancel()
    await asyncio.gather(*loops, return_exceptions=True)
    return {
        "seconds": round(lasted, 1),
        "cpu_seconds": round(spent, 3),
        "core_percent": round(100 * spent / lasted, 2),
        "events": node.events["count"],
        "event_bytes": node.events["bytes"],
        "memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--containers", type=int, default=100, metavar="N")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S")
    parser.add_argument("--check-budget", action="store_true", help="exit with 1 when it costs more than the budget")
    options = parser.parse_args(arguments)
    configure_logging(LogSettings(level="warning"), service="monitor", node=NODE)
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder), options.containers)
        try:
            found = uvloop.run(measure(node, seconds=options.seconds, settings=MonitorSettings()))
        finally:
            node.end()
    within = found["core_percent"] <= BUDGET_PERCENT
    result = {"name": "monitor", "containers": options.containers, **found, "budget_percent": BUDGET_PERCENT}
    sys.stdout.write(json.dumps({**result, "within_budget": within}) + "\n")
    return 1 if options.check_budget and not within else 0


def _pod(number: int) -> MonitoredPod:
    pod = kube.Pod(
        metadata=kube.Metadata(
            name=f"pod-{number}",
            namespace="bench",
            uid=f"uid-{number}",
            annotations={"hami.io/vgpu-devices-allocated": f"{card_id(number % CARDS)},NVIDIA,4000,10:;"},
        ),
        spec=kube.PodSpec(node_name=NODE, containers=[kube.Container(name="main")]),
        status=kube.PodStatus(phase="Running"),
    )
    return monitored_pod(pod, device_config.default_config())


def _write_page(folder: Path, card: str) -> None:
    limits = LimitsPage(
        region_file="/usr/local/vgpu/a.cache",
        cards=(CardLimits(uuid=card, memory_limit_bytes=4000 * MIB, cores_percent=10),),
    )
    folder.mkdir(parents=True)
    (folder / "page").write_bytes(limits_page.encode(limits))


def _new_region(folder: Path, card: str) -> int:
    """As our library makes it; an open descriptor of it."""
    data = bytearray(EXTENSION_OFFSET + EXTENSION_OWNERS + SLOT_MAX * EXTENSION_OWNER_BYTES)
    struct.pack_into("<iII", data, 0, MAGIC, 1, 3)
    struct.pack_into("<Q", data, V1.device_count, 1)
    struct.pack_into(f"{UUID_BYTES}s", data, V1.uuids, card.encode())
    struct.pack_into("<i", data, V1.slots + V1.status, 1)
    struct.pack_into("<Q", data, V1.slots + V1.used.start + V1.used.total, 100 * MIB)
    struct.pack_into("<4i", data, V1.slot_count, 1, 1, 2, 1)
    data[EXTENSION_OFFSET : EXTENSION_OFFSET + len(EXTENSION_MAGIC)] = EXTENSION_MAGIC
    folder.mkdir(parents=True)
    (folder / "a.cache").write_bytes(data)
    return os.open(folder / "a.cache", os.O_RDWR | os.O_CLOEXEC)


def _start_process(file: int) -> int:
    """The pid of one that has the region mapped, and takes its first slot."""
    pid = os.fork()
    if pid == 0:
        with mmap.mmap(file, 0):
            while True:
                signal.pause()
    stat = process_stat(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8"))
    os.pwrite(file, struct.pack("<i", pid), V1.slots)
    os.pwrite(
        file, struct.pack("<Q", stat.began_at_ticks if stat is not None else 0), EXTENSION_OFFSET + EXTENSION_OWNERS
    )
    return pid


if __name__ == "__main__":
    sys.exit(main())
