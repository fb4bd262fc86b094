"""Cards as the driver shows them on the host. None: the driver does not say at this moment."""

from __future__ import annotations

import msgspec


class HostProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process with memory on a card."""

    pid: int
    memory_used_bytes: int | None = None
    utilisation_percent: int | None = None
    """Of the card's SMs, by itself."""


class HostCard(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    index: int
    model: str = ""
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    utilisation_percent: int | None = None
    memory_controller_percent: int | None = None
    temperature_celsius: int | None = None
    power_milliwatts: int | None = None
    processes: tuple[HostProcess, ...] | None = None


class HostReading(msgspec.Struct, frozen=True, kw_only=True):
    """All cards of the node."""

    cards: tuple[HostCard, ...] = ()
    problem: str = ""
    """Why there is no view at all; empty: there is one."""
    failures: dict[str, int] = {}
    """Queries that failed, by name; what the driver does not support is no failure."""
