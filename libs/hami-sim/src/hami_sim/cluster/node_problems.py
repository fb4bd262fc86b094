"""What node-agents told of their nodes: why cards are not offered, or are not well. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hami_sim.cluster.status import CardStatus

NOT_OFFERED = ("CardNotOffered", "MigDeviceNotOffered")
UNHEALTHY = "CardUnhealthy"

Event = Mapping[str, Any]


def not_offered(events: Iterable[Event], node: str, cards: Iterable[CardStatus]) -> tuple[str, ...]:
    """Of cards that are not among the node's `cards`: by then it is no longer true of those that are."""
    offered = [card.id for card in cards]
    told = [_message(event) for event in _of(events, node) if event.get("reason") in NOT_OFFERED]
    return tuple(dict.fromkeys(text for text in told if not any(card_id in text for card_id in offered)))


def why_unhealthy(events: Iterable[Event], card: CardStatus) -> str:
    """The last that was told of the card; empty where nothing is known any more."""
    told = [
        _message(event)
        for event in _of(events, card.node)
        if event.get("reason") == UNHEALTHY and card.id in _message(event)
    ]
    return told[-1].removeprefix(f"card {card.id} is unhealthy: ") if told else ""


def _of(events: Iterable[Event], node: str) -> list[Event]:
    """From the oldest to the newest."""
    found = [event for event in events if event.get("involvedObject", {}).get("name") == node]
    return sorted(found, key=_last_seen)


def _last_seen(event: Event) -> str:
    series = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or "")


def _message(event: Event) -> str:
    return str(event.get("message") or "")
