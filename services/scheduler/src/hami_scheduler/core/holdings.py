"""What a pod's annotations say it holds, over all families of cards."""

from __future__ import annotations

import msgspec
from hami_model import allocation_id, allocations, cards, keys, kube
from hami_model.device_config import DeviceConfig
from hami_model.ids import AllocationId


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """Slices by container, and what must be blocked because it cannot be read."""

    shapes: tuple[cards.ContainerShape, ...]
    slots: cards.Slots
    blocked_cards: tuple[str, ...] = ()
    claims: tuple[cards.MigClaim, ...] = ()
    """MIG instances that the pod claims beyond its slices."""
    problem: str | None = None

    @property
    def holds_cards(self) -> bool:
        return any(self.slots) or bool(self.blocked_cards) or bool(self.claims)


def read(pod: kube.Pod, config: DeviceConfig) -> Holding:
    """Never raises: what is malformed is a problem of the holding."""
    shapes = cards.shapes(pod)
    merged: list[list[cards.Slice]] = [[] for _ in shapes]
    blocked: list[str] = []
    claims: list[cards.MigClaim] = []
    problems: list[str] = []
    for settings in config.vendors:
        if settings.vendor.allocated_key not in pod.annotations:
            continue
        found = allocations.read(pod, settings)
        for container, slot in zip(merged, found.slots, strict=True):
            container.extend(slot)
        blocked.extend(found.blocked_cards)
        claims.extend(found.claims)
        if found.problem:
            problems.append(found.problem)
    return Holding(
        shapes=shapes,
        slots=tuple(tuple(container) for container in merged),
        blocked_cards=tuple(blocked),
        claims=tuple(claims),
        problem="; ".join(problems) or None,
    )


def allocation_id_of(pod: kube.Pod) -> AllocationId | None:
    """The id in the pod's annotation; where another scheduler placed it, one made from what that wrote.

    None where neither is there.
    """
    written = allocation_id.parse(pod.annotations.get(keys.ALLOCATION_ID, ""))
    if written is not None:
        return written
    assigned_time = pod.annotations.get(keys.ASSIGNED_TIME)
    return None if assigned_time is None else allocation_id.adopted(pod.uid, assigned_time)


def stale_mig_keys(pod: kube.Pod, config: DeviceConfig) -> tuple[str, ...]:
    """Annotations of an unbound pod with a MIG reservation that a new placement must not inherit."""
    found = (settings.vendor.mig_allocations_key for settings in config.vendors)
    return tuple(key for key in found if key and pod.annotations.get(key))


def written_keys(pod: kube.Pod, config: DeviceConfig) -> list[str]:
    """Annotations of the pod that say where it was placed and what it holds: ours to write and to remove."""
    ours = {
        keys.ASSIGNED_NODE,
        keys.ASSIGNED_TIME,
        keys.ALLOCATION_ID,
        keys.BIND_TIME,
        keys.BIND_PHASE,
    }
    for settings in config.vendors:
        ours |= set(settings.vendor.pod_keys)
    return sorted(ours & pod.annotations.keys())
