"""Pod annotation with the MIG instances reserved for a pod's slices."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from hami_model import go_json
from hami_model.cards import MigPlacement, Slots
from hami_model.errors import MalformedError
from hami_model.ids import CardId


class MigInstance(msgspec.Struct, frozen=True, kw_only=True):
    """The instance that the node made for a reservation; 0 is a valid id."""

    uuid: str
    gpu_instance: int
    compute_instance: int


class MigAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """One reserved instance. `slot` is the container's position, `position` that of the slice within the slot."""

    slot: int
    position: int
    card_id: CardId
    profile: str
    placement: MigPlacement
    instance: MigInstance | None = None


_NAMED: Final = re.compile(r'"gpuUUID"\s*:\s*"([^"\\]+)"', re.IGNORECASE)


class MigReading(msgspec.Struct, frozen=True, kw_only=True):
    """What an annotation says, also one that cannot be read as a whole."""

    allocations: tuple[MigAllocation, ...] = ()
    named: tuple[CardId, ...] = ()
    """Cards that an unreadable annotation names."""
    problem: str = ""


def read(text: str) -> MigReading:
    """Reads the annotation. Never raises: one fault makes all of it unreadable, since each may explain another."""
    try:
        found = decode(text)
        for allocation in found:
            if not allocation.placement.is_possible:
                raise MalformedError(
                    f"card {allocation.card_id[:80]!r}: no card has a placement {allocation.placement}"
                )
    except MalformedError as error:
        named = tuple(CardId(name) for name in dict.fromkeys(_NAMED.findall(text)))
        return MigReading(named=named, problem=str(error))
    return MigReading(allocations=found)


def of_slots(slots: Slots) -> tuple[MigAllocation, ...]:
    """The reservations of slices that lie on cards in MIG mode; slot i belongs to container i."""
    return tuple(
        MigAllocation(
            slot=slot_position,
            position=position,
            card_id=held.card_id,
            profile=held.profile,
            placement=held.placement,
        )
        for slot_position, slot in enumerate(slots)
        for position, held in enumerate(slot)
        if held.placement is not None
    )


def decode(text: str) -> tuple[MigAllocation, ...]:
    """Reads the annotation; an empty text is none. Raises MalformedError."""
    if not text:
        return ()
    found = tuple(_allocation(value, place) for place, value in go_json.elements(go_json.parse(text), ""))
    if len({(allocation.slot, allocation.position) for allocation in found}) != len(found):
        raise MalformedError("two MIG allocations for one slice")
    return found


def _allocation(value: object, place: str) -> MigAllocation:
    fields = go_json.Fields(value, place)
    placement = fields.nested("placement")
    allocation = MigAllocation(
        slot=fields.integer("containerIndex"),
        position=fields.integer("deviceIndex"),
        card_id=CardId(fields.string("gpuUUID")),
        profile=fields.string("profile"),
        placement=MigPlacement(
            start=placement.integer("start", go_json.UINT32), size=placement.integer("size", go_json.UINT32)
        ),
        instance=_instance(fields, place),
    )
    if min(allocation.slot, allocation.position) < 0 or not allocation.card_id or not allocation.profile:
        raise MalformedError(f"{place}: needs containerIndex and deviceIndex from 0, gpuUUID and profile")
    if allocation.placement.size == 0:
        raise MalformedError(f"{place}: a placement of size 0 is none")
    return allocation


def _instance(fields: go_json.Fields, place: str) -> MigInstance | None:
    uuid = fields.string("migUUID")
    gpu_instance = fields.optional_integer("gpuInstanceID", go_json.UINT32)
    compute_instance = fields.optional_integer("computeInstanceID", go_json.UINT32)
    if not uuid and gpu_instance is None and compute_instance is None:
        return None
    if not uuid or gpu_instance is None or compute_instance is None:
        raise MalformedError(f"{place}: of migUUID, gpuInstanceID and computeInstanceID give all or none")
    return MigInstance(uuid=uuid, gpu_instance=gpu_instance, compute_instance=compute_instance)


def encode(allocations: Iterable[MigAllocation]) -> str | None:
    """Writes the annotation; None when there is nothing to write. Reservations without profile or size are none."""
    texts = [_encoded(found) for found in allocations if found.profile and found.placement.size]
    return "[" + ",".join(texts) + "]" if texts else None


def _encoded(allocation: MigAllocation) -> str:
    text = (
        f'{{"containerIndex":{allocation.slot},"deviceIndex":{allocation.position},'
        f'"gpuUUID":{go_json.encode_string(allocation.card_id)},'
        f'"profile":{go_json.encode_string(allocation.profile)},'
        f'"placement":{{"start":{allocation.placement.start},"size":{allocation.placement.size}}}'
    )
    if allocation.instance is not None:
        text += (
            f',"migUUID":{go_json.encode_string(allocation.instance.uuid)},'
            f'"gpuInstanceID":{allocation.instance.gpu_instance},'
            f'"computeInstanceID":{allocation.instance.compute_instance}'
        )
    return text + "}"
