"""What the monitor reads from a shared-region file."""

from __future__ import annotations

from typing import Any

from hami_monitor.core.region import read_region
from hami_monitor.core.region_layouts import UnreadableRegionError
from hami_monitor.core.region_report import report
from region_store import content


def answer(row: dict[str, Any]) -> dict[str, Any]:
    data = content(row["vectors_root"], row["id"])
    try:
        found = report(read_region(len(data), lambda offset, length: data[offset : offset + length]))
    except UnreadableRegionError as error:
        return {"error": str(error)}
    return {"parser": found["parser"], "read": found["read"]}
