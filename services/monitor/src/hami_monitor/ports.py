"""What the monitor needs from outside, as it needs it.

What reads files raises OSError where the machine has no room to open any: that says nothing of what it looked for.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Protocol

from hami_model.limits_page import LimitsPage

from hami_monitor.core.container_folder import FolderOwner, FolderReading, RegionPlace
from hami_monitor.core.folder_removal import FolderAge
from hami_monitor.core.host import HostReading
from hami_monitor.core.pods import MonitoredPod
from hami_monitor.core.process_trace import ProcessTrace
from hami_monitor.core.region_slots import RegionSlots, SlotHead
from hami_monitor.core.region_words import RegionWords, WordChange


class RegionSource(Protocol):
    """The folders of the node's containers. Blocks on files; called in a thread."""

    def scan(self) -> tuple[FolderReading, ...]: ...


class WordSource(Protocol):
    """The words between containers and monitor. Blocks on files; called in a thread."""

    def words(self, owners: Iterable[FolderOwner]) -> Mapping[RegionPlace, RegionWords]:
        """Of those that have a readable region."""
        ...


class WordSink(Protocol):
    """Writes them. Blocks on files; called in a thread."""

    def write(self, place: RegionPlace, layout: str, changes: Iterable[WordChange]) -> int:
        """How many were written. Raises RegionMovedError and OSError."""
        ...


class SlotSource(Protocol):
    """Whose slots there are. Blocks on files; called in a thread."""

    def slots(self, owners: Iterable[FolderOwner]) -> Mapping[RegionPlace, RegionSlots]:
        """Of those that have a readable region."""
        ...


class HostPidSink(Protocol):
    """Tells slots the host's pids. Blocks on files; called in a thread."""

    def write_host_pid(self, place: RegionPlace, layout: str, slot: SlotHead, host_pid: int) -> bool:
        """False: the slot is another process's by now. Raises RegionMovedError and OSError."""
        ...


class ProcessSearch(Protocol):
    """Looks through all processes of the host. Blocks on files; called in a thread."""

    def search(
        self, began_at_ticks: Container[int], pids: Container[int], places: Iterable[RegionPlace]
    ) -> Iterable[tuple[ProcessTrace, int]]:
        """Those that began then, or whose innermost pid is one of these, with the inode of their PID namespace (0: not
        told)."""
        ...


class FolderStore(Protocol):
    """The folders of the node's containers. Blocks on files; called in a thread."""

    def ages(self) -> Iterable[FolderAge]: ...

    def remove(self, owner: FolderOwner) -> None:
        """Nothing where it is gone already. Raises UnremovableFolderError."""
        ...


class FolderUsers(Protocol):
    """Whether containers have processes. Blocks on files; called in a thread."""

    def using(self, owners: Iterable[FolderOwner]) -> AbstractSet[FolderOwner]:
        """Those of which a process runs on the host, or of whose pod one does."""
        ...


class PodList(Protocol):
    """The pods of the node as the API server has them now."""

    async def kubelet_uids(self) -> AbstractSet[str]:
        """Raises Transient and Permanent."""
        ...


class PageSource(Protocol):
    """Limits pages of the node's containers. Blocks on files; called in a thread."""

    def pages(self, owners: Iterable[FolderOwner]) -> Mapping[FolderOwner, LimitsPage]:
        """Of those that have a good one."""
        ...


class HostSource(Protocol):
    """The cards of the node. Blocks on the driver; called in a thread of its own."""

    def read(self) -> HostReading: ...


class OwnerSource(Protocol):
    """Whose processes are these. Blocks on files; called in a thread."""

    def trace(self, pids: Iterable[int], folders: Iterable[FolderReading]) -> Mapping[int, ProcessTrace]:
        """By pid on the host; of those that run."""
        ...


class PodSource(Protocol):
    """The pods of the node, as last heard."""

    def values(self) -> Iterable[MonitoredPod]: ...


class ListablePods(PodSource, Protocol):
    async def resync(self) -> None:
        """Returns when `values` are no older than this call, however long that takes."""
        ...


class EventSink(Protocol):
    """Takes events for the bus. Never waits and never fails: what cannot be kept is counted by the sink."""

    def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> None: ...
