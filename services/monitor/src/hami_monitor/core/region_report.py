"""A region as JSON for people and programs: the accessors of HAMi's monitor under `read`, and what else there is."""

from __future__ import annotations

from typing import Any

from hami_monitor.core.region import Region, RegionCard
from hami_monitor.core.region_layouts import CARD_MAX

LABEL_BYTES = 40
"""As much of a UUID HAMi's monitor uses: the length of `GPU-` and a UUID."""


def report(region: Region) -> dict[str, Any]:
    """Numbers are integers up to 2^64 - 1."""
    return {
        "layout": region.layout,
        "parser": region.parser,
        "version": None if region.version is None else list(region.version),
        "read": {
            "device_max": CARD_MAX,
            "device_num": min(region.device_count, CARD_MAX),
            "devices": [_device(card) for card in region.cards],
            "last_kernel_time": region.last_kernel_time_seconds,
            "priority": region.priority,
            "recent_kernel": region.recent_kernel,
            "utilization_switch": region.utilisation_switch,
        },
        "sm_limit": [card.cores_limit_percent for card in region.cards],
        "processes": [
            {
                "pid": process.pid,
                "hostpid": process.host_pid,
                "status": process.status,
                "used": {str(card): used for card, used in enumerate(process.used_bytes) if used},
            }
            for process in region.processes
        ],
    }


def _device(card: RegionCard) -> dict[str, Any]:
    device: dict[str, Any] = {
        "index": card.index,
        "limit": card.memory_limit_bytes,
        "total": card.used.total,
        "context": card.used.context,
        "module": card.used.module,
        "buffer": card.used.data,
        "offset": card.used.offset,
        "sm_util": card.utilisation_percent,
        "uuid_valid": card.is_named,
    }
    if card.is_named:
        label = card.uuid[:LABEL_BYTES]
        try:
            device["uuid_label"] = label.decode()
        except UnicodeDecodeError:
            device["uuid_label_hex"] = label.hex()
    return device
