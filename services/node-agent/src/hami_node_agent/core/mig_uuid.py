"""Names of MIG devices. Older drivers write `MIG-GPU-<card>/<GPU instance>/<compute instance>`, newer `MIG-<uuid>`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec
from hami_model.ids import CardId

_SPELLED_OUT: Final = re.compile(r"MIG-(?P<card>GPU-[^/]+)/(?P<gpu>[0-9]{1,9})/(?P<compute>[0-9]{1,9})", re.ASCII)
_PREFIX: Final = "MIG-"


class SpelledOut(msgspec.Struct, frozen=True, kw_only=True):
    """What the older form says by itself."""

    card_id: CardId
    gpu_instance: int
    compute_instance: int


def is_mig(uuid: str) -> bool:
    return uuid.startswith(_PREFIX)


def spelled_out(uuid: str) -> SpelledOut | None:
    """The parts of the older form; None for the newer one, whose card only the driver knows."""
    match = _SPELLED_OUT.fullmatch(uuid)
    if match is None:
        return None
    return SpelledOut(
        card_id=CardId(match["card"]), gpu_instance=int(match["gpu"]), compute_instance=int(match["compute"])
    )


def card_of(uuid: str, parent_of: Callable[[str], str | None]) -> CardId | None:
    """The card of a MIG device, or of a card itself. `parent_of` asks the driver; None: nobody knows."""
    if not is_mig(uuid):
        return CardId(uuid)
    parts = spelled_out(uuid)
    if parts is not None:
        return parts.card_id
    parent = parent_of(uuid)
    return CardId(parent) if parent else None
