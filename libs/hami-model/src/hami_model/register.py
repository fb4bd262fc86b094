"""A node's register annotation: the cards it offers, in one of two written forms.

What is decided where a text is readable but contradicts itself, card by card: an id named twice stays in the inventory
as unhealthy (its usage is kept, nothing new goes there), and so does one that no pod's annotation can name; an element
that is null names no card and is left out. All are problems that the reader reports. Any other fault makes the whole
annotation unreadable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from hami_model import go_json
from hami_model.cards import Card, MigPlacement, MigProfile
from hami_model.errors import HamiError, MalformedAnnotation, MalformedError, MalformedJson
from hami_model.ids import CardId
from hami_model.requests import parse_go_bool
from hami_model.vendors import VendorDescriptor

Handoff = Literal["lock", "late-binding"]
"""How the node learns whose devices an Allocate is for."""

HANDOFF_FIELD: Final = "handoff"
"""Field of each card that says the hand-off; left out where it is `lock`."""
_ID_MARKS: Final = ",:;"
"""They part the fields of a device annotation."""
_DECIMAL: Final = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)


class HandoffNotWritableError(HamiError):
    """The delimited form has no place for the hand-off."""


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says it offers of one vendor."""

    cards: tuple[Card, ...]
    """In the order of the annotation, each id once."""
    handoff: Handoff = "lock"
    """`late-binding` only when every card says so: HAMi's writers drop the field, and then the lock must be taken."""
    problems: tuple[str, ...] = ()


def read(descriptor: VendorDescriptor, text: str) -> Registration:
    """Reads a register annotation. Raises MalformedAnnotation when it cannot be read as a whole."""
    try:
        if descriptor.register_format == "json":
            found = decode_json(text)
            cards, modes = [card for card, _ in found.entries], {mode for _, mode in found.entries}
            handoff: Handoff = "late-binding" if modes == {"late-binding"} else "lock"
            problems = [f"element {position} is null" for position in found.nulls]
        else:
            cards, handoff, problems = list(decode_delimited(text)), "lock", []
    except MalformedError as error:
        raise MalformedAnnotation(descriptor.register_key, str(error)) from error
    possible = [_with_possible_profiles(card, problems) for card in cards]
    unique, duplicated = _without_duplicates([_with_writable_id(card, problems) for card in possible])
    problems += [f"card {card_id!r} is listed more than once and takes no new pods" for card_id in duplicated]
    return Registration(cards=unique, handoff=handoff, problems=tuple(problems))


def _with_possible_profiles(card: Card, problems: list[str]) -> Card:
    """Without MIG profiles and placements that no card can have; what is left out is told."""
    kept: list[MigProfile] = []
    for profile in card.mig_profiles:
        if profile.memory_mib < 0 or profile.cores_percent < 0:
            problems.append(f"card {card.id!r}: MIG profile {profile.name!r} has less than nothing and is left out")
            continue
        possible = tuple(placement for placement in profile.placements if placement.is_possible)
        if possible != profile.placements:
            problems.append(f"card {card.id!r}: MIG profile {profile.name!r} lists places that no card has")
        kept.append(msgspec.structs.replace(profile, placements=possible))
    return card if tuple(kept) == card.mig_profiles else msgspec.structs.replace(card, mig_profiles=tuple(kept))


def _with_writable_id(card: Card, problems: list[str]) -> Card:
    """Unhealthy where the device annotation of a pod could not name it: what the pod holds would not be seen again."""
    if card.id == card.id.strip() and not any(mark in card.id for mark in _ID_MARKS):
        return card
    problems.append(f"card {card.id!r}: an id has no spaces around it and none of {_ID_MARKS}; it takes no new pods")
    return msgspec.structs.replace(card, healthy=False)


def decode(descriptor: VendorDescriptor, text: str) -> tuple[Card, ...]:
    """The cards of a register annotation. Raises MalformedAnnotation."""
    return read(descriptor, text).cards


def _without_duplicates(cards: Iterable[Card]) -> tuple[tuple[Card, ...], list[CardId]]:
    unique: dict[CardId, Card] = {}
    duplicated: list[CardId] = []
    for card in cards:
        if card.id not in unique:
            unique[card.id] = card
        elif card.id not in duplicated:
            duplicated.append(card.id)
            unique[card.id] = msgspec.structs.replace(unique[card.id], healthy=False)
    return tuple(unique.values()), duplicated


class JsonInventory(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON form as written: cards with their hand-off, and the positions of null elements."""

    entries: tuple[tuple[Card, str], ...]
    nulls: tuple[int, ...]


def decode_json(text: str) -> JsonInventory:
    """Reads the JSON form. Raises MalformedJson."""
    entries: list[tuple[Card, str]] = []
    nulls: list[int] = []
    for position, (place, element) in enumerate(go_json.elements(go_json.parse(text), "")):
        if element is None:
            nulls.append(position)
        else:
            fields = go_json.Fields(element, place)
            entries.append((_card(fields), _handoff(element)))
    return JsonInventory(entries=tuple(entries), nulls=tuple(nulls))


def _card(fields: go_json.Fields) -> Card:
    return Card(
        id=CardId(fields.string("id")),
        index=fields.integer("index", go_json.UINT64),
        slots=fields.integer("count", go_json.INT32),
        memory_mib=fields.integer("devmem", go_json.INT32),
        cores_percent=fields.integer("devcore", go_json.INT32),
        model=fields.string("type"),
        numa=fields.integer("numa"),
        mode=fields.string("mode"),
        healthy=fields.boolean("health"),
        mig_profiles=tuple(fields.array("migProfiles", _mig_profile)),
        custom=fields.plain_map("custominfo"),
    )


def _handoff(element: object) -> str:
    """HAMi ignores this field, so a value of ours that cannot be read must not cost the node its cards."""
    pairs = element.pairs if isinstance(element, go_json.Object) else ()
    said = [value for key, value in pairs if key == HANDOFF_FIELD]
    return "late-binding" if said and said[-1] == "late-binding" else "lock"


def _mig_profile(value: object, place: str) -> MigProfile:
    fields = go_json.Fields(value, place)
    return MigProfile(
        name=fields.string("name"),
        memory_mib=fields.integer("memoryMB", go_json.INT32),
        cores_percent=fields.integer("core", go_json.INT32),
        slice_count=fields.integer("sliceCount", go_json.INT32),
        placements=tuple(fields.array("placements", _mig_placement)),
    )


def _mig_placement(value: object, place: str) -> MigPlacement:
    fields = go_json.Fields(value, place)
    return MigPlacement(
        start=fields.integer("start", go_json.UINT32),
        size=fields.integer("size", go_json.UINT32),
    )


def decode_delimited(text: str) -> tuple[Card, ...]:
    """Reads `id,count,mem,core,type,numa,health[,index,mode]:` per card. Raises MalformedError.

    A card without index keeps index 0, which then means "unknown": only ids tell cards apart.
    """
    if ":" not in text:
        raise MalformedError("no ':' after a card")
    return tuple(_delimited_card(segment) for segment in text.split(":") if segment)


def _delimited_card(segment: str) -> Card:
    fields = segment.split(",")
    if len(fields) not in (7, 9):
        raise MalformedError(f"{segment[:80]!r} has {len(fields)} fields, expected 7 or 9")
    card_id, count, memory, cores, model, numa, health = fields[:7]
    index, mode = (fields[7], fields[8]) if len(fields) == 9 else ("0", "hami-core")
    healthy = parse_go_bool(health)
    if healthy is None:
        raise MalformedError(f"card {card_id[:80]!r}: health {health[:24]!r} is neither true nor false")
    return Card(
        id=CardId(card_id),
        index=_decimal(card_id, "index", index, range(2**63)),
        slots=_decimal(card_id, "count", count, go_json.INT32),
        memory_mib=_decimal(card_id, "memory", memory, go_json.INT32),
        cores_percent=_decimal(card_id, "cores", cores, go_json.INT32),
        model=model,
        numa=_decimal(card_id, "numa", numa, go_json.INT64),
        mode=mode,
        healthy=healthy,
    )


def _decimal(card_id: str, field: str, text: str, within: range) -> int:
    if not _DECIMAL.fullmatch(text) or int(text) not in within:
        raise MalformedError(
            f"card {card_id[:80]!r}: {field} {text[:24]!r} is no integer from {within.start} to {within.stop - 1}"
        )
    return int(text)


def encode(descriptor: VendorDescriptor, cards: Iterable[Card], handoff: Handoff = "lock") -> str:
    """Writes a register annotation, byte for byte as HAMi does; the hand-off is added only where it is not the lock.

    Raises HandoffNotWritableError.
    """
    if descriptor.register_format == "json":
        return encode_json(cards, handoff)
    if handoff != "lock":
        raise HandoffNotWritableError(f"{descriptor.word}: the form of this annotation cannot say {handoff}; use lock")
    return encode_delimited(cards)


def encode_json(cards: Iterable[Card], handoff: Handoff = "lock") -> str:
    """The JSON form: fields in HAMi's order, zero values left out."""
    return "[" + ",".join(_json_card(card, handoff) for card in cards) + "]"


def _json_card(card: Card, handoff: Handoff) -> str:
    members = [
        ("id", go_json.encode_string(card.id) if card.id else ""),
        ("index", str(card.index or "")),
        ("count", str(card.slots or "")),
        ("devmem", str(card.memory_mib or "")),
        ("devcore", str(card.cores_percent or "")),
        ("type", go_json.encode_string(card.model) if card.model else ""),
        ("numa", str(card.numa or "")),
        ("mode", go_json.encode_string(card.mode) if card.mode else ""),
        ("migProfiles", _json_mig_profiles(card.mig_profiles) if card.mig_profiles else ""),
        ("health", "true" if card.healthy else ""),
        (HANDOFF_FIELD, go_json.encode_string(handoff) if handoff != "lock" else ""),
    ]
    return "{" + ",".join(f'"{name}":{value}' for name, value in members if value) + "}"


def _json_mig_profiles(profiles: tuple[MigProfile, ...]) -> str:
    return "[" + ",".join(_json_mig_profile(profile) for profile in profiles) + "]"


def _json_mig_profile(profile: MigProfile) -> str:
    listed = ",".join(f'{{"start":{p.start},"size":{p.size}}}' for p in profile.placements)
    placements = f"[{listed}]" if listed else "null"
    return (
        f'{{"name":{go_json.encode_string(profile.name)},"memoryMB":{profile.memory_mib},'
        f'"core":{profile.cores_percent},"sliceCount":{profile.slice_count},"placements":{placements}}}'
    )


def encode_delimited(cards: Iterable[Card]) -> str:
    """The delimited form, nine fields a card."""
    return "".join(
        f"{card.id},{card.slots},{card.memory_mib},{card.cores_percent},{card.model},{card.numa},"
        f"{'true' if card.healthy else 'false'},{card.index},{card.mode}:"
        for card in cards
    )


__all__ = [
    "HANDOFF_FIELD",
    "Handoff",
    "HandoffNotWritableError",
    "JsonInventory",
    "MalformedJson",
    "Registration",
    "decode",
    "decode_delimited",
    "decode_json",
    "encode",
    "encode_delimited",
    "encode_json",
    "read",
]
