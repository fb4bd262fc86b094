"""Cards as the driver shows them on the host. None: the driver does not say at this moment."""

from __future__ import annotations

from typing import Final

import msgspec

CLOCK_LIMITS: Final = {
    0x4: "power-limit",
    0x8: "hardware-slowdown",
    0x10: "sync-boost",
    0x20: "thermal",
    0x40: "hardware-thermal",
    0x80: "power-brake",
}
"""What may hold a card's clocks down, by NVML's bit; idleness and clocks that somebody chose are none of it."""


class HostProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process with memory on a card."""

    pid: int
    memory_used_bytes: int | None = None
    utilisation_percent: int | None = None
    """Of the card's SMs, by itself."""


class HostInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A MIG instance that there is on a card."""

    id: str
    profile: str = ""
    """Such as 1g.5gb; empty where the driver does not name it."""
    gpu_instance: int | None = None
    compute_instance: int | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    xids: dict[int, int] = {}
    """Of the card's, those that the driver attributed to it."""


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
    power_limit_milliwatts: int | None = None
    sm_clock_megahertz: int | None = None
    memory_clock_megahertz: int | None = None
    ecc_corrected: int | None = None
    """Errors since the driver was loaded."""
    ecc_uncorrected: int | None = None
    clock_limits: frozenset[str] | None = None
    """Which of CLOCK_LIMITS hold."""
    xids: dict[int, int] = {}
    """How often the driver reported each since the monitor began to listen."""
    instances: tuple[HostInstance, ...] = ()
    processes: tuple[HostProcess, ...] | None = None


class HostReading(msgspec.Struct, frozen=True, kw_only=True):
    """All cards of the node."""

    cards: tuple[HostCard, ...] = ()
    problem: str = ""
    """Why there is no view at all; empty: there is one."""
    failures: dict[str, int] = {}
    """Queries that failed, by name; what the driver does not support is no failure."""
