"""The limits page, declared once: the C header, the codec and the documented table derive from here.

One page of memory that holds what one container may have. The node-agent writes it; libvgpu finds it beside itself and
maps it read-only. All values are little-endian; bytes that no field names are zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import msgspec

DIRECTORY: Final = "limits"
"""Directory of the page, beside the library; mounted read-only into the container."""
FILE: Final = "page"
"""The page in that directory."""

MAGIC: Final = int.from_bytes(b"VGPULIM1", "little")
VERSION: Final = 1
PAGE_BYTES: Final = 4096
MAX_CARDS: Final = 16
UUID_BYTES: Final = 96
PATH_BYTES: Final = 512


class Policy(IntEnum):
    """When compute is limited."""

    DEFAULT = 0
    FORCE = 1
    DISABLE = 2


class Control(IntEnum):
    """Whether the container is held to its limits. DISABLED only where the pod's own specification asks for it."""

    HELD = 0
    DISABLED = 1


class CardFlag(IntEnum):
    """Bits of a card's flags."""

    WITHHELD = 1
    """Nothing is given on the card, whatever its limits say."""


class Field(msgspec.Struct, frozen=True):
    """Where one value lies in its record."""

    offset: int
    kind: str
    """`u32`, `u64`, `i32`, `text` (ends with a zero byte) or the name of a record."""
    name: str
    doc: str
    live: bool = False
    """Changed in place while processes read it, always as one word. Everything else stays as the page was made."""
    count: int = 1
    """Bytes of a text, or how many records follow each other."""

    @property
    def bytes(self) -> int:
        return _WIDTHS[self.kind] * self.count


class Record(msgspec.Struct, frozen=True):
    """Fields without gaps, reserved ones among them."""

    name: str
    bytes: int
    fields: tuple[Field, ...]

    def field(self, name: str) -> Field:
        return next(field for field in self.fields if field.name == name)


SCALARS: Final = ("u32", "i32", "u64")
_WIDTHS: Final = {"u32": 4, "i32": 4, "u64": 8, "text": 1, "card": 128}


CARD: Final = Record(
    "card",
    128,
    (
        Field(0, "text", "uuid", "As the driver tells it, `GPU-...`; letter case does not matter.", count=UUID_BYTES),
        Field(96, "u64", "memory_limit_bytes", "0 = no limit.", live=True),
        Field(104, "u64", "cores_percent", "1 to 100; 100 = no limit.", live=True),
        Field(112, "u64", "context_bytes", "What a context costs on this card; 0 = not known.", live=True),
        Field(120, "u64", "flags", "Bit 0: withheld, nothing is given on the card.", live=True),
    ),
)

PAGE: Final = Record(
    "page",
    PAGE_BYTES,
    (
        Field(0, "u64", "magic", '"VGPULIM1".'),
        Field(8, "u32", "version", "1."),
        Field(12, "u32", "size", "4096, which is also the size of the file."),
        Field(16, "u64", "sequence", "Odd while a change is under way; two more after each.", live=True),
        Field(24, "u64", "writer_generation", "A number of the writer's own; the library ignores it.", live=True),
        Field(32, "u32", "control", "0 held; 1 disabled: every call passes through.", live=True),
        Field(36, "u32", "policy", "When compute is limited: 0 default, 1 force, 2 disable.", live=True),
        Field(40, "i32", "priority", "0 is the most urgent.", live=True),
        Field(44, "u32", "card_count", "Cards in use, at most 16."),
        Field(48, "text", "reserved", "Zero.", count=16),
        Field(64, "text", "region_file", "Absolute path, in the container, of the region file.", count=PATH_BYTES),
        Field(576, "card", "cards", "What may be had on each card.", count=MAX_CARDS),
        Field(2624, "text", "reserved_tail", "Zero.", count=1472),
    ),
)


def misplaced(record: Record) -> Sequence[str]:
    """Names of fields that leave a gap before them, overlap, or lie at no multiple of their width."""
    expected = [0, *(field.offset + field.bytes for field in record.fields)]
    found = [field.name for field, offset in zip(record.fields, expected, strict=False) if field.offset != offset]
    found += [field.name for field in record.fields if field.kind in SCALARS and field.offset % field.bytes]
    return found if expected[-1] == record.bytes else [*found, record.name]
