"""Allocate where the hand-off is `lock`: kubelet names no pod, so the owner of the node lock is taken to be the one.

Where the lock names nobody who waits, the node's pods are looked through: whose cards kubelet's ids lie on, else who
was bound first, as kubelet admits pods in that order. Before the container starts, kubelet's checkpoint proves or
refutes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec
from hami_model import allocations, keys, kube, node_lock
from hami_model.cards import Card, Slice, Slots
from hami_model.device_config import VendorSettings
from hami_model.errors import InvalidRequestError, MalformedError
from hami_model.ids import CardId
from hami_model.node_lock import PodName
from hami_model.requests import card_request

from hami_node_agent.core import mig_reservation
from hami_node_agent.core.entitlement import Refusal, listed
from hami_node_agent.core.inventory import card_of_device

_BIND_PHASES = (keys.BIND_PHASE_ALLOCATING, keys.BIND_PHASE_SUCCESS)


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What one container request gets."""

    container: kube.Container
    position: int
    """Of the container in the pod, init containers first."""
    slices: tuple[Slice, ...]
    """As annotated, with the MIG instances that are reserved."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one Allocate call."""

    served: tuple[Served, ...]
    left: Slots
    """What is still to be allocated afterwards."""

    @property
    def is_last(self) -> bool:
        return not any(self.left)

    def annotations(self, settings: VendorSettings) -> dict[str, str]:
        """What the pod shows afterwards."""
        if not self.served:
            return {}
        written = {settings.vendor.to_allocate_key: allocations.encode(self.left)}
        if self.is_last:
            written[keys.BIND_PHASE] = keys.BIND_PHASE_SUCCESS
        return written


def owner_of(lock: str | None) -> PodName | None:
    """The pod that the lock names; None where there is no lock or it names none. Raises MalformedAnnotation."""
    if lock is None:
        return None
    owner = node_lock.parse(lock).owner
    return owner if owner is not None and owner.namespace and owner.name else None


def waits(pod: kube.Pod, node_name: str) -> bool:
    """Whether the pod may be one that kubelet is admitting."""
    return (
        pod.status.phase == "Pending"
        and pod.spec.node_name == node_name
        and keys.BIND_TIME in pod.annotations
        and pod.annotations.get(keys.BIND_PHASE) in _BIND_PHASES
        and pod.annotations.get(keys.ASSIGNED_NODE) == node_name
    )


def choose(
    pods: Iterable[kube.Pod],
    requests: Sequence[Sequence[str]],
    *,
    node_name: str,
    settings: VendorSettings,
    handed: Mapping[str, frozenset[int]],
) -> kube.Pod | Refusal:
    """The one waiting pod that the requests can be for. `handed`: positions already served, by UID."""
    waiting = [pod for pod in pods if waits(pod, node_name)]
    unserved = {pod.uid: to_allocate(pod, settings, handed.get(pod.uid, frozenset())) for pod in waiting}
    meant = [pod for pod in waiting if _has_some(unserved[pod.uid])]
    if len(meant) > 1:
        meant = [pod for pod in meant if _fits(unserved[pod.uid], requests, by_card=False)] or meant
    if len(meant) > 1:
        meant = [pod for pod in meant if _fits(unserved[pod.uid], requests, by_card=True)] or meant
    if not meant:
        return Refusal(
            reason=f"no pod waits for cards on node {node_name}: the pod was not placed by the HAMi scheduler; create "
            "it anew with spec.schedulerName of that scheduler and no spec.nodeName"
        )
    return min(meant, key=lambda pod: (_bound_at(pod), pod.key))


def _bound_at(pod: kube.Pod) -> tuple[bool, int]:
    """Unix seconds; a time that cannot be read comes last."""
    text = pod.annotations.get(keys.BIND_TIME, "")
    known = text.isascii() and text.isdigit() and len(text) <= len("9999999999")
    return (not known, int(text) if known else 0)


def _has_some(unserved: Slots | Refusal) -> bool:
    return isinstance(unserved, Refusal) or any(unserved)


def _fits(unserved: Slots | Refusal, requests: Sequence[Sequence[str]], *, by_card: bool) -> bool:
    if isinstance(unserved, Refusal):
        return False
    filled = [slot for slot in unserved if slot][: len(requests)]
    if len(filled) < len(requests):
        return False
    if by_card:
        return all(
            sorted(piece.card_id for piece in slot) == sorted(card_of_device(device) for device in ids)
            for slot, ids in zip(filled, requests, strict=True)
        )
    return all(len(slot) == len(ids) for slot, ids in zip(filled, requests, strict=True))


def to_allocate(pod: kube.Pod, settings: VendorSettings, handed: frozenset[int]) -> Slots | Refusal:
    """The slots that nobody was given yet, by position of the container."""
    key = settings.vendor.to_allocate_key
    text = pod.annotations.get(key)
    if text is None:
        return Refusal(reason=f"pod {pod.key} carries no annotation {key}: it was not placed by the HAMi scheduler")
    try:
        slots = allocations.decode(text)
    except MalformedError as error:
        return Refusal(reason=f"pod {pod.key}: annotation {key}: {error}")
    count = len(pod.all_containers)
    if any(slots[count:]):
        return Refusal(reason=f"pod {pod.key}: annotation {key} has a slot beyond its {count} containers")
    placed = _by_container(pod, settings, slots, text)
    return tuple(() if position in handed else slot for position, slot in enumerate(placed))


def _by_container(pod: kube.Pod, settings: VendorSettings, slots: Slots, text: str) -> Slots:
    """Slot i is container i's. HAMi 2.10 leaves out slots of containers that ask nothing: then they go by requests."""
    count = len(pod.all_containers)
    written = len(text.rstrip(";").split(";"))
    original = len(pod.annotations.get(settings.vendor.allocated_key, "").rstrip(";").split(";"))
    asking = [position for position, found in enumerate(pod.all_containers) if _asks(found, settings)]
    positions: list[int] = list(range(count))
    if asking and max(written, original) == len(asking) < count:
        positions = asking
    placed: list[tuple[Slice, ...]] = [()] * count
    for position, slot in zip(positions, slots, strict=False):
        placed[position] = slot
    return tuple(placed)


def _asks(container: kube.Container, settings: VendorSettings) -> bool:
    try:
        return card_request(container, settings) is not None
    except InvalidRequestError:
        return False


def make_plan(
    pod: kube.Pod,
    requests: Sequence[Sequence[str]],
    *,
    settings: VendorSettings,
    known_cards: Mapping[CardId, Card],
    handed: frozenset[int],
    instances: Mapping[int, Sequence[str]] = MappingProxyType({}),
) -> Plan | Refusal:
    """Request k gets the k-th container that was not served yet. What ids kubelet chose does not matter, except where
    they name MIG devices that were made beforehand: `instances` has their UUIDs by the number of the request.
    """
    unserved = to_allocate(pod, settings, handed)
    if isinstance(unserved, Refusal):
        return unserved
    left = list(unserved)
    served: list[Served] = []
    for number, ids in enumerate(requests):
        position = next((position for position, slot in enumerate(left) if slot), None)
        if position is None:
            return Refusal(reason=f"pod {pod.key}: nothing is left to allocate of annotation "
                           f"{settings.vendor.to_allocate_key}")  # fmt: skip
        container = pod.all_containers[position]
        if number in instances:
            slices: tuple[Slice, ...] | Refusal = _of_instances(left[position], instances[number])
        else:
            slices = mig_reservation.reserved(pod, settings, position, left[position], known_cards)
        if isinstance(slices, Refusal):
            return slices
        fault = "" if number in instances else _fault(slices, len(ids), pod.spec.node_name, settings, known_cards)
        if fault:
            return Refusal(reason=f"pod {pod.key} container {container.name}: {fault}")
        served.append(Served(container=container, position=position, slices=slices))
        left[position] = ()
    return Plan(served=tuple(served), left=tuple(left))


def _of_instances(annotated: Sequence[Slice], uuids: Sequence[str]) -> tuple[Slice, ...]:
    """The amounts are the annotation's, which nothing limits: the hardware does."""
    return tuple(
        msgspec.structs.replace(annotated[min(number, len(annotated) - 1)], card_id=CardId(uuid), placement=None)
        for number, uuid in enumerate(uuids)
    )


def _fault(
    slices: tuple[Slice, ...],
    device_count: int,
    node_name: str | None,
    settings: VendorSettings,
    known_cards: Mapping[CardId, Card],
) -> str:
    if len(slices) != device_count:
        return f"{len(slices)} cards are allocated, but kubelet gave it {device_count}"
    foreign = next((piece for piece in slices if piece.vendor not in ("", settings.vendor.word)), None)
    if foreign is not None:
        return f"card {foreign.card_id} is of vendor {foreign.vendor[:24]!r}, not {settings.vendor.word}"
    if any(piece.memory_mib < 0 or piece.cores_percent < 0 for piece in slices):
        return "a negative amount is allocated"
    unknown = sorted({piece.card_id or "(no id)" for piece in slices if piece.card_id not in known_cards})
    if unknown:
        return f"this node has no card {listed(unknown)} (node {node_name})"
    if len({(piece.card_id, piece.placement) for piece in slices}) < len(slices):
        return "one card is allocated to it twice"
    return ""


class PreferredRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which of kubelet's ids it should choose for one container."""

    available: tuple[str, ...]
    must_include: tuple[str, ...]
    size: int


def preferred(unserved: Slots, requests: Sequence[PreferredRequest]) -> list[list[str]]:
    """One id of each annotated card, for each request; an empty list where that cannot be."""
    filled = [slot for slot in unserved if slot]
    return [
        _preferred(filled[number], request) if number < len(filled) else [] for number, request in enumerate(requests)
    ]


def _preferred(slices: tuple[Slice, ...], request: PreferredRequest) -> list[str]:
    wanted = [piece.card_id for piece in slices[: request.size]]
    if len(wanted) < request.size:
        return []
    chosen = list(request.must_include)
    included = [card_of_device(device) for device in chosen]
    free = [device for device in request.available if device not in chosen]
    for card_id in wanted:
        if card_id in included:
            included.remove(card_id)
            continue
        found = next((device for device in free if card_of_device(device) == card_id), None)
        if found is None:
            return []
        free.remove(found)
        chosen.append(found)
    return chosen if len(chosen) == request.size else []
