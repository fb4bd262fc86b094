"""How well the cards of a machine are connected with each other: what the driver says, and the scores it gives.

score of a pair = 10 to 60 by the nearest common point on PCIe + 100 for each NVLink between them
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Final

import msgspec
from hami_model.ids import CardId
from hami_model.pair_scores import PairScores

_NVLINK_SCORE: Final = 100
_MOST_NVLINKS: Final = 18
"""More than any card has; a higher number is taken as no link, as in HAMi."""


class CommonAncestor(enum.IntEnum):
    """Where the ways of two cards meet, nearest first; NVML's numbers."""

    INTERNAL = 0
    """On one board."""
    SINGLE = 10
    """One PCIe switch."""
    MULTIPLE = 20
    """Several PCIe switches."""
    HOST_BRIDGE = 30
    NODE = 40
    """One NUMA node."""
    SYSTEM = 50


_PCIE_SCORES: Final = {
    CommonAncestor.INTERNAL: 60,
    CommonAncestor.SINGLE: 50,
    CommonAncestor.MULTIPLE: 40,
    CommonAncestor.HOST_BRIDGE: 30,
    CommonAncestor.NODE: 20,
    CommonAncestor.SYSTEM: 10,
}


class CardLinks(msgspec.Struct, frozen=True, kw_only=True):
    """The enabled NVLinks of one card."""

    pci_bus_id: str
    """The card's own."""
    remote_bus_ids: tuple[str, ...] = ()
    """One a link, of those whose other end is told."""
    to_switches: int = 0
    """Links that end at an NVSwitch."""


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver says of the ways between cards."""

    links: Mapping[str, CardLinks] = {}
    """By UUID. A card whose links could not be read is missing."""
    ancestors: Mapping[tuple[str, str], CommonAncestor | None] = {}
    """By the UUIDs of a pair, in either order; None where the driver has no such query. A pair that could not be asked
    about is missing."""
    faults: tuple[str, ...] = ()
    """What could not be read, and why."""

    def ancestor(self, one: str, other: str) -> CommonAncestor | None:
        """Raises KeyError for a pair that could not be asked about."""
        return self.ancestors[(one, other) if (one, other) in self.ancestors else (other, one)]


class ScoredPairs(msgspec.Struct, frozen=True, kw_only=True):
    """Pair scores of the offered cards, as published, and what an administrator should know of them."""

    elements: tuple[PairScores, ...] = ()
    asymmetric: str = ""
    """Which pairs tell a different number of NVLinks from each side; empty where none does."""
    unreadable: tuple[str, ...] = ()


def score_pairs(topology: Topology, card_ids: Sequence[CardId]) -> ScoredPairs:
    """Scores between the cards, in both directions.

    A pair whose sides tell different numbers of links scores 0: which of them is right is not known. A pair of which
    something could not be read has no score, which places it behind every pair that has one.
    """
    scores: dict[CardId, dict[str, int]] = {card_id: {} for card_id in card_ids}
    asymmetric: list[str] = []
    for one, other in combinations(card_ids, 2):
        try:
            own, peer, ancestor = topology.links[one], topology.links[other], topology.ancestor(one, other)
        except KeyError:
            continue
        there, back = _direct_links(own, peer), _direct_links(peer, own)
        if there != back:
            asymmetric.append(f"{one} and {other} ({there} and {back})")
            score = 0
        else:
            links = there or min(own.to_switches, peer.to_switches)
            score = _PCIE_SCORES[ancestor] if ancestor is not None else 0
            score += _NVLINK_SCORE * links if links <= _MOST_NVLINKS else 0
        scores[one][other] = scores[other][one] = score
    return ScoredPairs(
        elements=tuple(PairScores(card_id=card_id, scores=peers) for card_id, peers in scores.items()),
        asymmetric=_told(asymmetric),
        unreadable=topology.faults,
    )


def _told(asymmetric: Sequence[str]) -> str:
    if not asymmetric:
        return ""
    return (
        f"each side tells another number of NVLinks between {', '.join(asymmetric)}; these pairs have score 0: "
        "look at the links with nvidia-smi nvlink --status"
    )


def _direct_links(card: CardLinks, peer: CardLinks) -> int:
    wanted = peer.pci_bus_id.lower()
    return sum(bus_id.lower() == wanted for bus_id in card.remote_bus_ids)
