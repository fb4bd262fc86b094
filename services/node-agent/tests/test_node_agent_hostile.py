"""Pods as a hostile API server or tenant may write them: nothing is written, mounted or shown beyond the spec.

The hand-over runs on real folders; what it wrote afterwards is compared with the short list of what it may write.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hami_chassis.errors import Transient
from hami_model import device_config, keys, kube, vendors
from hami_model.cards import Card
from hami_model.ids import CardId
from hami_model.limits_page import LimitsPage
from hami_node_agent.adapters.handover_files import HandoverFolders
from hami_node_agent.adapters.host_files import CdiFolder, CheckpointFile
from hami_node_agent.adapters.host_folder import HostFolder
from hami_node_agent.adapters.late_binding import LateBinding
from hami_node_agent.core.cdi_spec import OwnSpec
from hami_node_agent.core.entitlement import MIRROR_KEY
from hami_node_agent.core.grant import ContainerFiles, HostLayout
from hami_node_agent.core.handed_out import HandedOut
from hami_node_agent.core.inventory import Inventory, OfferedCard
from hami_node_agent.metrics import NodeAgentMetrics
from hami_node_agent.ports import RefusedForGoodError
from hand_over_parts import default_parts
from hypothesis import given, settings
from hypothesis import strategies as st
from kubelet_api.checkpoint import CheckpointView, PodDevicesEntry, pod_devices_entry
from kubelet_api.deviceplugin_v1beta1_pb2 import CDIDevice, ContainerAllocateResponse
from prometheus_client import CollectorRegistry

NVIDIA = next(found for found in device_config.default_config().vendors if found.vendor.word == vendors.NVIDIA)
CARDS = tuple(
    Card(id=CardId(f"GPU-{number}"), index=number, slots=10, memory_mib=10000, cores_percent=100, healthy=True)
    for number in range(2)
)
UID = "11111111-2222-3333-4444-555555555555"
NODE = "n1"
SECRET = "kept"
ENVIRONMENT = re.compile(
    r"(CUDA_DEVICE_MEMORY_LIMIT_[01]=[0-9]{1,5}m|CUDA_DEVICE_SM_LIMIT(_[01])?=[0-9]{1,3}"
    r"|CUDA_DEVICE_MEMORY_SHARED_CACHE=\S+\.cache|NVIDIA_VISIBLE_DEVICES=GPU-[01](,GPU-[01])?|HAMI_HANDOFF=done)"
)


class Node:
    """One pod on real folders; whatever else is asked is answered by the pod itself."""

    def __init__(self, root: Path, pod: kube.Pod, *, uid: str, container: str, devices: int) -> None:
        self.root = root
        self.pod = pod
        self.uid = uid
        (root / "hook/vgpu").mkdir(parents=True)
        (root / "cdi").mkdir()
        (root / "state").mkdir()
        (root / SECRET).write_text(SECRET)
        library = root / "libvgpu.so"
        library.write_text("library")
        self.layout = HostLayout(hook_path=str(root / "hook"), lock_dir=str(root / "lock"))
        self.files = HostFolder(self.layout, "v1")
        self.files.install(str(library))
        library.unlink()
        self.device_ids = [f"d{number}" for number in range(devices)]
        self._entries = [self._entry(container, "name0")]
        self.inventory = Inventory(
            offered=tuple(OfferedCard(card=card, minor=0, numa_node=None, kubelet_ids=card.slots) for card in CARDS)
        )
        self.has_synced = True
        self.before = self._tree()
        outcomes, own = _Outcomes(), CheckpointFile(root / "state/handed-out.json")
        self.late_binding = LateBinding(
            NODE,
            NVIDIA,
            HandedOut(),
            ledger=self,  # type: ignore[arg-type]  # several ports have a `read`
            checkpoint=_Checkpoint(self._entries),
            ownership=None,
            files=HandoverFolders(self.files, CdiFolder(root / "cdi", [root / "nvidia-cdi"]), own),
            own=own,
            inventory=self,
            outcomes=outcomes,
            metrics=NodeAgentMetrics(CollectorRegistry()),
            new_region_name=lambda: "r.cache",
            **default_parts(self.layout, NVIDIA, inventory=self, outcomes=outcomes),
        )

    def _entry(self, container: str, name: str) -> PodDevicesEntry:
        answer = ContainerAllocateResponse(cdi_devices=[CDIDevice(name=f"hami.io/slice={name}")])
        return pod_devices_entry(self.uid, container, "nvidia.com/gpu", {-1: self.device_ids}, answer)

    def cached(self, uid: str) -> kube.Pod | None:
        return self.pod if uid == self.uid else None

    def all_cached(self) -> list[kube.Pod]:
        return [self.pod]

    async def read(self, uid: str) -> kube.Pod | None:
        return self.cached(uid)

    async def read_all(self) -> list[kube.Pod]:
        return [self.pod]

    def _tree(self) -> set[str]:
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*")}

    def start(self) -> dict[str, list[str]]:
        """Environments of the specifications that are there afterwards, by file; none where it was refused."""
        with suppress(Transient, RefusedForGoodError):
            asyncio.run(self.late_binding.pre_start(self.device_ids))
        return {path.name: self._checked(path) for path in (self.root / "cdi").iterdir()}

    def _checked(self, file: Path) -> list[str]:
        document = json.loads(file.read_bytes())
        (device,) = document["devices"]
        assert set(device["containerEdits"]) == {"env", "mounts"}
        for mount in device["containerEdits"]["mounts"]:
            assert self._may_mount(mount["hostPath"], mount["containerPath"], mount["options"]), mount
        found: list[str] = device["containerEdits"]["env"]
        for variable in found:
            assert ENVIRONMENT.fullmatch(variable), variable
        return found

    def _may_mount(self, host: str, container: str, options: list[str]) -> bool:
        folder = f"{self.root}/hook/vgpu"
        own = re.escape(f"{folder}/") + r"(containers|limits)/" + re.escape(self.uid) + r"_[^/]+"
        return (
            (host == f"{folder}/libvgpu.so.v1" and container == f"{folder}/libvgpu.so" and "ro" in options)
            or (host == f"{folder}/ld.so.preload" and container == "/etc/ld.so.preload" and "ro" in options)
            or (re.fullmatch(own, host) is not None and container in (folder, f"{folder}/limits"))
            or host == container == f"{self.root}/lock"
        )

    def check_files(self) -> None:
        """Only the pod's own specification and folders and our book came, and nothing went."""
        uid = re.escape(self.uid)
        allowed = re.compile(
            rf"cdi/hami\.io-slice_{uid}_name[0-9]\.json|hook/vgpu/(containers|limits)(/{uid}_[^/]+(/.*)?)?"
            r"|state/handed-out\.json"
        )
        after = self._tree()
        assert self.before <= after
        assert [path for path in after - self.before if not allowed.fullmatch(path)] == []
        assert (self.root / SECRET).read_text() == SECRET


class _Checkpoint:
    def __init__(self, entries: list[PodDevicesEntry]) -> None:
        self._entries = entries

    async def read(self) -> CheckpointView:
        return CheckpointView(entries=tuple(self._entries), registered_devices={})


class _Outcomes:
    def write(self, pod: kube.Pod, annotations: Mapping[str, str]) -> None:  # noqa: ARG002
        assert set(annotations) <= {keys.BIND_PHASE, NVIDIA.vendor.to_allocate_key}
        assert annotations[keys.BIND_PHASE] in (keys.BIND_PHASE_SUCCESS, keys.BIND_PHASE_FAILED)

    def announce_allocated(self, *told: object) -> None: ...

    def announce_failed(self, pod: kube.Pod, reason: str, holders: object = ()) -> None: ...

    def warn(self, pod: kube.Pod, reason: str, message: str) -> None: ...


ODD = st.sampled_from(
    [
        "",
        "..",
        "../../etc",
        "/etc/passwd",
        "a/../../kept",
        "x\x00y",
        "a\nB=c",
        "\u202e",
        "%00",
        "=",
        "a,b;c:d",
        "A" * 300,
    ]
)
TEXT = ODD | st.text(max_size=20)
SLICE = st.tuples(
    st.sampled_from(["GPU-0", "GPU-1"]) | TEXT,
    st.sampled_from(["NVIDIA"]) | TEXT,
    (st.integers(-5, 20000) | st.integers()).map(str) | TEXT,
    (st.integers(-5, 150) | st.integers()).map(str) | TEXT,
).map(",".join)
PROPER = st.builds(
    lambda card, memory, cores: f"{card},NVIDIA,{memory},{cores}",
    st.sampled_from(["GPU-0", "GPU-1"]), st.integers(0, 12000), st.integers(0, 120),
)  # fmt: skip
SLOT = st.lists(PROPER | SLICE, max_size=2).map(lambda slices: "".join(f"{piece}:" for piece in slices))
ALLOCATION = st.lists(SLOT, max_size=3).map(lambda slots: "".join(f"{slot};" for slot in slots)) | TEXT
OTHER_KEYS = (
    keys.ALLOCATION_ID, keys.BIND_TIME, keys.ASSIGNED_TIME, MIRROR_KEY, NVIDIA.vendor.mig_allocations_key,
    "cdi.k8s.io/evil", "hami.io/anything",
)  # fmt: skip
FORGED_MIG = json.dumps(
    [
        {
            "containerIndex": 0, "deviceIndex": 0, "gpuUUID": "GPU-0", "profile": "7g.40gb",
            "placement": {"start": 0, "size": 8}, "migUUID": "MIG-0", "gpuInstanceID": 1, "computeInstanceID": 0,
        }
    ]
)  # fmt: skip
ANNOTATIONS = st.fixed_dictionaries(
    {
        NVIDIA.vendor.allocated_key: ALLOCATION,
        keys.ASSIGNED_NODE: st.just(NODE) | TEXT,
        keys.BIND_PHASE: st.sampled_from(["allocating", "success", "failed"]) | TEXT,
    },
    optional={key: TEXT | st.just("x" * 100_000) | st.just(FORGED_MIG) for key in OTHER_KEYS},
)
NAME = st.sampled_from(["main", "main", "main", "side"]) | TEXT
ENV = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["CUDA_DISABLE_CONTROL", "NVIDIA_VISIBLE_DEVICES", "LD_PRELOAD"]) | TEXT,
            "value": TEXT,
        }
    ),
    max_size=3,
)
CONTAINERS = st.lists(st.fixed_dictionaries({"name": NAME, "env": ENV}), max_size=2)
UIDS = st.just(UID) | TEXT


def pod_of(  # noqa: PLR0917  # as the strategies give them
    uid: str, annotations: dict[str, str], init: list[Any], app: list[Any], runtime_class: str, names: tuple[str, str]
) -> kube.Pod:
    return msgspec.convert(
        {
            "metadata": {"name": names[0], "namespace": names[1], "uid": uid, "annotations": annotations},
            "spec": {
                "nodeName": NODE, "initContainers": init, "containers": app, "runtimeClassName": runtime_class or None,
            },
            "status": {"phase": "Pending"},
        },
        kube.Pod,
    )  # fmt: skip


PODS = st.builds(
    pod_of, UIDS, ANNOTATIONS, CONTAINERS, CONTAINERS, st.sampled_from(["", "nvidia"]) | TEXT, st.tuples(TEXT, TEXT)
)


@contextmanager
def node_with(pod: kube.Pod, uid: str, container: str, devices: int) -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="hostile") as folder:
        yield Node(Path(folder), pod, uid=uid, container=container, devices=devices)


@settings(max_examples=150)
@given(PODS, NAME, st.integers(1, 3), st.none() | UIDS)
def test_no_pod_makes_the_agent_write_or_mount_beyond_its_own(
    pod: kube.Pod, container: str, devices: int, other_uid: str | None
) -> None:
    """`other_uid`: kubelet's checkpoint may name the pod by another UID, as of a mirror."""
    with node_with(pod, pod.uid if other_uid is None else other_uid, container, devices) as node:
        for environment in node.start().values():
            limits = [int(text.partition("=")[2][:-1]) for text in environment if "MEMORY_LIMIT" in text]
            assert 1 <= len(limits) <= devices
            assert all(0 < limit <= CARDS[0].memory_mib for limit in limits)
        node.check_files()


@settings(max_examples=60)
@given(st.lists(PROPER, min_size=1, max_size=2), ANNOTATIONS)
def test_what_was_handed_out_is_never_raised(slices: list[str], later: dict[str, str]) -> None:
    allocation = "".join(f"{piece}:" for piece in slices) + ";"
    first = {NVIDIA.vendor.allocated_key: allocation, keys.ASSIGNED_NODE: NODE, keys.BIND_PHASE: "allocating"}
    pod = pod_of(UID, first, [], [{"name": "main"}], "", ("p", "ns"))
    with node_with(pod, UID, "main", len(slices)) as node:
        before = node.start()
        node.pod = pod_of(UID, {**first, **later, MIRROR_KEY: UID}, [], [{"name": "main"}], "", ("p", "ns"))
        after = node.start()
        if before:
            assert after == before
        node.check_files()


@pytest.mark.parametrize(
    ("allocation", "told"),
    [
        ("GPU-0,NVIDIA,0,0:;", "would reserve nothing and limit nothing"),
        ("GPU-0,NVIDIA,0,100:;", "would reserve nothing and limit nothing"),
        ("".join(f"GPU-{'x' * 200}{number},NVIDIA,1,1:" for number in range(500)) + ";", "and 497 others"),
    ],
)
def test_why_a_container_gets_nothing_is_told_in_few_words(allocation: str, told: str) -> None:
    annotations = {NVIDIA.vendor.allocated_key: allocation, keys.ASSIGNED_NODE: NODE, keys.BIND_PHASE: "allocating"}
    pod = pod_of(UID, annotations, [], [{"name": "main"}], "", ("p", "ns"))
    with node_with(pod, UID, "main", allocation.count(":")) as node:
        with pytest.raises(RefusedForGoodError, match=told) as caught:
            asyncio.run(node.late_binding.pre_start(node.device_ids))
        assert len(str(caught.value)) < 600
        assert node.start() == {}


async def test_uids_and_names_that_are_no_part_of_a_path_are_refused(tmp_path: Path) -> None:
    layout = HostLayout(hook_path=str(tmp_path / "hook"), lock_dir=str(tmp_path / "lock"))
    (tmp_path / "libvgpu.so").write_text("library")
    files, cdi = HostFolder(layout, "v1"), CdiFolder(tmp_path / "cdi", [])
    files.install(str(tmp_path / "libvgpu.so"))
    cdi.prepare()
    page = LimitsPage(region_file="r", cards=())
    for uid, name in (("..", "main"), ("a/b", "main"), (UID, "../x"), (UID, "x\x00"), ("", "x"), (UID, "A" * 300)):
        with pytest.raises(Transient):
            files.prepare_container(ContainerFiles(pod_uid=uid, container=name, page=page))
        with pytest.raises(Transient):
            cdi.write(OwnSpec(pod_uid=uid, name=name, content=b"{}"))
    assert await cdi.owners() == await files.owners() == frozenset()
