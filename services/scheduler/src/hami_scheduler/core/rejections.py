"""A rejection in the words that users see: Kubernetes Events as HAMi's users know them, tallies, sentences.

Texts name a bounded number of nodes, whatever the size of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nsmallest
from typing import Final, Literal

import msgspec
from hami_model import events

from hami_scheduler.core.filter import FilterAnswer

NODES_NAMED_MAX: Final = 10
INVALID_REQUEST: Final = "InvalidRequest"
_UNREGISTERED: Final = "NodeUnregistered"


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One Kubernetes Event to be."""

    reason: str
    message: str
    event_type: Literal["Normal", "Warning"] = "Warning"


def tally(answer: FilterAnswer) -> dict[str, int]:
    """Reason code -> number of nodes."""
    if answer.rejection is not None:
        return dict(answer.rejection.tally())
    return {INVALID_REQUEST: answer.never_count} if answer.invalid_request is not None else {}


def sentence(answer: FilterAnswer, considered: int) -> str:
    """Why no node fits, in one line."""
    if answer.invalid_request is not None:
        return f"the request cannot be granted by any node: {answer.invalid_request}"
    counted = sorted(tally(answer).items(), key=lambda item: (-item[1], item[0]))
    reasons = ", ".join(f"{count} {code}" for code, count in counted) or "no node was asked about"
    return f"0 of {considered} nodes fit: {reasons}"


def examples(answer: FilterAnswer) -> tuple[events.NodeReasons, ...]:
    """The first nodes by name with their reasons."""
    if answer.rejection is not None:
        return tuple(
            events.NodeReasons(node=node, reasons=tuple(part.strip() for part in text.split(",")))
            for node, text in answer.rejection.examples(NODES_NAMED_MAX)
        )
    reason = (f"{INVALID_REQUEST}: {answer.invalid_request}",)
    named = nsmallest(NODES_NAMED_MAX, set(answer.refused_nodes))
    return tuple(events.NodeReasons(node=node, reasons=reason) for node in named)


def notices(answer: FilterAnswer, considered: Sequence[str]) -> list[Notice]:
    """The Events of a filter call; none for a pod that asks for no card."""
    if answer.error is not None:
        return [Notice(reason="FilteringFailed", message=answer.error)]
    if answer.reservation is not None and answer.placement is not None:
        placement = answer.placement
        scores = sorted(placement.best_scores, key=lambda item: (item[1], item[0] == placement.node))
        named = ",".join(f"{node}:{score:.2f}" for node, score in scores)
        more = placement.fitting_nodes - len(scores)
        text = (
            f"find fit node({placement.node}), {len(considered) - placement.fitting_nodes} nodes not fit, "
            f"{placement.fitting_nodes} nodes fit({f'{more} more,' if more > 0 else ''}{named})"
        )
        text = "; ".join([text, *placement.notes.values()])
        return [Notice(reason="FilteringSucceed", message=text, event_type="Normal")]
    if answer.passes_through:
        return []
    if answer.invalid_request is not None:
        return [
            Notice(reason="FilteringFailed", message=str(answer.invalid_request)),
            _summary(len(considered)),
        ]
    told = [
        Notice(reason="FilteringFailed", message=f"{count} nodes {code}({named})")
        for code, count, named in _by_code(answer)
    ]
    return [*told, _summary(len(considered))]


def _summary(considered: int) -> Notice:
    return Notice(reason="FilteringFailed", message=f"no available node, {considered} nodes do not meet")


def _by_code(answer: FilterAnswer) -> Iterable[tuple[str, int, str]]:
    """(reason code, number of nodes, their first names) by code; a node counts under each of its reasons.

    Nodes that are not registered are in the summary only, as in HAMi.
    """
    for code, count, nodes in answer.rejection.nodes_by_reason(NODES_NAMED_MAX) if answer.rejection is not None else ():
        if code != _UNREGISTERED:
            named = ",".join(nodes)
            yield code, count, named if count <= NODES_NAMED_MAX else f"{named},… {count - NODES_NAMED_MAX} more"
