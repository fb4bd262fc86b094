"""The limits page as values and as bytes. Pure: files and memory are other modules' work."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from hami_model.errors import MalformedError
from hami_model.limits_page import layout
from hami_model.limits_page.layout import CardFlag, Control, Field, Policy, Record

_FORMATS: Final = {"u32": "<I", "i32": "<i", "u64": "<Q"}
_U64_MAX: Final = 2**64 - 1
_E = TypeVar("_E", Policy, Control)


class MalformedLimitsPage(MalformedError):  # noqa: N818  # reads as the state of the page
    """The page's bytes, or the values that should go into it, break its rules; the message names the field."""


class CardLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What may be had on one card."""

    uuid: str
    memory_limit_bytes: int = 0
    """0 = no limit."""
    cores_percent: int = 100
    context_bytes: int = 0
    """What a context costs; 0 = not known."""
    withheld: bool = False
    """Nothing is given, whatever the limits say."""


class LimitsPage(msgspec.Struct, frozen=True, kw_only=True):
    """What one container may have. `cards` and `region_file` stay as long as the page does."""

    region_file: str
    cards: tuple[CardLimits, ...]
    policy: Policy = Policy.DEFAULT
    priority: int = 1
    """0 is the most urgent."""
    control: Control = Control.HELD
    writer_generation: int = 0


class Word(msgspec.Struct, frozen=True):
    """A value that is changed in place, whole."""

    offset: int
    kind: str
    value: int

    @property
    def bytes(self) -> bytes:
        return struct.pack(_FORMATS[self.kind], self.value)


SEQUENCE: Final = layout.PAGE.field("sequence")


def encode(page: LimitsPage, sequence: int = 0) -> bytes:
    """The page's bytes. Raises MalformedLimitsPage where a value has no place in it."""
    _check(page)
    out = bytearray(layout.PAGE_BYTES)
    for name, value in (
        ("magic", layout.MAGIC),
        ("version", layout.VERSION),
        ("size", layout.PAGE_BYTES),
        ("sequence", sequence),
        ("card_count", len(page.cards)),
    ):
        _put(out, layout.PAGE.field(name), value)
    _put_text(out, layout.PAGE.field("region_file").offset, page.region_file)
    for index, card in enumerate(page.cards):
        _put_text(out, _card_offset(index), card.uuid)
    for word in live_words(page):
        out[word.offset : word.offset + len(word.bytes)] = word.bytes
    return bytes(out)


def decode(data: bytes) -> LimitsPage:
    """The values of a page's bytes, by the rules that libvgpu goes by. Raises MalformedLimitsPage."""
    if len(data) != layout.PAGE_BYTES:
        raise MalformedLimitsPage(f"it has {len(data)} bytes, not {layout.PAGE_BYTES}")
    values = {field.name: _get(data, field, 0) for field in layout.PAGE.fields if field.kind in _FORMATS}
    for name, wanted in (("magic", layout.MAGIC), ("version", layout.VERSION), ("size", layout.PAGE_BYTES)):
        if values[name] != wanted:
            raise MalformedLimitsPage(f"{name} is {values[name]:#x}, not {wanted:#x}")
    if values["card_count"] > layout.MAX_CARDS:
        raise MalformedLimitsPage(f"card_count is {values['card_count']}, above {layout.MAX_CARDS}")
    if any(data[layout.PAGE.field("reserved").offset :][: layout.PAGE.field("reserved").bytes]) or any(
        data[layout.PAGE.field("reserved_tail").offset :]
    ):
        raise MalformedLimitsPage("a reserved byte is not zero")
    if any(data[_card_offset(values["card_count"]) : _card_offset(layout.MAX_CARDS)]):
        raise MalformedLimitsPage("a card beyond card_count is not zero")
    page = LimitsPage(
        region_file=_get_text(data, layout.PAGE.field("region_file"), 0),
        cards=tuple(_decode_card(data, _card_offset(index)) for index in range(values["card_count"])),
        policy=_member(Policy, "policy", values["policy"]),
        priority=values["priority"],
        control=_member(Control, "control", values["control"]),
        writer_generation=values["writer_generation"],
    )
    _check(page)
    return page


def sequence_of(data: bytes) -> int:
    """Odd while a change is under way."""
    return _get(data, SEQUENCE, 0)


def live_words(page: LimitsPage) -> tuple[Word, ...]:
    """Everything that may change in place, apart from the sequence."""
    found = [
        _word(layout.PAGE, name, 0, value)
        for name, value in (
            ("writer_generation", page.writer_generation),
            ("control", page.control),
            ("policy", page.policy),
            ("priority", page.priority),
        )
    ]
    for index, card in enumerate(page.cards):
        values: Mapping[str, int] = {
            "memory_limit_bytes": card.memory_limit_bytes,
            "cores_percent": card.cores_percent,
            "context_bytes": card.context_bytes,
            "flags": CardFlag.WITHHELD if card.withheld else 0,
        }
        found += [_word(layout.CARD, name, _card_offset(index), value) for name, value in values.items()]
    return tuple(found)


def same_container(before: LimitsPage, after: LimitsPage) -> bool:
    """Whether one can become the other in place: what is not live is equal."""
    return before.region_file == after.region_file and [card.uuid for card in before.cards] == [
        card.uuid for card in after.cards
    ]


# ---- rules ---------------------------------------------------------------------------------------------------------


def _check(page: LimitsPage) -> None:
    if not page.region_file.startswith("/"):
        raise MalformedLimitsPage("region_file is no absolute path")
    _check_text("region_file", page.region_file, layout.PATH_BYTES)
    if not -(2**31) <= page.priority < 2**31:
        raise MalformedLimitsPage(f"priority is {page.priority}")
    if not 0 <= page.writer_generation <= _U64_MAX:
        raise MalformedLimitsPage(f"writer_generation is {page.writer_generation}")
    if len(page.cards) > layout.MAX_CARDS:
        raise MalformedLimitsPage(f"{len(page.cards)} cards are more than {layout.MAX_CARDS}")
    for card in page.cards:
        _check_card(card)
    names = [card.uuid.lower() for card in page.cards]
    if len(set(names)) != len(names):
        raise MalformedLimitsPage("two cards have the same uuid")


def _check_card(card: CardLimits) -> None:
    if not card.uuid:
        raise MalformedLimitsPage("a card has no uuid")
    if not (card.uuid.isascii() and card.uuid.isprintable()):
        raise MalformedLimitsPage("a card's uuid is not printable ASCII")
    _check_text("uuid", card.uuid, layout.UUID_BYTES)
    if not 1 <= card.cores_percent <= 100:
        raise MalformedLimitsPage(f"cores_percent is {card.cores_percent}, not 1 to 100")
    for name in ("memory_limit_bytes", "context_bytes"):
        if not 0 <= getattr(card, name) <= _U64_MAX:
            raise MalformedLimitsPage(f"{name} is {getattr(card, name)}")


def _check_text(name: str, text: str, room: int) -> None:
    if "\0" in text:
        raise MalformedLimitsPage(f"{name} holds a zero byte")
    if len(_bytes(text)) >= room:
        raise MalformedLimitsPage(f"{name} is longer than {room - 1} bytes")


# ---- bytes ---------------------------------------------------------------------------------------------------------


def _card_offset(index: int) -> int:
    return layout.PAGE.field("cards").offset + index * layout.CARD.bytes


def _word(record: Record, name: str, base: int, value: int) -> Word:
    field = record.field(name)
    return Word(base + field.offset, field.kind, int(value))


def _put(out: bytearray, field: Field, value: int) -> None:
    struct.pack_into(_FORMATS[field.kind], out, field.offset, value)


def _bytes(text: str) -> bytes:
    """A path may hold any bytes, as in Python's `os`."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise MalformedLimitsPage("a text has no bytes") from error


def _put_text(out: bytearray, offset: int, text: str) -> None:
    data = _bytes(text)
    out[offset : offset + len(data)] = data


def _get(data: bytes, field: Field, base: int) -> int:
    (value,) = struct.unpack_from(_FORMATS[field.kind], data, base + field.offset)
    return int(value)


def _get_text(data: bytes, field: Field, base: int) -> str:
    raw = data[base + field.offset :][: field.bytes]
    text, _, rest = raw.partition(b"\0")
    if len(text) == field.bytes or any(rest):
        raise MalformedLimitsPage(f"{field.name} does not end with zero bytes")
    return text.decode(errors="surrogateescape")


def _decode_card(data: bytes, base: int) -> CardLimits:
    values = {field.name: _get(data, field, base) for field in layout.CARD.fields if field.kind in _FORMATS}
    if values["flags"] & ~CardFlag.WITHHELD:
        raise MalformedLimitsPage(f"flags are {values['flags']:#x}, of which some mean nothing")
    return CardLimits(
        uuid=_get_text(data, layout.CARD.field("uuid"), base),
        memory_limit_bytes=values["memory_limit_bytes"],
        cores_percent=values["cores_percent"],
        context_bytes=values["context_bytes"],
        withheld=bool(values["flags"] & CardFlag.WITHHELD),
    )


def _member(kind: type[_E], name: str, value: int) -> _E:
    try:
        return kind(value)
    except ValueError as error:
        raise MalformedLimitsPage(f"{name} is {value}") from error
