"""usage and usage-node: what a pod, or a whole card, uses next to what is promised, and who is not held to it.

Memory is in bytes. None: not known at this moment (no region file yet, or the driver does not say).
Id of a sample: a function of the pod's UID or the node, and its time. Of a process that is not held to its slice: of
the process.
"""

from __future__ import annotations

import msgspec

from hami_model.events import subjects
from hami_model.events.envelope import Event, identity, rfc3339
from hami_model.events.parts import Enforcement, PodRef


class CardUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One container on one card."""

    card_id: str
    memory_promised_bytes: int
    memory_used_bytes: int | None = None
    cores_promised_percent: int
    """0: no promise, it takes what is free."""
    cores_used_percent: int | None = None
    enforced_by: Enforcement = ""
    """The back end that holds the container to this promise, as the monitor can tell."""


class ContainerUsage(msgspec.Struct, frozen=True, kw_only=True):
    container: str
    cards: tuple[CardUsage, ...]


class UsageSampled(Event, frozen=True, kw_only=True, tag="io.hami.usage.sampled.v1"):
    """One pod."""

    pod: PodRef
    node: str
    containers: tuple[ContainerUsage, ...]

    @property
    def about(self) -> str:
        return self.pod.path

    def subject(self, prefix: str = subjects.DEFAULT_PREFIX) -> str:
        return subjects.usage(self.pod.namespace, self.node, self.pod.uid, prefix=prefix)

    def _identity(self) -> str:
        return identity("usage", self.node, self.pod.uid, rfc3339(self.time))


class CardMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What one process holds on one card."""

    card_id: str
    memory_used_bytes: int | None = None


class SliceNotEnforced(Event, frozen=True, kw_only=True, tag="io.hami.usage.slice-not-enforced.v1"):
    """A process of a container with a slice uses cards, and no library holds it to the slice. Told once."""

    pod: PodRef
    node: str
    container: str = ""
    """Empty: one of several, it cannot be told which."""
    pid: int
    """On the host."""
    began_at_ticks: int
    """With the pid it names the process for ever: field 22 of its /proc/<pid>/stat."""
    process: str = ""
    """Its own name for itself, at most 15 bytes."""
    reason: str
    """One of: opted-out (the pod's specification switches the library off), no-region (the library never ran in the
    container, or its region is gone), region-unreadable, no-slot (the library ran there, but not in this process)."""
    control_from: str = ""
    """Who said whether a library holds the container: page (its limits page), pod (its specification, where it has no
    page)."""
    cards: tuple[CardMemory, ...]

    @property
    def about(self) -> str:
        return self.pod.path

    def subject(self, prefix: str = subjects.DEFAULT_PREFIX) -> str:
        return subjects.not_enforced(self.pod.namespace, self.node, self.pod.uid, prefix=prefix)

    def _identity(self) -> str:
        return identity("slice-not-enforced", self.node, self.pod.uid, str(self.pid), str(self.began_at_ticks))


class CardProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process with memory on a card."""

    pid: int
    """On the host."""
    memory_used_bytes: int | None = None
    used_by: PodRef | None = None
    """None: no pod of ours."""
    user: str = "unknown"
    """One of: slice (its pod holds a slice of the card), other-pod (its pod holds none), host (no pod's), unknown."""


class CardTelemetry(msgspec.Struct, frozen=True, kw_only=True):
    """One whole card."""

    card_id: str
    index: int
    model: str = ""
    memory_total_bytes: int
    """0: the driver does not say."""
    memory_promised_bytes: int = 0
    memory_used_bytes: int | None = None
    cores_promised_percent: int = 0
    cores_used_percent: int | None = None
    temperature_celsius: int | None = None
    power_milliwatts: int | None = None
    processes: tuple[CardProcess, ...] = ()
    used_by: tuple[PodRef, ...] = ()
    """Pods that hold slices of the card, whether they run anything on it or not."""


class OutOfBandUser(Event, frozen=True, kw_only=True, tag="io.hami.usage-node.out-of-band.v1"):
    """A process uses cards of which it has no slice: it takes what is promised to others. Told once."""

    node: str
    pid: int
    """On the host."""
    began_at_ticks: int
    """With the pid it names the process for ever: field 22 of its /proc/<pid>/stat."""
    process: str = ""
    """Its own name for itself, at most 15 bytes."""
    user: str
    """One of: host (no pod's process), other-pod (a pod's that holds no slice of these cards)."""
    pod: PodRef | None = None
    """Where it is a known pod's."""
    cards: tuple[CardMemory, ...]

    @property
    def about(self) -> str:
        return f"nodes/{self.node}"

    def subject(self, prefix: str = subjects.DEFAULT_PREFIX) -> str:
        return subjects.out_of_band(self.node, prefix=prefix)

    def _identity(self) -> str:
        return identity("out-of-band", self.node, str(self.pid), str(self.began_at_ticks))


class UsageNodeSampled(Event, frozen=True, kw_only=True, tag="io.hami.usage-node.sampled.v1"):
    """All cards of a node."""

    node: str
    cards: tuple[CardTelemetry, ...]

    @property
    def about(self) -> str:
        return f"nodes/{self.node}"

    def subject(self, prefix: str = subjects.DEFAULT_PREFIX) -> str:
        return subjects.usage_node(self.node, prefix=prefix)

    def _identity(self) -> str:
        return identity("usage-node", self.node, rfc3339(self.time))
