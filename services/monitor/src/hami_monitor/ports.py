"""What the monitor needs from outside, as it needs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from hami_monitor.core.container_folder import FolderReading
from hami_monitor.core.host import HostReading
from hami_monitor.core.pods import MonitoredPod
from hami_monitor.core.process_trace import ProcessTrace


class RegionSource(Protocol):
    """The folders of the node's containers. Blocks on files; called in a thread."""

    def scan(self) -> tuple[FolderReading, ...]: ...


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


class EventSink(Protocol):
    """Takes events for the bus. Never waits and never fails: what cannot be kept is counted by the sink."""

    def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> None: ...
