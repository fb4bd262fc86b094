"""HAMi's monitor: which file of a container it maps, what it adds up there, and what it writes back at each tick.

Written from its rules and the table of its layouts, not from its source; `test_stand_ins.py` holds it against
recordings of HAMi itself. It trusts every file, as HAMi's does.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

MAGIC = 19920718
CARDS, SLOTS, UUID_BYTES, LABEL_BYTES = 16, 1024, 96, 40
V0_SIZE, V1_SIZE = 1197896, 2008952


class Layout(NamedTuple):
    """Offsets in bytes; `last_kernel` 0: the layout has none."""

    parser: str
    device_count: int
    uuids: int
    limits: int
    procs: int
    proc_stride: int
    used_stride: int
    utilisation: int
    utilisation_stride: int
    status: int
    proc_count: int
    switch: int
    recent: int
    priority: int
    last_kernel: int


V0 = Layout("v0", 48, 56, 1592, 1848, 1168, 40, 776, 24, 1160, 1197880, 1197884, 1197888, 1197892, 0)
V1 = Layout("v1", 56, 64, 1600, 1856, 1960, 64, 1160, 48, 1928, 2008896, 2008900, 2008904, 2008908, 2008912)


class NotLoadedError(Exception):
    """The monitor refuses the file or the folder."""


def layout_of(data: bytes | mmap.mmap, size: int) -> Layout:
    """By magic, size and major version. Raises NotLoadedError."""
    if size < 12:
        raise NotLoadedError("too short")
    magic, major = struct.unpack_from("<iI", data)
    if magic != MAGIC:
        raise NotLoadedError("no region")
    if V0_SIZE <= size < V1_SIZE:
        return V0
    if major == 1 and size >= V1_SIZE:
        return V1
    raise NotLoadedError(f"version {major} with {size} bytes")


def file_of(folder: Path) -> Path | None:
    """The file of a container's folder that is mapped; None where the container has not started CUDA yet."""
    names = sorted(path.name for path in folder.iterdir())
    if sum("libvgpu.so" in name or name.endswith(".cache") for name in names) > 2:
        raise NotLoadedError("too many files")
    found = [name for name in names if name.endswith(".cache") and "libvgpu.so" not in name]
    return folder / found[0] if found else None


class Region:
    """A mapped file."""

    def __init__(self, data: Any, size: int) -> None:
        self.layout = layout_of(data, size)
        self._data = data

    @classmethod
    def map(cls, path: Path) -> Region:
        with path.open("r+b") as file:
            size = path.stat().st_size
            if size < 12:
                raise NotLoadedError("too short")
            return cls(mmap.mmap(file.fileno(), size), size)

    def _int(self, offset: int) -> int:
        return int(struct.unpack_from("<i", self._data, offset)[0])

    def _word(self, offset: int) -> int:
        return int(struct.unpack_from("<Q", self._data, offset)[0])

    def _store(self, offset: int, value: int) -> None:
        struct.pack_into("<i", self._data, offset, value)

    @property
    def device_count(self) -> int:
        return min(self._word(self.layout.device_count), CARDS)

    @property
    def uuids(self) -> list[bytes]:
        """Of the cards that are named, whole."""
        every = [self.uuid(card) for card in range(CARDS)]
        return [uuid for uuid in every if uuid[0] != 0]

    def uuid(self, card: int) -> bytes:
        offset = self.layout.uuids + card * UUID_BYTES
        return bytes(self._data[offset : offset + UUID_BYTES])

    def limit(self, card: int) -> int:
        return self._word(self.layout.limits + 8 * card)

    def used(self, card: int) -> dict[str, int]:
        """Sums over the slots that live."""
        fields = ("context", "module", "buffer", "offset", "total")
        sums = dict.fromkeys(fields, 0)
        for slot in self._living():
            for number, field in enumerate(fields):
                offset = slot + 8 + card * self.layout.used_stride + 8 * number
                sums[field] = (sums[field] + self._word(offset)) % 2**64
        return sums

    def sm_utilisation(self, card: int) -> int:
        of_card = self.layout.utilisation + card * self.layout.utilisation_stride + 16
        return sum(self._word(slot + of_card) for slot in self._living()) % 2**64

    def _living(self) -> Iterable[int]:
        for number in range(min(max(self._int(self.layout.proc_count), 0), SLOTS)):
            slot = self.layout.procs + number * self.layout.proc_stride
            if self._int(slot + self.layout.status) != 0:
                yield slot

    @property
    def priority(self) -> int:
        return self._int(self.layout.priority)

    @property
    def last_kernel(self) -> int:
        return int(struct.unpack_from("<q", self._data, self.layout.last_kernel)[0]) if self.layout.last_kernel else 0

    @property
    def recent(self) -> int:
        return self._int(self.layout.recent)

    @recent.setter
    def recent(self, value: int) -> None:
        self._store(self.layout.recent, value)

    @property
    def switch(self) -> int:
        return self._int(self.layout.switch)

    @switch.setter
    def switch(self, value: int) -> None:
        self._store(self.layout.switch, value)


def tick(regions: Iterable[Region]) -> None:
    """One pass of its feedback."""
    every = list(regions)
    active: dict[bytes, dict[int, int]] = {}
    for region in every:
        if region.recent > 0:
            region.recent -= 1
            if region.recent > 0 and region.priority >= 0:
                for uuid in region.uuids:
                    counts = active.setdefault(uuid, {})
                    counts[region.priority] = counts.get(region.priority, 0) + 1
    for region in every:
        mine = [active.get(uuid, {}) for uuid in region.uuids]
        blocked = any(count > 0 for counts in mine for priority, count in counts.items() if priority < region.priority)
        contended = blocked or any(counts.get(region.priority, 0) > 1 for counts in mine)
        if blocked:
            if region.recent >= 0:
                region.recent = -1
        elif region.recent < 0:
            region.recent = 0
        region.switch = 1 if contended else 0
