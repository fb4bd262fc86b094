"""The limits that a namespace's ResourceQuota objects put on cards.

Only `limits.<memory resource>` and `limits.<cores resource>` count; numbers of cards and `requests.*` are left to
Kubernetes. The smallest limit of all objects holds, in any order of arrival; 0 blocks. A value that is no whole number
sets no limit, as in HAMi.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from hami_model import kube, quantity
from hami_model.device_config import DeviceConfig

LARGEST: Final = 2**63 - 1
"""No cluster holds more; a larger limit (the API server stores `100E` as written) is taken as this one."""


class QuotaLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on the effective usage of a namespace's live pods. None: no limit."""

    memory_mib: int | None = None
    cores_percent: int | None = None


def limits(quotas: Iterable[kube.ResourceQuota], config: DeviceConfig) -> dict[str, QuotaLimits]:
    """Limits by vendor word, of the quotas of one namespace. A vendor without limits has an entry without limits."""
    tables = [quota.hard for quota in quotas]
    found: dict[str, QuotaLimits] = {}
    for settings in config.vendors:
        found[settings.vendor.word] = QuotaLimits(
            memory_mib=_smallest(tables, settings.resources.memory, settings.memory_factor),
            cores_percent=_smallest(tables, settings.resources.cores),
        )
    return found


def _smallest(tables: list[dict[str, str]], resource: str, factor: int = 1) -> int | None:
    if not resource:
        return None
    texts = (table.get(f"limits.{resource}") for table in tables)
    values = [value * factor for text in texts if text is not None and (value := _whole(text)) is not None]
    return max(-LARGEST, min(*values, LARGEST)) if values else None


def _whole(text: str) -> int | None:
    try:
        value = quantity.parse(text)
    except quantity.MalformedQuantity:
        return None
    return value.numerator if value.denominator == 1 else None
