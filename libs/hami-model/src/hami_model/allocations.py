"""Pod device annotations: which slices of which cards each container holds, per vendor.

Written form: per container `id,vendor,memory,cores:` for each slice, then `;`. We write exactly one slot per container,
init containers first. Readers take what any HAMi version wrote; what contradicts itself blocks the cards it names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from hami_model import go_json, keys, kube, mig_allocations
from hami_model.annotation_writers import Placed, writer
from hami_model.cards import MigClaim, Slice, Slots
from hami_model.device_config import DeviceConfig, VendorSettings
from hami_model.errors import InvalidRequestError, MalformedError
from hami_model.ids import AllocationId, CardId, NodeName
from hami_model.requests import CardRequest, card_request

_DECIMAL: Final = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
_NO_MODES: Final[Mapping[str, str]] = MappingProxyType({})
_SUFFIXED: Final = re.compile(r"(?P<card>.+)\[[0-9]+-[0-9]+\]", re.ASCII)
"""How HAMi before 2.10 named an instance, by a layout that no node tells any more."""
_PROBLEM_LENGTH: Final = 400
"""A problem ends up in a Kubernetes Event, which holds 1,024 characters."""


class ReadAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod holds of one vendor's cards."""

    slots: Slots
    """One per container of the pod, init containers first: everything that could be read."""
    blocked_cards: tuple[CardId, ...] = ()
    """Cards that must take no new pod until the annotation is mended or the pod is gone. They may be unknown ones."""
    claims: tuple[MigClaim, ...] = ()
    """MIG instances that it claims beyond the slices."""
    problem: str = ""
    """What is wrong with the annotation; empty when nothing is."""

    @property
    def holds_cards(self) -> bool:
        return any(self.slots) or bool(self.blocked_cards) or bool(self.claims)


def encode(slots: Slots) -> str:
    """Writes a device annotation."""
    return "".join(
        "".join(f"{piece.card_id},{piece.vendor},{piece.memory_mib},{piece.cores_percent}:" for piece in slot) + ";"
        for slot in slots
    )


def decode(text: str) -> Slots:
    """Reads a device annotation as HAMi does: the text after the last `;` is one more slot. Raises MalformedError.

    Positions, signs and vendors are not judged; `read` does that.
    """
    return tuple(
        tuple(_slice(item) for item in slot.split(":") if "," in item)
        for slot in text.split(";")
    )  # fmt: skip


def _slice(item: str) -> Slice:
    fields = item.split(",")
    if len(fields) < 4:
        raise MalformedError(f"{item[:80]!r} has {len(fields)} fields, expected id,vendor,memory,cores")
    return Slice(
        card_id=CardId(fields[0]),
        vendor=fields[1],
        memory_mib=_int32(fields[0], "memory", fields[2]),
        cores_percent=_int32(fields[0], "cores", fields[3]),
    )


def _int32(card_id: str, field: str, text: str) -> int:
    if not _DECIMAL.fullmatch(text) or int(text) not in go_json.INT32:
        raise MalformedError(f"card {card_id[:80]!r}: {field} {text[:24]!r} is no 32-bit integer")
    return int(text)


class _Slot(msgspec.Struct):
    """One slot as read: `entries` counts also those that could not be read."""

    slices: list[Slice] = []
    positions: list[int] = []
    """Of each slice, its place among the entries."""
    entries: int = 0


class _Reading(msgspec.Struct):
    slots: list[_Slot] = []
    named: list[str] = []
    """Cards of all entries."""
    faults: list[str] = []
    loose: list[str] = []
    """Items that are no entries; such a text may still be the id of a card."""


def read(pod: kube.Pod, settings: VendorSettings) -> ReadAllocation:
    """The pod's allocation of one vendor, from the annotation that keeps it for the pod's whole life. Never raises."""
    text = pod.annotations.get(settings.vendor.allocated_key)
    containers = pod.all_containers
    empty: Slots = ((),) * len(containers)
    if text is None:
        return ReadAllocation(slots=empty)
    reading = _read_items(text, settings.vendor.word)
    reservations, claims = _read_reservations(pod, settings, reading)
    matched = _match(reading.slots, containers, settings)
    if matched is None:
        reading.faults.append(f"{len(reading.slots)} slots cannot be matched to {len(containers)} containers")
        matched = _all_in_last(reading.slots, empty)
    blocked = [*(reading.named if reading.faults else ()), *reading.loose, *reservations.named]
    faults = [*reading.faults, *(f"{item[:80]!r} is no slice" for item in reading.loose)]
    problems = [f"annotation {settings.vendor.allocated_key}: {'; '.join(faults)}"] if faults else []
    if reservations.problem:
        problems.append(f"annotation {settings.vendor.mig_allocations_key}: {reservations.problem}")
    return ReadAllocation(
        slots=matched,
        blocked_cards=tuple(CardId(name) for name in dict.fromkeys(blocked) if name),
        claims=claims,
        problem="; ".join(problems)[:_PROBLEM_LENGTH],
    )


def _read_reservations(
    pod: kube.Pod, settings: VendorSettings, reading: _Reading
) -> tuple[mig_allocations.MigReading, tuple[MigClaim, ...]]:
    """Gives the slices their places on cards in MIG mode; what no slice explains is a claim."""
    key = settings.vendor.mig_allocations_key
    if not key:
        return mig_allocations.MigReading(), ()
    found = mig_allocations.read(pod.annotations.get(key, ""))
    claims = [
        MigClaim(card_id=CardId(suffixed["card"]))
        for slot in reading.slots
        for piece in slot.slices
        if (suffixed := _SUFFIXED.fullmatch(piece.card_id))
    ]
    left = [reserved for reserved in found.allocations if not _place(reading.slots, reserved, exactly=True)]
    claims += [
        MigClaim(card_id=reserved.card_id, profile=reserved.profile, placement=reserved.placement)
        for reserved in left
        if not _place(reading.slots, reserved, exactly=False)
    ]
    return found, tuple(claims)


def _place(slots: list[_Slot], reserved: mig_allocations.MigAllocation, *, exactly: bool) -> bool:
    """Gives a reservation to the slice that it names, or else to the first on its card; False when there is none."""
    for number, slot in enumerate(slots):
        for place, piece in enumerate(slot.slices):
            if piece.card_id != reserved.card_id or piece.placement is not None:
                continue
            if exactly and (number, slot.positions[place]) != (reserved.slot, reserved.position):
                continue
            slot.slices[place] = msgspec.structs.replace(piece, profile=reserved.profile, placement=reserved.placement)
            return True
    return False


def _read_items(text: str, word: str) -> _Reading:
    reading = _Reading()
    pieces = text.split(";")
    if not pieces[-1].strip():
        pieces.pop()
    for piece in pieces:
        slot = _Slot()
        reading.slots.append(slot)
        for item in piece.split(":"):
            if "," in item:
                _read_entry(item, word, slot, reading)
            elif item.strip():
                reading.loose.append(item.strip())
    return reading


def _read_entry(item: str, word: str, slot: _Slot, reading: _Reading) -> None:
    position = slot.entries
    slot.entries += 1
    reading.named.append(item.split(",", 1)[0].strip())
    try:
        piece = _slice(item)
    except MalformedError as error:
        reading.faults.append(str(error))
        return
    if piece.card_id != piece.card_id.strip():
        reading.faults.append(f"card {piece.card_id[:80]!r}: spaces around the id")
    elif piece.vendor not in ("", word):
        reading.faults.append(f"card {piece.card_id[:80]!r}: vendor {piece.vendor[:24]!r} is not {word}")
    elif piece.memory_mib < 0 or piece.cores_percent < 0:
        reading.faults.append(f"card {piece.card_id[:80]!r}: a negative amount")
    else:
        slot.slices.append(msgspec.structs.replace(piece, vendor=word))
        slot.positions.append(position)


def _request(container: kube.Container, settings: VendorSettings) -> CardRequest | None:
    try:
        return card_request(container, settings)
    except InvalidRequestError:
        return None


def _match(written: Sequence[_Slot], containers: Sequence[kube.Container], settings: VendorSettings) -> Slots | None:
    """Slots by container; None when positions and requests leave it open which container a slot belongs to.

    HAMi 2.10 leaves out slots of containers that ask nothing, so positions count only where every container has a slot.
    """
    surplus = written[len(containers) :]
    if len(written) >= len(containers) and not any(slot.entries for slot in surplus):
        return tuple(tuple(slot.slices) for slot in written[: len(containers)])
    filled = [slot for slot in written if slot.entries]
    if not filled:
        return ((),) * len(containers)
    requests = [_request(container, settings) for container in containers]
    asking = [position for position, request in enumerate(requests) if request is not None]
    counts = [request.count for request in requests if request is not None]
    if [slot.entries for slot in filled] != counts:
        return None
    slots: list[tuple[Slice, ...]] = [()] * len(requests)
    for position, slot in zip(asking, filled, strict=True):
        slots[position] = tuple(slot.slices)
    return tuple(slots)


def _all_in_last(written: Sequence[_Slot], empty: Slots) -> Slots:
    """Everything readable in the last container: an upper bound of what the pod can use."""
    if not empty:
        return ()
    return (*empty[:-1], tuple(piece for slot in written for piece in slot.slices))


class AssignmentMap(msgspec.Struct, frozen=True, kw_only=True):
    """Annotations and labels to set on a pod."""

    annotations: dict[str, str]
    labels: dict[str, str]


def assignment(
    node: NodeName,
    slots_by_vendor: Mapping[str, Slots],
    config: DeviceConfig,
    *,
    allocation_id: AllocationId,
    now_seconds: int,
    soft_split_modes: Mapping[str, str] = _NO_MODES,
) -> AssignmentMap:
    """What says where a pod was placed and what it holds. `now_seconds`: Unix time.

    `soft_split_modes`: by vendor, where the pod wants its cards shared by software. Vendors of which the pod holds no
    card are left out, and so is the label of a node whose name is too long for one.
    """
    annotations = {
        keys.ASSIGNED_NODE: str(node),
        keys.ASSIGNED_TIME: str(now_seconds),
        keys.ALLOCATION_ID: str(allocation_id),
    }
    for settings in config.vendors:
        descriptor = settings.vendor
        slots = slots_by_vendor.get(descriptor.word, ())
        if not any(slots):
            continue
        text = encode(slots)
        annotations[descriptor.to_allocate_key] = text
        annotations[descriptor.allocated_key] = text
        reserved = mig_allocations.encode(mig_allocations.of_slots(slots))
        if reserved is not None:
            annotations[descriptor.mig_allocations_key] = reserved
        if descriptor.annotations:
            placed = Placed(
                settings=settings,
                slots=slots,
                soft_split_mode=soft_split_modes.get(descriptor.word, ""),
                now_seconds=now_seconds,
            )
            annotations |= writer(descriptor.annotations)(placed)
    labels = {keys.ASSIGNED_NODE: str(node)} if len(node) <= keys.LABEL_VALUE_MAX else {}
    return AssignmentMap(annotations=annotations, labels=labels)


def binding_annotations(
    node: NodeName,
    slots_by_vendor: Mapping[str, Slots],
    config: DeviceConfig,
    *,
    allocation_id: AllocationId,
    now_seconds: int,
) -> AssignmentMap:
    """The whole map that a Binding carries: the assignment, and that the bind has begun."""
    assigned = assignment(node, slots_by_vendor, config, allocation_id=allocation_id, now_seconds=now_seconds)
    return AssignmentMap(
        annotations={
            **assigned.annotations,
            keys.BIND_TIME: str(now_seconds),
            keys.BIND_PHASE: keys.BIND_PHASE_ALLOCATING,
        },
        labels=assigned.labels,
    )
