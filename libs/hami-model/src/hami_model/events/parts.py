"""Values that events of several families carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from hami_model.cards import ContainerKind, ContainerShape, Slots

Enforcement = Literal["", "preload", "mig", "driver", "none"]
"""What holds a slice to its promise: the preloaded library, the card's own partition, the driver, nothing; empty: not
known yet."""


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
    enforced_by: Enforcement = ""
    """The back end that holds the container to this promise; known once the pod is allocated."""


class ContainerShare(msgspec.Struct, frozen=True, kw_only=True):
    container: str
    kind: ContainerKind = "app"
    cards: tuple[CardShare, ...]


def container_shares(
    shapes: Sequence[ContainerShape], slots: Slots, held_by: Mapping[tuple[int, str], Enforcement] | None = None
) -> tuple[ContainerShare, ...]:
    """The containers that hold slices, with them. Slots and shapes go by position; trailing ones may lack.

    `held_by`: back ends by position of the container and card.
    """
    known = held_by or {}
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
                    enforced_by=known.get((position, held.card_id), ""),
                )
                for held in slot
            ),
        )
        for position, (shape, slot) in enumerate(zip(shapes, slots, strict=False))
        if slot
    )
