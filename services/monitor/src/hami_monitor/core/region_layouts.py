"""The layouts of the shared region file, as offsets in bytes. All fields are little-endian and naturally aligned.

The file is written by processes of a container, so nothing in it is trusted. A layout is chosen by magic, version and
size; a minor version only ever appends, so every minor of major 1 reads as 1.2. The one exception, builds of early 2026
that shifted their fields and kept saying 1.1, is told by its exact size.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from hami_model.errors import MalformedError

MAGIC: Final = 19920718
CARD_MAX: Final = 16
SLOT_MAX: Final = 1024
UUID_BYTES: Final = 96
HEAD_BYTES: Final = 12
"""Magic, major and minor version; v0 has other fields in place of the versions."""

EXTENSION_OFFSET: Final = 2008960
EXTENSION_MAGIC: Final = b"VGPUEXT1"
"""Of what our own library appends to layout 1.2, which makes it 1.3."""
EXTENSION_MINOR: Final = 3
"""First minor version whose extension is laid out as here; later ones only append."""
EXTENSION_OWNERS: Final = 3136
"""In the extension: whose the slots are, one after the other."""
EXTENSION_OWNER_BYTES: Final = 32
EXTENSION_OWNER_BEGAN: Final = 0
"""In an owner: field 22 of /proc/<pid>/stat of its process."""


class UnreadableRegionError(MalformedError):
    """A file is no region file of a layout we know. The message says why."""


class UsedFields(msgspec.Struct, frozen=True, kw_only=True):
    """What a process holds on one card, 64-bit each, within a slot."""

    start: int
    stride: int
    context: int = 0
    module: int = 8
    data: int = 16
    offset: int = 24
    total: int = 32


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Where what is. Offsets of slots' fields count from the start of the slot."""

    name: str
    parser: Literal["v0", "v1"]
    """Which of HAMi's two readers understands it."""
    size_bytes: int
    """Without the zero byte that follows."""
    device_count: int
    uuids: int
    memory_limits: int
    cores_limits: int
    slots: int
    slot_bytes: int
    status: int
    used: UsedFields
    utilisation: int
    """Of the SMs, on the first card."""
    utilisation_stride: int
    slot_count: int
    utilisation_switch: int
    recent_kernel: int
    priority: int
    last_kernel_time: int | None
    """Seconds since the epoch; absent in v0."""

    @property
    def tail(self) -> int:
        """Start of what follows the slots."""
        return self.slot_count


V0: Final = Layout(
    name="v0",
    parser="v0",
    size_bytes=1197896,
    device_count=48,
    uuids=56,
    memory_limits=1592,
    cores_limits=1720,
    slots=1848,
    slot_bytes=1168,
    status=1160,
    used=UsedFields(start=8, stride=40),
    utilisation=776 + 16,
    utilisation_stride=24,
    slot_count=1197880,
    utilisation_switch=1197884,
    recent_kernel=1197888,
    priority=1197892,
    last_kernel_time=None,
)

V1: Final = Layout(
    name="v1",
    parser="v1",
    size_bytes=2008952,
    device_count=56,
    uuids=64,
    memory_limits=1600,
    cores_limits=1728,
    slots=1856,
    slot_bytes=1960,
    status=1928,
    used=UsedFields(start=8, stride=64),
    utilisation=1160 + 16,
    utilisation_stride=48,
    slot_count=2008896,
    utilisation_switch=2008900,
    recent_kernel=2008904,
    priority=2008908,
    last_kernel_time=2008912,
)

V1_1_SHIFTED: Final = Layout(
    name="v1.1-bis",
    parser="v1",
    size_bytes=2008984,
    device_count=88,
    uuids=96,
    memory_limits=1632,
    cores_limits=1760,
    slots=1888,
    slot_bytes=1960,
    status=1936,
    used=UsedFields(start=16, stride=64),
    utilisation=1168 + 16,
    utilisation_stride=48,
    slot_count=2008928,
    utilisation_switch=2008932,
    recent_kernel=2008936,
    priority=2008940,
    last_kernel_time=2008944,
)

LAYOUTS: Final = (V0, V1, V1_1_SHIFTED)


def choose_layout(size_bytes: int, magic: int, major: int, minor: int) -> Layout:
    """The layout of a file of that size with that head. Raises UnreadableRegionError."""
    if magic != MAGIC:
        raise UnreadableRegionError(f"magic number {magic} instead of {MAGIC}: not yet initialised, or no region file")
    if major == 1:
        if (minor, size_bytes) == (1, V1_1_SHIFTED.size_bytes + 1):
            return V1_1_SHIFTED
        if size_bytes >= V1.size_bytes:
            return V1
        raise UnreadableRegionError(f"{size_bytes} bytes are too few for version {major}.{minor}: it was cut short")
    # What would be a version is the flag of an unused function and a lock's owner here: only the size tells.
    if V0.size_bytes <= size_bytes < V1.size_bytes:
        return V0
    raise UnreadableRegionError(f"no layout is known for {size_bytes} bytes and version {major}.{minor}")
