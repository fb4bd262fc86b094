"""Decisions of the monitor's vectors; see decisions.py."""

from __future__ import annotations

from vectors import Row

MONITOR_SUSPICIONS = ("nameless-node",)


def monitor_suspicion(row: Row) -> str | None:
    return "nameless-node" if row["env"]["NODE_NAME"] == "" else None
