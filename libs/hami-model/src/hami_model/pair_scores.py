"""A node's pair-score annotation: how well its cards are connected with each other.

Placement can do without it, so one that cannot be read costs the node its scores, never its cards; the reader reports
the problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from hami_model import go_json
from hami_model.errors import MalformedAnnotation, MalformedJson
from hami_model.ids import CardId
from hami_model.vendors import VendorDescriptor


class PairScores(msgspec.Struct, frozen=True, kw_only=True):
    """Scores of one card to its peers; None when the element carries none."""

    card_id: CardId
    scores: dict[str, int] | None = None


def decode(text: str) -> tuple[PairScores, ...]:
    """Reads a pair-score annotation. Raises MalformedJson."""
    return tuple(_pair_scores(element, place) for place, element in go_json.elements(go_json.parse(text), ""))


def _pair_scores(value: object, place: str) -> PairScores:
    fields = go_json.Fields(value, place)
    return PairScores(card_id=CardId(fields.string("uuid")), scores=fields.integer_map("score"))


def read(
    descriptor: VendorDescriptor, annotations: Mapping[str, str]
) -> tuple[dict[CardId, dict[str, int]], MalformedAnnotation | None]:
    """Scores by card, first element of a card wins, and the fault of an annotation that cannot be read."""
    text = annotations.get(descriptor.pair_scores_key) if descriptor.pair_scores_key else None
    if text is None:
        return {}, None
    try:
        found = decode(text)
    except MalformedJson as error:
        return {}, MalformedAnnotation(descriptor.pair_scores_key, str(error))
    scores: dict[CardId, dict[str, int]] = {}
    for element in found:
        scores.setdefault(element.card_id, element.scores or {})
    return scores, None


def encode(elements: Iterable[PairScores]) -> str:
    """Writes a pair-score annotation as HAMi does: peers sorted, a card whose scores are None has only its id."""
    return "[" + ",".join(_encoded(element) for element in elements) + "]"


def _encoded(element: PairScores) -> str:
    members = []
    if element.card_id:
        members.append(f'"uuid":{go_json.encode_string(element.card_id)}')
    if element.scores is not None:
        peers = ",".join(f"{go_json.encode_string(peer)}:{score}" for peer, score in sorted(element.scores.items()))
        members.append(f'"score":{{{peers}}}')
    return "{" + ",".join(members) + "}"
