"""Ascend: when the pod was placed, and each card's share as the device plugin and the runtime read it.

All cards of all containers stand in one list: that is the form the plugin knows. Which of them belong to which
container stands in the allocation.
"""

from __future__ import annotations

from hami_model import go_json
from hami_model.annotation_writers import Placed
from hami_model.cards import Slice


def write(placed: Placed) -> dict[str, str]:
    """The annotations `time` and `cards` of the descriptor."""
    keys = placed.settings.vendor.annotation_keys
    cards = ",".join(_card(held, placed) for slot in placed.slots for held in slot)
    return {keys["time"]: str(placed.now_seconds), keys["cards"]: f"[{cards}]"}


def _card(held: Slice, placed: Placed) -> str:
    members = [
        ("UUID", go_json.encode_string(held.card_id)),
        ("temp", go_json.encode_string(name) if (name := _template(held, placed)) else ""),
        ("memory", str(held.memory_mib or "")),
        ("core", str(held.cores_percent or "")),
    ]
    return "{" + ",".join(f'"{name}":{value}' for name, value in members if value) + "}"


def _template(held: Slice, placed: Placed) -> str:
    """The template the card is cut by; empty for a whole card and where software shares it."""
    sizes = placed.settings.cut_sizes
    cut = sizes.cut_for(held.memory_mib) if sizes is not None and not placed.soft_split_mode else None
    return cut.name if cut is not None else ""
