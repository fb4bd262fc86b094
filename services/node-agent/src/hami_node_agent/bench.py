"""How long kubelet waits for us where binding is late: `python -m hami_node_agent.bench [CALLS]`, JSON lines.

The service's own Allocate and PreStartContainer over files as on a node (kubelet's checkpoint of 110 pods, our book,
CDI specifications, folders of containers) and over a ledger in memory: API calls, PodResources and gRPC are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import uvloop
from hami_chassis.log import LogSettings, configure_logging
from hami_model import allocations, device_config, kube, vendors
from hami_model.cards import Card, Slice
from hami_model.device_config import VendorSettings
from hami_model.ids import AllocationId, CardId, NodeName
from kubelet_api.checkpoint import Checkpoint, CheckpointData, pod_devices_entry, write_checkpoint
from kubelet_api.constants import CHECKPOINT_FILE
from prometheus_client import CollectorRegistry

from hami_node_agent.adapters.enforcing import Enforcing
from hami_node_agent.adapters.handover_files import HandoverFolders
from hami_node_agent.adapters.host_files import CdiFolder, CheckpointFile
from hami_node_agent.adapters.host_folder import HostFolder
from hami_node_agent.adapters.kubelet_files import KubeletCheckpointFile
from hami_node_agent.adapters.late_binding import LateBinding
from hami_node_agent.adapters.placeholder_handoff import LateBindingHandoff
from hami_node_agent.adapters.showing import Showing
from hami_node_agent.core.backends import EnforcementPolicy
from hami_node_agent.core.device_lists import DeviceRules
from hami_node_agent.core.grant import HostLayout, LimitPolicy
from hami_node_agent.core.inventory import Inventory, OfferedCard
from hami_node_agent.metrics import NodeAgentMetrics
from hami_node_agent.ports import PodLedger

NODE = "bench"
PODS = 110
"""What kubelet allows on a node by default."""
CARDS = 8


class _Ledger(PodLedger):
    def __init__(self, pods: Iterable[kube.Pod]) -> None:
        self._pods = {pod.uid: pod for pod in pods}

    @property
    def has_synced(self) -> bool:
        return True

    def cached(self, uid: str) -> kube.Pod | None:
        return self._pods.get(uid)

    def all_cached(self) -> Iterable[kube.Pod]:
        return self._pods.values()

    async def read(self, uid: str) -> kube.Pod | None:
        return self._pods.get(uid)

    async def read_all(self) -> Sequence[kube.Pod]:
        return list(self._pods.values())


class _Silence:
    """Outcomes that nobody hears."""

    def write(self, pod: kube.Pod, annotations: Mapping[str, str]) -> None:
        pass

    def announce_allocated(self, pod: kube.Pod, verification: str, held_by: object) -> None:
        pass

    def announce_failed(self, pod: kube.Pod, reason: str, holders: Iterable[kube.Pod] = ()) -> None:
        pass

    def warn(self, pod: kube.Pod, reason: str, message: str) -> None:
        pass


class _View(msgspec.Struct, frozen=True):
    inventory: Inventory


def main() -> None:
    configure_logging(LogSettings(level="error"), service="bench")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("calls", nargs="?", type=int, default=1000, help="measured calls a row")
    calls = parser.parse_args().calls
    with tempfile.TemporaryDirectory(prefix="hami-bench") as folder:
        uvloop.run(_measure(Path(folder), calls))


async def _measure(folder: Path, calls: int) -> None:
    settings = next(found for found in device_config.default_config().vendors if found.vendor.word == vendors.NVIDIA)
    cards = [_card(number) for number in range(CARDS)]
    pods = [_pod(number, cards[number % CARDS]) for number in range(PODS)]
    late_binding = _late_binding(folder, settings, cards, pods)
    names = iter(f"name{number}" for number in range(10**9))
    handoff = LateBindingHandoff(late_binding, lambda: next(names))
    await _row("Allocate", calls, lambda number: handoff.allocate([[_device(number)]]))
    await _write_kubelet_checkpoint(folder, handoff, settings, pods)
    await _row("PreStartContainer, first", PODS, lambda number: handoff.pre_start([_device(number)]))
    await _row("PreStartContainer, restart", calls, lambda number: handoff.pre_start([_device(number % PODS)]))


async def _row(name: str, calls: int, call: Callable[[int], Awaitable[object]]) -> None:
    milliseconds, before = [], time.process_time()
    for number in range(calls):
        began = time.perf_counter()
        await call(number)
        milliseconds.append((time.perf_counter() - began) * 1000)
    cpu_seconds = time.process_time() - before
    milliseconds.sort()
    row = {
        "bench": "node-agent",
        "row": name,
        "pods": PODS,
        "calls": calls,
        "p50_ms": round(statistics.median(milliseconds), 3),
        "p99_ms": round(milliseconds[int(calls * 0.99)], 3),
        "max_ms": round(milliseconds[-1], 3),
        "cpu_ms_a_call": round(cpu_seconds * 1000 / calls, 3),
    }
    print(json.dumps(row), flush=True)  # noqa: T201


def _late_binding(folder: Path, settings: VendorSettings, cards: list[Card], pods: list[kube.Pod]) -> LateBinding:
    library = folder / "libvgpu.so"
    library.write_bytes(b"stands for the library")
    layout = HostLayout(hook_path=str(folder / "hook"), lock_dir=str(folder / "lock"))
    files = HostFolder(layout, "")
    files.install(str(library))
    cdi = CdiFolder(folder / "cdi", [])
    cdi.prepare()
    own = CheckpointFile(folder / "state" / "handed-out.json")
    regions = iter(f"{number}.cache" for number in range(10**9))
    inventory = _View(
        Inventory(
            offered=tuple(OfferedCard(card=card, minor=0, numa_node=None, kubelet_ids=card.slots) for card in cards)
        )
    )
    outcomes = _Silence()
    return LateBinding(
        NODE,
        settings,
        own.load(),
        ledger=_Ledger(pods),
        checkpoint=KubeletCheckpointFile(folder),
        ownership=None,
        files=HandoverFolders(files, cdi, own),
        own=own,
        inventory=inventory,
        outcomes=outcomes,
        metrics=NodeAgentMetrics(CollectorRegistry()),
        new_region_name=lambda: next(regions),
        enforcing=Enforcing(
            EnforcementPolicy(), layout, LimitPolicy(), settings, inventory=inventory, outcomes=outcomes
        ),
        showing=Showing("auto", frozenset({"nvidia"}), DeviceRules(), inventory=inventory, mig_driver=None),
    )


def _card(number: int) -> Card:
    card_id = CardId(f"GPU-00000000-0000-0000-0000-{number:012d}")
    return Card(id=card_id, index=number, slots=20, memory_mib=81920, cores_percent=100, model="NVIDIA", healthy=True)


def _pod(number: int, card: Card) -> kube.Pod:
    held = Slice(card_id=card.id, vendor=vendors.NVIDIA, memory_mib=1000 + number, cores_percent=5)
    written = allocations.binding_annotations(
        NodeName(NODE),
        {vendors.NVIDIA: ((held,),)},
        device_config.default_config(),
        allocation_id=AllocationId(f"a{number}"),
        now_seconds=number,
    )
    return kube.Pod(
        metadata=kube.Metadata(name=f"p{number}", namespace="bench", uid=f"u{number}", annotations=written.annotations),
        spec=kube.PodSpec(node_name=NODE, containers=[kube.Container(name="main")]),
        status=kube.PodStatus(phase="Pending"),
    )


def _device(number: int) -> str:
    return f"device-{number}"


async def _write_kubelet_checkpoint(
    folder: Path, handoff: LateBindingHandoff, settings: VendorSettings, pods: list[kube.Pod]
) -> None:
    entries = []
    for number, pod in enumerate(pods):
        answer = (await handoff.allocate([[_device(number)]]))[0]
        entries.append(pod_devices_entry(pod.uid, "main", settings.resources.count, {-1: [_device(number)]}, answer))
    data = CheckpointData(pod_device_entries=entries, registered_devices={})
    await asyncio.to_thread((folder / CHECKPOINT_FILE).write_bytes, write_checkpoint(Checkpoint(data=data)))


if __name__ == "__main__":
    main()
