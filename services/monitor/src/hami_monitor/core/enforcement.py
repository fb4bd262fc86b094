"""Processes on cards that no library holds to their container's slice.

The library attaches a process, which gives it a slot in its container's region, before the driver lets it make the
context by which it shows on a card. So one that shows without a slot runs without the library: it is a static program,
uses another C library, took the preload out of its way, or its specification switched the library off. A sample joins
a view of the card and one of the regions that are a moment apart, and a slot is given back before the process is gone:
so whoever lacks a slot is suspected, and told of when the next sample says so again.

A container writes its own region, and can forge a slot: this finds programs that slip past the library, not attackers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Final, Literal

import msgspec
from hami_model import limits_page
from hami_model.cards import Slice
from hami_model.events.parts import PodRef
from hami_model.limits_page import CardLimits, LimitsPage

from hami_monitor.core.container_folder import FolderOwner, FolderReading
from hami_monitor.core.host import HostCard, HostProcess
from hami_monitor.core.pods import MonitoredContainer, MonitoredPod
from hami_monitor.core.process_trace import ProcessKey, ProcessTrace
from hami_monitor.core.region import Region, RegionProcess

Reason = Literal["opted-out", "no-region", "region-unreadable", "no-slot"]
ControlFrom = Literal["page", "pod"]
"""What said whether the library holds a container: the container's limits page or, where it has none, its
specification."""
EnforcedBy = Literal["", "preload", "mig", "none"]
"""Of the node-agent's back ends those that can be told from outside; empty: not known."""
_VENDOR: Final = "NVIDIA"
_INSTANCE: Final = "MIG-"
_WHOLE: Final = 100
"""Percent of a card's compute."""
_NO_FOLDER: Final = FolderReading(owner=FolderOwner(pod_uid="", container=""))


class UnheldProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One of a container with a slice that has no slot."""

    key: ProcessKey
    name: str
    pod: PodRef
    container: str
    """Empty: one of several, it cannot be told which."""
    reason: Reason
    control_from: ControlFrom
    memory_bytes: dict[str, int | None]
    """By card; None: the driver does not say."""


class Enforcement(msgspec.Struct, frozen=True, kw_only=True):
    """What one sample says of it."""

    suspects: frozenset[ProcessKey] = frozenset()
    """For the next sample."""
    unheld: tuple[UnheldProcess, ...] = ()
    """Suspected in the sample before as well."""

    def counts(self) -> Counter[tuple[PodRef, str, str, Reason]]:
        """Processes by pod, container, card and reason."""
        return Counter(
            (process.pod, process.container, card_id, process.reason)
            for process in self.unheld
            for card_id in process.memory_bytes
        )


def owner_of_process(trace: ProcessTrace, pods: Mapping[str, MonitoredPod]) -> FolderOwner | None:
    """`pods` by the UID that kubelet knows. The control group wins where it names a pod of the node, since kubelet made
    it; the container's name is empty where only the pod can be told."""
    pod = pods.get(trace.cgroup_pod_uid)
    if pod is None or (trace.folder is not None and trace.folder.pod_uid == pod.kubelet_uid):
        return trace.folder
    names = [
        found.name for found in pod.containers if found.runtime_id and found.runtime_id == trace.cgroup_container_id
    ]
    return FolderOwner(pod_uid=pod.kubelet_uid, container=names[0] if names else "")


def judge(
    *,
    pods: Mapping[str, MonitoredPod],
    folders: Iterable[FolderReading],
    cards: Iterable[HostCard],
    traces: Mapping[int, ProcessTrace],
    suspected: Container[ProcessKey],
    pages: Mapping[FolderOwner, LimitsPage],
) -> Enforcement:
    """`pods` by the UID that kubelet knows, `traces` by pid on the host, `suspected` by the sample before; `pages`: of
    the containers that have a limits page."""
    by_owner = {folder.owner: folder for folder in folders}
    found = []
    for pid, on_cards in sorted(_cards_by_pid(cards).items()):
        trace = traces.get(pid)
        owner = owner_of_process(trace, pods) if trace is not None else None
        pod = pods.get(owner.pod_uid) if owner is not None else None
        if trace is None or owner is None or pod is None or pod.is_finished:
            continue
        holding = [one for one in pod.containers if owner.container in ("", one.name) and _is_for_the_library(one)]
        if not holding:
            continue
        owners = [FolderOwner(pod_uid=owner.pod_uid, container=one.name) for one in holding]
        readings = [by_owner.get(one, _NO_FOLDER) for one in owners]
        if any(_is_slot_of(slot, trace) for slot in _slots(readings)):
            continue
        found.append(
            UnheldProcess(
                key=trace.key,
                name=trace.name,
                pod=pod.ref,
                container=holding[0].name if len(holding) == 1 else "",
                reason=_reason(
                    all(_is_opted_out(one, pages.get(of)) for one, of in zip(holding, owners, strict=True)), readings
                ),
                control_from="page" if any(of in pages for of in owners) else "pod",
                memory_bytes={card_id: process.memory_used_bytes for card_id, process in on_cards},
            )
        )
    return Enforcement(
        suspects=frozenset(process.key for process in found),
        unheld=tuple(process for process in found if process.key in suspected),
    )


def enforced_by(
    held: Slice, container: MonitoredContainer, *, region: Region | None, page: LimitsPage | None
) -> EnforcedBy:
    """What holds a slice, by what the node-agent handed out. The limits page says it of the cards that it names; where
    there is none (an agent that writes none), a region says that the library runs, and the specification that it must
    not. Whether it holds every process, `judge` says."""
    if held.vendor != _VENDOR:
        return ""
    if held.profile or held.placement is not None or held.card_id.startswith(_INSTANCE):
        return "mig"
    if page is not None:
        is_held = page.control is not limits_page.Control.DISABLED
        limited = any(card.uuid == held.card_id and _limits_anything(card) for card in page.cards)
        return "preload" if is_held and limited else "none"
    if container.is_opted_out:
        return "none"
    return "preload" if region is not None else ""


def _limits_anything(card: CardLimits) -> bool:
    return card.withheld or card.memory_limit_bytes > 0 or card.cores_percent < _WHOLE


def _cards_by_pid(cards: Iterable[HostCard]) -> dict[int, list[tuple[str, HostProcess]]]:
    found: dict[int, list[tuple[str, HostProcess]]] = {}
    for card in cards:
        for process in card.processes or ():
            found.setdefault(process.pid, []).append((card.id, process))
    return found


def _is_for_the_library(container: MonitoredContainer) -> bool:
    """It holds a slice that the library must enforce: instances of cards in MIG mode are held by the hardware."""
    return any(held.vendor == _VENDOR and not held.profile for held in container.slices)


def _slots(readings: Iterable[FolderReading]) -> Iterator[RegionProcess]:
    for reading in readings:
        if reading.region is not None:
            yield from reading.region.processes


def _is_slot_of(slot: RegionProcess, trace: ProcessTrace) -> bool:
    """Only our own library says when the owner of a slot began."""
    same_pid = slot.pid in trace.pids or slot.host_pid == trace.key.pid
    return same_pid and slot.began_at_ticks in (0, trace.key.began_at_ticks)


def _is_opted_out(container: MonitoredContainer, page: LimitsPage | None) -> bool:
    """What was handed out holds, whatever the specification asks for."""
    return container.is_opted_out if page is None else page.control is limits_page.Control.DISABLED


def _reason(is_opted_out: bool, readings: Iterable[FolderReading]) -> Reason:
    if is_opted_out:
        return "opted-out"
    readings = tuple(readings)
    if any(reading.region is not None for reading in readings):
        return "no-slot"
    return "region-unreadable" if any(reading.problem for reading in readings) else "no-region"
