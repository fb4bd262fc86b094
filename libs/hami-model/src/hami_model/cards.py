"""Cards as nodes register them, and slices of them as pods hold them."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from hami_model import kube
from hami_model.ids import CardId

ContainerKind = Literal["init", "sidecar", "app"]

MEMORY_SLICES_MAX: Final = 64
"""Placements beyond it are refused. Cards that are sold have eight memory slices."""


class MigPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """The half-open interval [start, start + size) of a card's memory slices."""

    start: int
    size: int

    @property
    def is_possible(self) -> bool:
        """Not empty, and within the memory slices that can be told apart."""
        return self.start >= 0 and self.size > 0 and self.start + self.size <= MEMORY_SLICES_MAX


class MigProfile(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    memory_mib: int
    cores_percent: int
    slice_count: int
    placements: tuple[MigPlacement, ...] = ()


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One card in a node's register annotation."""

    id: CardId
    index: int = 0
    slots: int = 0
    """How many containers may share the card."""
    memory_mib: int = 0
    cores_percent: int = 0
    model: str = ""
    numa: int = 0
    mode: str = ""
    """`hami-core`, `mig`, `mps` or empty."""
    healthy: bool = False
    mig_profiles: tuple[MigProfile, ...] = ()
    custom: dict[str, str | float | bool | None] = {}
    """What only the family's own rules read: the plain values among the card's custom information."""


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """One card's share given to one container. `vendor` is the family's word."""

    card_id: CardId
    vendor: str
    memory_mib: int
    cores_percent: int
    profile: str = ""
    """Of a card in MIG mode, with `placement`: the instance. Memory and cores are those of the profile."""
    placement: MigPlacement | None = None


class MigClaim(msgspec.Struct, frozen=True, kw_only=True):
    """An instance that a pod claims beyond its slices. Without placement: it has one, and nobody can say where."""

    card_id: CardId
    profile: str = ""
    placement: MigPlacement | None = None


Slots = tuple[tuple[Slice, ...], ...]
"""Slices by position of the container: init containers first, then app containers."""


class ContainerShape(msgspec.Struct, frozen=True, kw_only=True):
    """A container's name and part in the pod's life."""

    name: str
    kind: ContainerKind


def shapes(pod: kube.Pod) -> tuple[ContainerShape, ...]:
    """The pod's containers in the order of slots."""
    init = [
        ContainerShape(name=container.name, kind="sidecar" if container.is_sidecar else "init")
        for container in pod.init_containers
    ]
    return (*init, *(ContainerShape(name=container.name, kind="app") for container in pod.app_containers))


def by_vendor(slots: Slots) -> dict[str, Slots]:
    """The slots of each vendor on its own; every one has as many slots as the pod has containers."""
    words = sorted({held.vendor for slot in slots for held in slot})
    return {word: tuple(tuple(held for held in slot if held.vendor == word) for slot in slots) for word in words}
