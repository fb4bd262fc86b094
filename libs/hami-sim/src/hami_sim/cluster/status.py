"""What `hami-sim status --json` says. The committed schema derives from these structs."""

from __future__ import annotations

from typing import Literal

import msgspec

ServiceState = Literal["ready", "not-ready", "stopped", "dead"]
PodPhase = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]


class ServiceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One program."""

    name: str
    state: ServiceState
    """`stopped`: it has not been started yet, or was ended in order; `dead`: it ended by itself."""
    pid: int | None = None
    node: str | None = None
    problem: str = ""
    """What is missing to `ready`."""
    log: str


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated node."""

    name: str
    ready: bool
    container_mode: str = ""
    """`namespace` or `prefix`: how containers see files. Empty while kubelet has not said so."""
    handoff: str = ""
    """`late-binding` or `lock`. Empty while no cards are registered."""
    slots_allocatable: int = 0
    """What kubelet counts of nvidia.com/gpu."""
    problem: str = ""
    not_offered: tuple[str, ...] = ()
    """Cards that the node has and does not offer, and why, as its node-agent told in the last hour."""


class CardStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One card: what is promised of it, and what its containers use."""

    node: str
    index: int
    id: str
    model: str
    healthy: bool
    problem: str = ""
    """Why it is not healthy, as its node-agent told in the last hour."""
    slots: int
    slots_used: int
    memory_total_mib: int
    memory_promised_mib: int
    memory_used_mib: int | None = None
    """None: the monitor has not said so lately."""
    cores_promised_percent: int
    cores_used_percent: int | None = None
    out_of_band_processes: int | None = None
    """Processes on the card whose pod holds no slice of it, or that are no pod's."""


class PodCardStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What one container holds of one card."""

    container: str
    card_id: str
    memory_promised_mib: int
    memory_used_mib: int | None = None
    cores_promised_percent: int
    """0: no promise, it takes what is free."""
    cores_used_percent: int | None = None
    enforced_by: str = ""
    """What holds the container to it: preload, mig, none; empty: the monitor has not said so lately."""


class PodStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One pod."""

    namespace: str
    name: str
    uid: str
    phase: PodPhase
    node: str = ""
    reason: str = ""
    """Why it waits, or how it ended."""
    cards: tuple[PodCardStatus, ...] = ()


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Everything."""

    state_directory: str
    kubeconfig: str
    api_server: str
    nats: str
    running: bool
    """Every program runs and is ready."""
    usage_known: bool
    """False: NATS could not be asked what is used, so every `used` is null."""
    services: tuple[ServiceStatus, ...] = ()
    nodes: tuple[NodeStatus, ...] = ()
    cards: tuple[CardStatus, ...] = ()
    pods: tuple[PodStatus, ...] = ()
