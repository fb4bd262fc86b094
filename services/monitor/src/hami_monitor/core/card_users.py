"""Who uses a card, and whether by right: out of band is a process that no slice of the card stands for.

Such a process takes memory and compute that are promised to others, and nothing holds it. It may be the host's own (a
program started by hand, a container of another runtime), or a pod's that got at the card around its promise (a
privileged container, a mounted device node). A container's processes appear on a card a moment before its pod is known,
and stay a moment after it has ended: so an event tells of them when two samples running say so, and of a pod's when the
pods were listed in between, since the watch may be late.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Final, Literal

import msgspec
from hami_model.events.parts import PodRef

from hami_monitor.core.enforcement import owner_of_process
from hami_monitor.core.host import HostCard
from hami_monitor.core.pods import MonitoredPod
from hami_monitor.core.process_trace import ProcessKey, ProcessTrace

UserKind = Literal["slice", "other-pod", "host", "unknown"]
KINDS: Final[tuple[UserKind, ...]] = ("slice", "other-pod", "host", "unknown")
OUT_OF_BAND: Final[frozenset[UserKind]] = frozenset({"other-pod", "host"})


class CardUser(msgspec.Struct, frozen=True, kw_only=True):
    """One process on one card."""

    kind: UserKind
    """slice: its pod holds a slice of the card; other-pod: its pod does not; host: no pod's; unknown: its end came
    first, or the monitor does not see the host's processes."""
    pod: PodRef | None = None
    """Where it is one of this node's that is known."""


class OutOfBandProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that uses cards without a slice of them."""

    key: ProcessKey
    name: str
    kind: UserKind
    pod: PodRef | None
    memory_bytes: dict[str, int | None]
    """By card; None: the driver does not say."""


class OutOfBand(msgspec.Struct, frozen=True, kw_only=True):
    """What one sample says of them."""

    suspects: frozenset[ProcessKey] = frozenset()
    """For the next sample."""
    by_pods: frozenset[ProcessKey] = frozenset()
    """Those of them that would use their cards by right if the pods were others than was last seen."""
    processes: tuple[OutOfBandProcess, ...] = ()
    """Suspected in the sample before as well."""


def users_of(
    card: HostCard, traces: Mapping[int, ProcessTrace], pods: Mapping[str, MonitoredPod]
) -> dict[int, CardUser]:
    """By pid. `pods` by the UID that kubelet knows."""
    return {process.pid: _user(card.id, traces.get(process.pid), pods) for process in card.processes or ()}


def out_of_band(
    users: Iterable[tuple[HostCard, Mapping[int, CardUser]]],
    traces: Mapping[int, ProcessTrace],
    suspected: Container[ProcessKey],
) -> OutOfBand:
    """`suspected`: by the sample before."""
    found: dict[int, OutOfBandProcess] = {}
    for card, by_pid in users:
        used = {process.pid: process.memory_used_bytes for process in card.processes or ()}
        for pid, user in by_pid.items():
            if user.kind not in OUT_OF_BAND:
                continue
            trace = traces[pid]
            before = found.get(pid)
            found[pid] = OutOfBandProcess(
                key=trace.key,
                name=trace.name,
                kind=user.kind,
                pod=user.pod,
                memory_bytes={**(before.memory_bytes if before is not None else {}), card.id: used[pid]},
            )
    return OutOfBand(
        suspects=frozenset(process.key for process in found.values()),
        by_pods=frozenset(process.key for process in found.values() if process.kind == "other-pod"),
        processes=tuple(process for _, process in sorted(found.items()) if process.key in suspected),
    )


def _user(card_id: str, trace: ProcessTrace | None, pods: Mapping[str, MonitoredPod]) -> CardUser:
    if trace is None:
        return CardUser(kind="unknown")
    owner = owner_of_process(trace, pods)
    uid = owner.pod_uid if owner is not None else trace.cgroup_pod_uid
    if not uid:
        return CardUser(kind="host")
    pod = pods.get(uid)
    if pod is None:
        return CardUser(kind="other-pod")
    holds = not pod.is_finished and any(
        held.card_id == card_id for container in pod.containers for held in container.slices
    )
    return CardUser(kind="slice" if holds else "other-pod", pod=pod.ref)
