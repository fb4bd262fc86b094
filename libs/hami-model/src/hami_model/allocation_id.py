"""Identities of allocations."""

from __future__ import annotations

import re
from typing import Final
from uuid import UUID, uuid5

from hami_model.ids import AllocationId, PodUid

_ADOPTED: Final = UUID("2c1f0a53-6f3b-5d51-9c0e-6b8d5f0a7e11")
"""Name space of allocations that another scheduler made. Never changes: ids must stay the same across versions."""
_WRITTEN: Final = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)
_UNIX_MS_BITS: Final = 48
RANDOM_BYTES: Final = 10
"""How many random bytes `uuid7` takes."""


def uuid7(unix_ms: int, random_bytes: bytes) -> AllocationId:
    """A version 7 UUID (RFC 9562 §5.7) of the given time and randomness.

    Raises ValueError when `unix_ms` does not fit 48 bits or `random_bytes` is not 10 long.
    """
    if not 0 <= unix_ms < 1 << _UNIX_MS_BITS:
        raise ValueError(f"unix_ms must be from 0 to 2^48-1, not {unix_ms}")
    if len(random_bytes) != RANDOM_BYTES:
        raise ValueError(f"uuid7 takes {RANDOM_BYTES} random bytes, not {len(random_bytes)}")
    high = 0x7000 | int.from_bytes(random_bytes[:2], "big") & 0x0FFF
    low = 1 << 63 | int.from_bytes(random_bytes[2:], "big") & (1 << 62) - 1
    return AllocationId(str(UUID(int=unix_ms << 80 | high << 64 | low)))


def parse(text: str) -> AllocationId | None:
    """The id that a pod carries; None for a text that is no id: it goes into events and their headers."""
    return AllocationId(text) if _WRITTEN.fullmatch(text) else None


def adopted(pod_uid: PodUid | str, assigned_time: str) -> AllocationId:
    """The id of an allocation that another scheduler made: UUIDv5 of the pod's UID and its `hami.io/vgpu-time`."""
    return AllocationId(str(uuid5(_ADOPTED, f"{pod_uid}/{assigned_time}")))
