"""The few words of a region by which its container and the monitor tell each other who may launch, and where they lie.

The container can write them too, so a monitor that acts on them acts on what the container wants it to believe: of its
own work, and of no other container's.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from hami_monitor.core.region import ReadAt, exactly
from hami_monitor.core.region_layouts import CARD_MAX, HEAD_BYTES, LAYOUTS, UUID_BYTES, Layout, choose_layout

WORD_BYTES: Final = 4
_LAYOUTS: Final = {layout.name: layout for layout in LAYOUTS}


class RegionMovedError(Exception):
    """What is there now is not the region that was read."""


class RegionWords(msgspec.Struct, frozen=True, kw_only=True):
    """As they stood at one moment."""

    layout: str
    card_ids: frozenset[str]
    """Cards that the region names."""
    recent_kernel: int
    """2 at a launch, counted down by the monitor; below zero: the library waits before it launches."""
    utilisation_switch: int
    """0: compute is not limited under the default policy."""
    priority: int
    last_kernel_time_seconds: int
    """Since the epoch; 0 where the layout does not keep it."""


class WordChange(msgspec.Struct, frozen=True, kw_only=True):
    """One 32-bit word to be written."""

    offset: int
    value: int
    expected: int | None = None
    """Written only while it still says this; None: whatever it says."""

    @property
    def bytes(self) -> bytes:
        return struct.pack("<i", self.value)


def layout_named(name: str) -> Layout:
    return _LAYOUTS[name]


def read_layout(size_bytes: int, read_at: ReadAt) -> Layout:
    """Raises UnreadableRegionError."""
    magic, major, minor = struct.unpack("<iII", exactly(read_at, 0, HEAD_BYTES))
    return choose_layout(size_bytes, magic, major, minor)


def read_words(size_bytes: int, read_at: ReadAt) -> RegionWords:
    """Reads 4 kB at most. Raises UnreadableRegionError."""
    layout = read_layout(size_bytes, read_at)
    names = exactly(read_at, layout.uuids, CARD_MAX * UUID_BYTES)
    tail = exactly(read_at, layout.tail, layout.size_bytes - layout.tail)
    _, switch, recent, priority = struct.unpack_from("<4i", tail)
    last = 0
    if layout.last_kernel_time is not None:
        (last,) = struct.unpack_from("<q", tail, layout.last_kernel_time - layout.tail)
    return RegionWords(
        layout=layout.name,
        card_ids=frozenset(_card_ids(names)),
        recent_kernel=recent,
        utilisation_switch=switch,
        priority=priority,
        last_kernel_time_seconds=last,
    )


def _card_ids(names: bytes) -> list[str]:
    places = (names[start : start + UUID_BYTES] for start in range(0, len(names), UUID_BYTES))
    return [place.split(b"\0", 1)[0].decode("ascii", "replace") for place in places if place[0]]
