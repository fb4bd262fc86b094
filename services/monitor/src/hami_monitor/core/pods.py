"""Pods of the node, reduced to who they are and what they are promised."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec
from hami_model import allocations, kube, usage
from hami_model.cards import ContainerKind, ContainerShape, Slice, shapes
from hami_model.device_config import DeviceConfig
from hami_model.events.parts import PodRef
from hami_model.ids import CardId
from hami_model.requests import wants_control

from hami_monitor.core.container_folder import FolderOwner

MIRROR_KEY: Final = "kubernetes.io/config.mirror"
"""On the API server's picture of a static pod: the UID by which kubelet knows it."""


_UID: Final = re.compile(r"[0-9A-Za-z-]+")
"""Names a folder, and anyone who makes pods may write the mirror's."""


class MonitoredContainer(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: ContainerKind
    has_ended: bool
    """It is terminated now, and uses nothing, whatever its region file still says."""
    slices: tuple[Slice, ...]
    runtime_id: str = ""
    """The runtime's id of it, as in control groups; empty until it has one."""
    is_opted_out: bool = False
    """Its specification switches the library off."""


class MonitoredPod(msgspec.Struct, frozen=True, kw_only=True):
    ref: PodRef
    kubelet_uid: str
    """In the names of its folders and control groups."""
    resource_version: str
    is_finished: bool
    containers: tuple[MonitoredContainer, ...]
    """In the order of slots: init containers first."""
    promised: dict[CardId, usage.CardUsage]
    """What the pod costs each card."""
    labels: dict[str, str]
    annotations: dict[str, str]

    @property
    def uid(self) -> str:
        return self.ref.uid

    @property
    def is_mirror(self) -> bool:
        return self.kubelet_uid != self.uid


def monitored_pod(pod: kube.Pod, config: DeviceConfig) -> MonitoredPod:
    """Never fails: of a malformed annotation what can be read counts, as in placement."""
    found = shapes(pod)
    slots: list[tuple[Slice, ...]] = [()] * len(found)
    for settings in config.vendors:
        read = allocations.read(pod, settings)
        slots = [(*held, *more) for held, more in zip(slots, read.slots, strict=True)]
    statuses = {status.name: status for status in _statuses(pod)}
    specified = {container.name: container for container in pod.all_containers}
    return MonitoredPod(
        ref=PodRef(namespace=pod.metadata.namespace, name=pod.metadata.name, uid=pod.uid),
        kubelet_uid=pod.annotations.get(MIRROR_KEY, pod.uid),
        resource_version=pod.metadata.resource_version,
        is_finished=pod.is_finished,
        containers=tuple(
            _container(shape, slot, statuses.get(shape.name), specified[shape.name])
            for shape, slot in zip(found, slots, strict=True)
        ),
        promised=usage.effective(tuple(slots), found, init_done=pod.one_shot_init_done),
        labels=pod.labels,
        annotations=pod.annotations,
    )


def without_impostors(pods: Iterable[MonitoredPod]) -> tuple[MonitoredPod, ...]:
    """By name. Whoever makes a pod may call it the mirror of another, so the UID belongs to the pod that has it."""
    ordered = sorted(pods, key=lambda pod: (pod.ref.namespace, pod.ref.name, pod.uid))
    taken = {pod.uid for pod in ordered}
    found = []
    for pod in ordered:
        if pod.is_mirror and pod.kubelet_uid in taken:
            found.append(msgspec.structs.replace(pod, kubelet_uid=pod.uid))
        else:
            taken.add(pod.kubelet_uid)
            found.append(pod)
    return tuple(found)


def live_containers(pods: Iterable[MonitoredPod]) -> dict[FolderOwner, tuple[MonitoredPod, MonitoredContainer]]:
    """That hold slices. Folders of other pods, and of no pod, are left alone."""
    return {
        FolderOwner(pod_uid=pod.kubelet_uid, container=container.name): (pod, container)
        for pod in pods
        if _UID.fullmatch(pod.kubelet_uid)
        for container in pod.containers
        if container.slices and not pod.is_finished and not container.has_ended
    }


def _statuses(pod: kube.Pod) -> list[kube.ContainerStatus]:
    return [*(pod.status.init_container_statuses or []), *(pod.status.container_statuses or [])]


def _container(
    shape: ContainerShape, slot: tuple[Slice, ...], status: kube.ContainerStatus | None, specified: kube.Container
) -> MonitoredContainer:
    return MonitoredContainer(
        name=shape.name,
        kind=shape.kind,
        has_ended=status is not None and status.state is not None and status.state.terminated is not None,
        slices=slot,
        runtime_id=status.container_id.partition("://")[2] if status is not None else "",
        is_opted_out=not wants_control(specified.env or ()),
    )
