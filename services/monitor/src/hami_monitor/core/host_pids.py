"""Which process of the host a slot's is.

In a PID namespace of its own a process cannot know its pid on the host, by which the driver tells processes apart; so
the library cannot tell its own load on a card from that of others, and holds a container that shares its card to less
than its share. Whoever sees the host's processes can tell it: here, for slots that do not know.

Of a region of our library the slot says pid, start and PID namespace of its process, which are one process's for ever.
HAMi's library finds the pid itself, or fails to; where it did not in two looks, it is told if exactly one process of
the container has that pid there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from hami_monitor.core.container_folder import FolderOwner, RegionPlace
from hami_monitor.core.process_trace import ProcessTrace
from hami_monitor.core.region_slots import RegionSlots, SlotHead


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the host."""

    trace: ProcessTrace
    owner: FolderOwner | None
    """Whose; the container's name is empty where only the pod can be told."""
    pid_namespace: int = 0
    """Its inode; 0: the kernel does not tell us."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A slot that does not know its process's pid on the host."""

    place: RegionPlace
    layout: str
    is_ours: bool
    slot: SlotHead


def waiting(read: Mapping[RegionPlace, RegionSlots]) -> tuple[Waiting, ...]:
    return tuple(
        Waiting(place=place, layout=region.layout, is_ours=region.is_ours, slot=slot)
        for place, region in read.items()
        for slot in region.slots
        if slot.host_pid == 0
    )


def host_pid_of(wanting: Waiting, candidates: Iterable[Candidate]) -> int | None:
    """None: it cannot be told for certain."""
    found = [one for one in candidates if _is_process_of(wanting, one)]
    return found[0].trace.key.pid if len(found) == 1 else None


def _is_process_of(wanting: Waiting, one: Candidate) -> bool:
    slot, owner = wanting.slot, wanting.place.owner
    if one.owner is None or one.owner.pod_uid != owner.pod_uid or one.trace.innermost_pid != slot.pid:
        return False
    if not wanting.is_ours or slot.began_at_ticks == 0:
        return one.owner == owner
    return (
        one.owner.container in ("", owner.container)
        and one.trace.key.began_at_ticks == slot.began_at_ticks
        and (one.pid_namespace == slot.pid_namespace or 0 in (one.pid_namespace, slot.pid_namespace))
    )
