"""The slots of a region, one of each process, reduced to whose they are."""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from hami_monitor.core.region import ReadAt, exactly, is_ours
from hami_monitor.core.region_layouts import (
    EXTENSION_OFFSET,
    EXTENSION_OWNER_BYTES,
    EXTENSION_OWNERS,
    SLOT_MAX,
    Layout,
)
from hami_monitor.core.region_words import read_layout

HOST_PID: Final = 4
"""Where in a slot."""
_PIDS: Final = struct.Struct("<ii")
_STATUS: Final = struct.Struct("<i")
_OWNER: Final = struct.Struct("<QQ")


class SlotHead(msgspec.Struct, frozen=True, kw_only=True):
    """A live slot, as it stood at one moment."""

    index: int
    pid: int
    """In the container."""
    host_pid: int
    """0: not known."""
    began_at_ticks: int = 0
    """Field 22 of its /proc/<pid>/stat; 0: the layout does not say."""
    pid_namespace: int = 0
    """In which `pid` counts, as inode; 0: the layout does not say."""

    def is_of_the_same_process(self, other: SlotHead) -> bool:
        return (self.pid, self.began_at_ticks, self.pid_namespace) == (
            other.pid, other.began_at_ticks, other.pid_namespace,
        )  # fmt: skip


class RegionSlots(msgspec.Struct, frozen=True, kw_only=True):
    layout: str
    is_ours: bool
    """Made by our library, which says when a slot's process began; not looked at where no slot waits."""
    slots: tuple[SlotHead, ...]
    """That wait for the pid."""


def read_slots(size_bytes: int, read_at: ReadAt) -> RegionSlots:
    """Those that do not know their process's pid on the host; when it began is not read where all know. Raises
    UnreadableRegionError."""
    layout = read_layout(size_bytes, read_at)
    (written,) = _STATUS.unpack(exactly(read_at, layout.slot_count, _STATUS.size))
    count = min(max(written, 0), SLOT_MAX)
    slots = exactly(read_at, layout.slots, count * layout.slot_bytes)
    waiting = [
        index
        for index, start in enumerate(range(0, len(slots), layout.slot_bytes))
        if _PIDS.unpack_from(slots, start)[1] == 0
    ]
    if not waiting:
        return RegionSlots(layout=layout.name, is_ours=False, slots=())
    ours = is_ours(layout, size_bytes, read_at)
    owners = _owners(count, read_at) if ours else b""
    found = (
        _slot(index, slots[index * layout.slot_bytes : (index + 1) * layout.slot_bytes], layout, owners)
        for index in waiting
    )
    return RegionSlots(layout=layout.name, is_ours=ours, slots=tuple(slot for slot in found if slot is not None))


def read_slot(layout: Layout, index: int, read_at: ReadAt, *, with_owner: bool) -> SlotHead | None:
    """None: it is free. Raises UnreadableRegionError."""
    content = exactly(read_at, layout.slots + index * layout.slot_bytes, layout.slot_bytes)
    return _slot(index, content, layout, _owners(index + 1, read_at) if with_owner else b"")


def host_pid_offset(layout: Layout, index: int) -> int:
    return layout.slots + index * layout.slot_bytes + HOST_PID


def _slot(index: int, content: bytes, layout: Layout, owners: bytes) -> SlotHead | None:
    pid, host_pid = _PIDS.unpack_from(content)
    if pid <= 0 or _STATUS.unpack_from(content, layout.status) == (0,):
        return None
    place = index * EXTENSION_OWNER_BYTES
    began, namespace = _OWNER.unpack_from(owners, place) if len(owners) >= place + _OWNER.size else (0, 0)
    return SlotHead(index=index, pid=pid, host_pid=host_pid, began_at_ticks=began, pid_namespace=namespace)


def _owners(count: int, read_at: ReadAt) -> bytes:
    """Of the first so many slots; fewer where the extension was cut short."""
    return read_at(EXTENSION_OFFSET + EXTENSION_OWNERS, count * EXTENSION_OWNER_BYTES)
