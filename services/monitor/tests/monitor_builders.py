"""Builders of region files, pods, cards and samples."""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence

import msgspec
from hami_model import device_config, kube
from hami_model.limits_page import LimitsPage
from hami_monitor.core.container_folder import FolderOwner, FolderReading
from hami_monitor.core.host import HostCard, HostProcess, HostReading
from hami_monitor.core.pods import MonitoredPod, monitored_pod
from hami_monitor.core.process_trace import ProcessKey, ProcessTrace
from hami_monitor.core.region import Region, read_region
from hami_monitor.core.region_layouts import (
    EXTENSION_MAGIC,
    EXTENSION_OFFSET,
    EXTENSION_OWNER_BYTES,
    EXTENSION_OWNERS,
    MAGIC,
    SLOT_MAX,
    V0,
    V1,
    Layout,
)
from hami_monitor.core.sample import Sample, take_sample

CARD_A = "GPU-00000000-0000-4000-8000-00000000000a"
CARD_B = "GPU-00000000-0000-4000-8000-00000000000b"
NODE = "n1"
NOW_SECONDS = 1_800_000_000.0
MIB = 1 << 20


class Slot(msgspec.Struct, kw_only=True):
    """One process as the library would enter it; `used` and `busy` by card."""

    pid: int = 1
    host_pid: int = 0
    began: int = 0
    status: int = 1
    used: Mapping[int, int] = {}
    context: Mapping[int, int] = {}
    busy: Mapping[int, int] = {}


def region_bytes(
    *,
    layout: Layout = V1,
    version: tuple[int, int] = (1, 2),
    magic: int = MAGIC,
    cards: Sequence[str | bytes] = (CARD_A,),
    device_count: int | None = None,
    limits: Mapping[int, int] | None = None,
    cores: Mapping[int, int] | None = None,
    slots: Sequence[Slot] = (),
    slot_count: int | None = None,
    last_kernel_time: int = 0,
) -> bytes:
    """A region file, one zero byte at its end."""
    data = bytearray(layout.size_bytes + 1)
    struct.pack_into("<i", data, 0, magic)
    if layout is not V0:
        struct.pack_into("<II", data, 4, *version)
    struct.pack_into("<Q", data, layout.device_count, len(cards) if device_count is None else device_count)
    for index, card in enumerate(cards):
        raw = card.encode() if isinstance(card, str) else card
        data[layout.uuids + 96 * index : layout.uuids + 96 * index + len(raw)] = raw
    for index, limit in (limits or {}).items():
        struct.pack_into("<Q", data, layout.memory_limits + 8 * index, limit)
    for index, limit in (cores or {}).items():
        struct.pack_into("<Q", data, layout.cores_limits + 8 * index, limit)
    for number, slot in enumerate(slots):
        start = layout.slots + number * layout.slot_bytes
        struct.pack_into("<ii", data, start, slot.pid, slot.host_pid)
        struct.pack_into("<i", data, start + layout.status, slot.status)
        for index, used in slot.used.items():
            place = start + layout.used.start + index * layout.used.stride
            struct.pack_into("<Q", data, place + layout.used.total, used)
        for index, used in slot.context.items():
            place = start + layout.used.start + index * layout.used.stride
            struct.pack_into("<Q", data, place + layout.used.context, used)
        for index, busy in slot.busy.items():
            struct.pack_into("<Q", data, start + layout.utilisation + index * layout.utilisation_stride, busy)
    count = len(slots) if slot_count is None else slot_count
    struct.pack_into("<4i", data, layout.slot_count, count, 1, 2, 1)
    if layout.last_kernel_time is not None:
        struct.pack_into("<q", data, layout.last_kernel_time, last_kernel_time)
    return bytes(data)


def extended(data: bytes, slots: Sequence[Slot] = ()) -> bytes:
    """The file as our library makes it."""
    extension = bytearray(EXTENSION_OWNERS + SLOT_MAX * EXTENSION_OWNER_BYTES)
    extension[: len(EXTENSION_MAGIC)] = EXTENSION_MAGIC
    for number, slot in enumerate(slots):
        struct.pack_into("<Q", extension, EXTENSION_OWNERS + number * EXTENSION_OWNER_BYTES, slot.began)
    return data.ljust(EXTENSION_OFFSET, b"\0") + bytes(extension)


def our_region(slots: Sequence[Slot] = (), **fields: object) -> Region:
    return read_bytes(extended(region_bytes(version=(1, 3), slots=slots, **fields), slots))  # type: ignore[arg-type]


def trace_of(
    owner: FolderOwner | None,
    pid: int = 1,
    *,
    began: int = 100,
    pids: tuple[int, ...] = (),
    cgroup_pod_uid: str = "",
    cgroup_container_id: str = "",
) -> ProcessTrace:
    return ProcessTrace(
        key=ProcessKey(pid, began),
        name="app",
        pids=pids or (pid,),
        folder=owner,
        cgroup_pod_uid=cgroup_pod_uid,
        cgroup_container_id=cgroup_container_id,
    )


def read_bytes(data: bytes, *, size: int | None = None) -> Region:
    """As the monitor reads a file of that content."""
    return read_region(len(data) if size is None else size, lambda offset, length: data[offset : offset + length])


def region(**fields: object) -> Region:
    return read_bytes(region_bytes(**fields))  # type: ignore[arg-type]


def pod(
    name: str = "p",
    allocated: str = f"{CARD_A},NVIDIA,3000,30:;",
    *,
    containers: Sequence[str] = ("main",),
    init: Sequence[str] = (),
    phase: str = "Running",
    ended: Sequence[str] = (),
    annotations: Mapping[str, str] | None = None,
    runtime_ids: Mapping[str, str] | None = None,
    opted_out: Collection[str] = (),
) -> MonitoredPod:
    """A pod of the node; `allocated` is HAMi's annotation."""
    found = kube.Pod(
        metadata=kube.Metadata(
            name=name,
            namespace="team",
            uid=f"uid-{name}",
            annotations={"hami.io/vgpu-devices-allocated": allocated, **(annotations or {})},
            labels={"hami.io/vgpu-node": NODE},
        ),
        spec=kube.PodSpec(
            node_name=NODE,
            init_containers=[kube.Container(name=found) for found in init],
            containers=[
                kube.Container(
                    name=found,
                    env=[kube.EnvVar(name="CUDA_DISABLE_CONTROL", value="true")] if found in opted_out else None,
                )
                for found in containers
            ],
        ),
        status=kube.PodStatus(
            phase=phase,
            container_statuses=[
                *(
                    kube.ContainerStatus(name=found, state=kube.ContainerState(terminated=kube.TerminatedState()))
                    for found in ended
                ),
                *(
                    kube.ContainerStatus(name=name, container_id=f"containerd://{found}")
                    for name, found in (runtime_ids or {}).items()
                ),
            ],
        ),
    )
    return monitored_pod(found, device_config.default_config())


def folder(
    pod_name: str = "p", container: str = "main", found: Region | None = None, problem: str = ""
) -> FolderReading:
    return FolderReading(
        owner=FolderOwner(pod_uid=f"uid-{pod_name}", container=container),
        file="a.cache" if found is not None else "",
        inode=1,
        region=found,
        problem=problem,
    )


def host_card(card: str = CARD_A, index: int = 0, *processes: HostProcess, **fields: object) -> HostCard:
    values: dict[str, object] = {
        "model": "NVIDIA A100",
        "memory_total_bytes": 40960 * MIB,
        "memory_used_bytes": 0,
        "utilisation_percent": 0,
        **fields,
    }
    return HostCard(id=card, index=index, processes=processes, **values)  # type: ignore[arg-type]


def sample(
    pods: Sequence[MonitoredPod] = (),
    folders: Sequence[FolderReading] = (),
    cards: Sequence[HostCard] = (),
    owners: Mapping[int, FolderOwner] | None = None,
    problem: str = "",
    *,
    traces: Mapping[int, ProcessTrace] | None = None,
    suspected: Collection[ProcessKey] = (),
    pages: Mapping[FolderOwner, LimitsPage] | None = None,
    suspected_out_of_band: Collection[ProcessKey] = (),
) -> Sample:
    return take_sample(
        node=NODE,
        at_seconds=NOW_SECONDS,
        pods=pods,
        folders=folders,
        host=HostReading(cards=tuple(cards), problem=problem),
        traces=traces or {pid: trace_of(owner, pid) for pid, owner in (owners or {}).items()},
        suspected=suspected,
        pages=pages or {},
        suspected_out_of_band=suspected_out_of_band,
    )
