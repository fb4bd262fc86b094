"""Which cards are healthy: faults that the driver reports, and the way back.

healthy ──fault──▶ unhealthy ──as many clean probes in a row as configured──▶ healthy
                      ▲   │
                      └───┘  another fault, or a probe that fails, starts the count anew
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from hami_model.ids import CardId

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Faults of a program, not of the card."""

CAUSE_XID: Final = "xid"
CAUSE_MEMORY: Final = "double-bit-ecc"
CAUSE_PROBE: Final = "probe-failed"
CAUSE_RECOVERED: Final = "recovered"


class HealthPolicy(msgspec.Struct, frozen=True, kw_only=True):
    watches_events: bool = True
    """Off: no fault that the driver reports makes a card unhealthy; only probes do."""
    ignored_xids: frozenset[int] = APPLICATION_XIDS
    clean_probes: int = 3
    """How many probes in a row must succeed before a card counts as healthy again."""


class HealthChange(msgspec.Struct, frozen=True, kw_only=True):
    """A card went from healthy to unhealthy or back, or the driver told the fault of one that a probe found so."""

    card_id: CardId
    healthy: bool
    cause: str
    detail: str = ""
    xid: int | None = None


class _Fault(msgspec.Struct, frozen=True):
    clean_probes: int = 0
    by_driver: bool = False
    """Whether the driver reported it; else only a probe found it."""


class HealthBook:
    """State of all cards. Methods answer the change that a report makes, if it makes one."""

    def __init__(self, policy: HealthPolicy) -> None:
        self._policy = policy
        self._faults: dict[CardId, _Fault] = {}

    @property
    def watches_events(self) -> bool:
        return self._policy.watches_events

    @property
    def unhealthy(self) -> frozenset[CardId]:
        return frozenset(self._faults)

    def critical_event(self, card_id: CardId, xid: int | None, detail: str = "") -> HealthChange | None:
        """The driver reported an XID for the card; None: a memory error that it cannot correct.

        It is news also where a probe has found the card broken before: only the driver says with what.
        """
        if not self._policy.watches_events or xid in self._policy.ignored_xids:
            return None
        cause = CAUSE_MEMORY if xid is None else CAUSE_XID
        change = HealthChange(card_id=card_id, healthy=False, cause=cause, xid=xid, detail=detail)
        known = self._faults.get(card_id)
        self._faults[card_id] = _Fault(by_driver=True)
        return None if known is not None and known.by_driver else change

    def probed(self, card_id: CardId, fault: str) -> HealthChange | None:
        """The card was asked; `fault` is empty when it answered as it should."""
        known = self._faults.get(card_id)
        if fault:
            self._faults[card_id] = _Fault(by_driver=known is not None and known.by_driver)
            if known is not None:
                return None
            return HealthChange(card_id=card_id, healthy=False, cause=CAUSE_PROBE, detail=fault)
        if known is None:
            return None
        clean = known.clean_probes + 1
        if clean < self._policy.clean_probes:
            self._faults[card_id] = _Fault(clean, by_driver=known.by_driver)
            return None
        del self._faults[card_id]
        return HealthChange(card_id=card_id, healthy=True, cause=CAUSE_RECOVERED)


def health_policy(
    *,
    watches_events: bool = True,
    ignores_nothing: bool = False,
    ignored: Iterable[int] = (),
    watched: Iterable[int] = (),
    clean_probes: int = 3,
) -> HealthPolicy:
    """The policy of settings. What is to be watched wins over what is to be ignored, and both over the built-in list.

    `ignores_nothing`: every fault is the card's, whatever else is said. Without `watches_events` no XID counts, also
    none that is to be watched: HAMi's lists mean that too.
    """
    return HealthPolicy(
        watches_events=watches_events or ignores_nothing,
        ignored_xids=frozenset() if ignores_nothing else (APPLICATION_XIDS | frozenset(ignored)) - frozenset(watched),
        clean_probes=clean_probes,
    )
