"""Cards as `status` names them, NODE/INDEX, in what services say of them by their ids."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hami_sim.cluster.driver_description import card_ids
from hami_sim.cluster.profile import NodePlan

_CARD_ID = re.compile(r"(GPU-[0-9a-f-]{36})(  +)?")
"""With the blanks that follow it in a table."""


def card_places(plans: Iterable[NodePlan]) -> dict[str, str]:
    """By id; of the cards that the profile names."""
    return {card_id: f"{plan.name}/{index}" for plan in plans for index, card_id in enumerate(card_ids(plan))}


def with_places(text: str, places: Mapping[str, str]) -> str:
    """The text with places for ids; columns of tables stay where they are. Ids of no known card stay."""

    def place(found: re.Match[str]) -> str:
        name, blanks = places.get(found[1], found[1]), found[2] or ""
        return name.ljust(len(found[1])) + blanks if blanks else name

    return _CARD_ID.sub(place, text)
