"""Which cards of a node may be used: from the node's annotations, its allocatable count and its past.

A node agent that went away leaves its annotations behind; kubelet's allocatable count tells that it is gone
(`hami_model.handshake`). A register annotation that stops parsing leaves the cards in use that were read before; one
that is removed takes them out. A pair-score annotation counts as it stands: one that cannot be read costs the scores.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec
from hami_model import handshake, kube, pair_scores, quantity, register
from hami_model.cards import Card
from hami_model.device_config import VendorSettings
from hami_model.errors import MalformedAnnotation
from hami_model.ids import CardId
from hami_model.vendors import VendorDescriptor


class VendorView(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one vendor's cards on one node after an observation."""

    cards: tuple[Card, ...] | None = None
    """None: not to be used (never registered, or gone)."""
    handoff: register.Handoff = "lock"
    register_text: str | None = None
    """The annotation when last looked at."""
    register_problem: str | None = None
    """What is wrong with that annotation."""
    pair_scores: dict[CardId, dict[str, int]] = {}
    """How well the cards are connected with each other, by card and peer; empty where the node does not tell."""
    pair_scores_text: str | None = None
    pair_scores_problem: str | None = None
    memory: handshake.Memory = handshake.Memory()
    stamp: str | None = None
    """Handshake that the leader should write: cards are offered and nobody has asked yet."""

    @property
    def problem(self) -> str | None:
        """What is wrong with the node's annotations."""
        found = [problem for problem in (self.register_problem, self.pair_scores_problem) if problem is not None]
        return "; ".join(found) or None


def concerns(node: kube.Node, settings: VendorSettings) -> bool:
    """Whether anything of the node can be this vendor's. Spares the many that are not."""
    return settings.vendor.register_key in node.annotations or node.allocatable(settings.resources.count) is not None


def observe(node: kube.Node, settings: VendorSettings, before: VendorView, now: datetime) -> VendorView:
    """The view after an observation of the node, or after time went by on an unchanged one."""
    descriptor = settings.vendor
    text = node.annotations.get(descriptor.register_key)
    verdict = _judge(node, settings, before.memory, now)
    if text is None or not verdict.usable:
        return VendorView(register_text=text, memory=verdict.memory)
    cards, handoff, problem = before.cards, before.handoff, before.register_problem
    if before.cards is None and not verdict.need_update:
        problem = None
    elif text != before.register_text or before.cards is None:
        try:
            read = register.read(descriptor, text)
        except MalformedAnnotation as error:
            problem = str(error)
        else:
            if read.cards:
                cards, handoff = read.cards, read.handoff
            problem = "; ".join(read.problems) or (None if read.cards else f"{descriptor.register_key} lists no card")
    scores_text, scores, scores_problem = _observe_pair_scores(node, settings, before)
    return VendorView(
        cards=None if cards is None else in_mode(cards, shared_mode(node, settings)),
        handoff=handoff,
        register_text=text,
        register_problem=problem,
        pair_scores=scores,
        pair_scores_text=scores_text,
        pair_scores_problem=scores_problem,
        memory=verdict.memory,
        stamp=verdict.stamp if cards is not None else None,
    )


def _observe_pair_scores(
    node: kube.Node, settings: VendorSettings, before: VendorView
) -> tuple[str | None, dict[CardId, dict[str, int]], str | None]:
    text = node.annotations.get(settings.vendor.pair_scores_key) if settings.vendor.pair_scores_key else None
    if text == before.pair_scores_text:
        return text, before.pair_scores, before.pair_scores_problem
    scores, fault = pair_scores.read(settings.vendor, node.annotations)
    return text, scores, str(fault) if fault is not None else None


def _judge(node: kube.Node, settings: VendorSettings, memory: handshake.Memory, now: datetime) -> handshake.Verdict:
    descriptor = settings.vendor
    stamped = node.annotations.get(descriptor.handshake_key)
    allocatable = _count(node.allocatable(settings.resources.count))
    if descriptor.health == "handshake":
        return handshake.judge_answered(memory, handshake=stamped, allocatable=allocatable, now=now)
    registered = node.annotations.get(descriptor.register_key)
    return handshake.judge(
        memory,
        handshake=stamped,
        allocatable=allocatable,
        register=registered,
        now=now,
        has_handshake=bool(descriptor.handshake_key),
    )


def shared_mode(node: kube.Node, settings: VendorSettings) -> str | None:
    """The mode of the node's cards where the node chooses whether software may share them; None: as registered."""
    split = settings.vendor.soft_split
    if split is None:
        return None
    said = node.annotations.get(split.node_key)
    shared = settings.soft_split_everywhere if said is None else said == "true"
    return split.mode if shared else ""


def in_mode(cards: tuple[Card, ...], mode: str | None) -> tuple[Card, ...]:
    """The cards in a mode; None leaves them as they are."""
    if mode is None:
        return cards
    return tuple(card if card.mode == mode else msgspec.structs.replace(card, mode=mode) for card in cards)


def without_shared_ids(
    found: Iterable[tuple[VendorDescriptor, Card]],
) -> tuple[list[tuple[VendorDescriptor, Card]], dict[str, list[CardId]]]:
    """The cards of one node, each id once, and by family the ids that another family before it offers too.

    As within one annotation: such a card stays in the inventory as unhealthy (its usage is kept, nothing new goes
    there).
    """
    unique: dict[CardId, tuple[VendorDescriptor, Card]] = {}
    shared: dict[str, list[CardId]] = {}
    for descriptor, card in found:
        if card.id not in unique:
            unique[card.id] = (descriptor, card)
            continue
        shared.setdefault(descriptor.word, []).append(card.id)
        first, offered = unique[card.id]
        unique[card.id] = (first, msgspec.structs.replace(offered, healthy=False))
    return list(unique.values()), shared


def _count(text: str | None) -> int:
    if text is None:
        return 0
    try:
        value = quantity.parse(text)
    except quantity.MalformedQuantity:
        return 0
    return int(value) if value > 0 else 0


def cordoned(text: str | None) -> frozenset[str]:
    """Card ids in the cordon annotation."""
    return frozenset(item for item in (part.strip() for part in (text or "").split(",")) if item)
