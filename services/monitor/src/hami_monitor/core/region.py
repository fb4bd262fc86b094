"""Reads a region file through bounded plain reads.

Nothing in the file is believed beyond its own container: counts are clamped, every read has a fixed upper bound, and a
file that ends early is unreadable.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import msgspec

from hami_monitor.core.region_layouts import (
    CARD_MAX,
    EXTENSION_MAGIC,
    EXTENSION_MINOR,
    EXTENSION_OFFSET,
    EXTENSION_OWNER_BEGAN,
    EXTENSION_OWNER_BYTES,
    EXTENSION_OWNERS,
    HEAD_BYTES,
    SLOT_MAX,
    UUID_BYTES,
    V1,
    Layout,
    UnreadableRegionError,
    choose_layout,
)

ReadAt = Callable[[int, int], bytes]
"""Offset and length to bytes; fewer where the file ends."""

_WORD: Final = 8
_UINT64: Final = (1 << 64) - 1


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that processes hold on one card. Sums wrap at 2^64, as the library's own do."""

    total: int = 0
    context: int = 0
    module: int = 0
    data: int = 0
    offset: int = 0


class RegionCard(msgspec.Struct, frozen=True, kw_only=True):
    """One of the sixteen places for cards, in the container's NVML order."""

    index: int
    uuid: bytes
    """All 96 bytes; empty place: they begin with zero."""
    memory_limit_bytes: int
    """0: none."""
    cores_limit_percent: int
    used: MemoryUse
    """Of all live processes."""
    utilisation_percent: int
    """Sum over the live processes; may exceed 100."""

    @property
    def is_named(self) -> bool:
        return self.uuid[0] != 0

    @property
    def id(self) -> str:
        """The UUID as text; what is no ASCII is replaced, so that it equals no card's."""
        return self.uuid.split(b"\0", 1)[0].decode("ascii", "replace")


class RegionProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A live slot."""

    pid: int
    """In the container."""
    host_pid: int
    """0: not known."""
    status: int
    """1 running, 2 suspended."""
    began_at_ticks: int = 0
    """When its process began, as in field 22 of /proc/<pid>/stat; 0: the layout does not say."""
    used_bytes: tuple[int, ...]
    """By card."""


class Region(msgspec.Struct, frozen=True, kw_only=True):
    """What one file says at the moment of reading."""

    layout: str
    parser: str
    version: tuple[int, int] | None
    """Major and minor; None in v0."""
    device_count: int
    """As written."""
    cards: tuple[RegionCard, ...]
    processes: tuple[RegionProcess, ...]
    utilisation_switch: int
    recent_kernel: int
    priority: int
    keeps_utilisation: bool
    """False: made by our library, which knows it only from the same driver that the monitor asks."""
    last_kernel_time_seconds: int
    """Since the epoch; 0 or less: never, or not kept by the layout."""


class DecodedRegion(msgspec.Struct, frozen=True, kw_only=True):
    """A region, and the bytes that its cards and processes were made of."""

    region: Region
    head: bytes
    slots: bytes
    beginnings: tuple[int, ...]
    """Of the slots' processes; empty: not told."""


def read_region(size_bytes: int, read_at: ReadAt) -> Region:
    """Raises UnreadableRegionError. Reads at most 2.1 MB, whatever the size."""
    return decode_region(size_bytes, read_at, None).region


def decode_region(size_bytes: int, read_at: ReadAt, before: DecodedRegion | None) -> DecodedRegion:
    """As `read_region`; cards and processes are taken from `before` where their bytes are the same."""
    if size_bytes < HEAD_BYTES:
        raise UnreadableRegionError(f"{size_bytes} bytes are too few for a region file")
    magic, major, minor = struct.unpack("<iII", exactly(read_at, 0, HEAD_BYTES))
    layout = choose_layout(size_bytes, magic, major, minor)
    head = exactly(read_at, 0, layout.slots)
    tail = exactly(read_at, layout.tail, layout.size_bytes - layout.tail)
    counts = struct.unpack_from("<4i", tail)
    slot_count = min(max(counts[0], 0), SLOT_MAX)
    ours = is_ours(layout, size_bytes, read_at)
    content = exactly(read_at, layout.slots, slot_count * layout.slot_bytes)
    beginnings = _beginnings(size_bytes, read_at, slot_count) if ours and minor >= EXTENSION_MINOR else ()
    if (
        before is not None
        and before.region.layout == layout.name
        and (before.head, before.slots, before.beginnings) == (head, content, beginnings)
    ):
        cards, processes = before.region.cards, before.region.processes
    else:
        slots = _Slots(layout, content, beginnings)
        cards, processes = tuple(_card(layout, head, slots, index) for index in range(CARD_MAX)), slots.processes()
    region = Region(
        layout=layout.name,
        parser=layout.parser,
        version=(major, minor) if layout.parser == "v1" else None,
        device_count=struct.unpack_from("<Q", head, layout.device_count)[0],
        cards=cards,
        processes=processes,
        utilisation_switch=counts[1],
        recent_kernel=counts[2],
        priority=counts[3],
        keeps_utilisation=not ours,
        last_kernel_time_seconds=_last_kernel_time(layout, tail),
    )
    return DecodedRegion(region=region, head=head, slots=content, beginnings=beginnings)


def exactly(read_at: ReadAt, offset: int, length: int) -> bytes:
    """Raises UnreadableRegionError where the file ends before."""
    found = read_at(offset, length)
    if len(found) != length:
        raise UnreadableRegionError(f"it ended at {offset + len(found)} bytes while it was read")
    return found


def is_ours(layout: Layout, size_bytes: int, read_at: ReadAt) -> bool:
    """Whether our library made it. Raises UnreadableRegionError."""
    end = EXTENSION_OFFSET + len(EXTENSION_MAGIC)
    if layout is not V1 or size_bytes < end:
        return False
    found: bytes = exactly(read_at, EXTENSION_OFFSET, len(EXTENSION_MAGIC))
    return found == EXTENSION_MAGIC


def _beginnings(size_bytes: int, read_at: ReadAt, slot_count: int) -> tuple[int, ...]:
    """Of the slots' processes; none where the extension was cut short."""
    start, length = EXTENSION_OFFSET + EXTENSION_OWNERS, slot_count * EXTENSION_OWNER_BYTES
    if size_bytes < start + length:
        return ()
    owners = struct.unpack(f"<{length // _WORD}Q", exactly(read_at, start, length))
    return owners[EXTENSION_OWNER_BEGAN // _WORD :: EXTENSION_OWNER_BYTES // _WORD]


def _last_kernel_time(layout: Layout, tail: bytes) -> int:
    if layout.last_kernel_time is None:
        return 0
    (seconds,) = struct.unpack_from("<q", tail, layout.last_kernel_time - layout.tail)
    return int(seconds)


def _card(layout: Layout, head: bytes, slots: _Slots, index: int) -> RegionCard:
    uuid = layout.uuids + index * UUID_BYTES
    used = layout.used
    place = used.start + index * used.stride
    return RegionCard(
        index=index,
        uuid=head[uuid : uuid + UUID_BYTES],
        memory_limit_bytes=struct.unpack_from("<Q", head, layout.memory_limits + index * _WORD)[0],
        cores_limit_percent=struct.unpack_from("<Q", head, layout.cores_limits + index * _WORD)[0],
        used=MemoryUse(
            total=slots.sum(place + used.total),
            context=slots.sum(place + used.context),
            module=slots.sum(place + used.module),
            data=slots.sum(place + used.data),
            offset=slots.sum(place + used.offset),
        ),
        utilisation_percent=slots.sum(layout.utilisation + index * layout.utilisation_stride),
    )


class _Slots:
    """The live slots, one after the other as 64-bit words; every field of interest begins at one."""

    def __init__(self, layout: Layout, content: bytes, beginnings: tuple[int, ...]) -> None:
        """`beginnings`: of all slots, or none."""
        self._layout = layout
        self._step = layout.slot_bytes // _WORD
        live = [
            index
            for index in range(len(content) // layout.slot_bytes)
            if struct.unpack_from("<i", content, index * layout.slot_bytes + layout.status)[0]
        ]
        self._content = b"".join(content[index * layout.slot_bytes : (index + 1) * layout.slot_bytes] for index in live)
        self._beginnings = tuple(beginnings[index] for index in live) if beginnings else (0,) * len(live)
        self._words: tuple[int, ...] = struct.unpack(f"<{len(self._content) // _WORD}Q", self._content)

    def sum(self, offset: int) -> int:
        """Of one field over the live slots, modulo 2^64."""
        if len(self._words) == self._step:  # one process, as in most containers
            return self._words[offset // _WORD]
        return sum(self._words[offset // _WORD :: self._step]) & _UINT64

    def processes(self) -> tuple[RegionProcess, ...]:
        layout = self._layout
        total = (layout.used.start + layout.used.total) // _WORD
        stride = layout.used.stride // _WORD
        found = []
        for start, began in zip(range(0, len(self._words), self._step), self._beginnings, strict=True):
            pid, host_pid = struct.unpack_from("<ii", self._content, start * _WORD)
            (status,) = struct.unpack_from("<i", self._content, start * _WORD + layout.status)
            used = self._words[start + total : start + total + CARD_MAX * stride : stride]
            found.append(
                RegionProcess(pid=pid, host_pid=host_pid, status=status, began_at_ticks=began, used_bytes=used)
            )
        return tuple(found)
