"""Values that events of several families carry."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hami_model.cards import ContainerKind, ContainerShape, Slots


class PodRef(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    uid: str

    @property
    def path(self) -> str:
        return f"pods/{self.namespace}/{self.name}"


class CardShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one container is promised of one card."""

    card_id: str
    vendor: str
    memory_mib: int
    cores_percent: int
    profile: str = ""
    """Of a card in MIG mode: the profile of its instance, such as `1g.5gb`."""


class ContainerShare(msgspec.Struct, frozen=True, kw_only=True):
    container: str
    kind: ContainerKind = "app"
    cards: tuple[CardShare, ...]


def container_shares(shapes: Sequence[ContainerShape], slots: Slots) -> tuple[ContainerShare, ...]:
    """The containers that hold slices, with them. Slots and shapes go by position; trailing ones may lack."""
    return tuple(
        ContainerShare(
            container=shape.name,
            kind=shape.kind,
            cards=tuple(
                CardShare(
                    card_id=held.card_id,
                    vendor=held.vendor,
                    memory_mib=held.memory_mib,
                    cores_percent=held.cores_percent,
                    profile=held.profile,
                )
                for held in slot
            ),
        )
        for shape, slot in zip(shapes, slots, strict=False)
        if slot
    )
