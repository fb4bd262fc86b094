"""Decisions of the monitor's vectors; see decisions.py."""

from __future__ import annotations

from vectors import Row

MONITOR_SUSPICIONS = ("nameless-node",)
MONITOR_DEFERRALS = ("removal of folders",)


def monitor_deferral(row: Row) -> str | None:
    if "containers" in row and "nvml_devices" not in row and "ticks" not in row:
        return "removal of folders"
    return None


def monitor_suspicion(row: Row) -> str | None:
    return "nameless-node" if row["env"]["NODE_NAME"] == "" else None
