"""Counts the XIDs that the driver reports, which it tells each listener only once."""

from __future__ import annotations

import ctypes
from collections import Counter
from typing import Final, cast

import pynvml

from hami_monitor.adapters.nvml_asking import Asking, text

_XID: Final = pynvml.nvmlEventTypeXidCriticalError
_AT_ONCE_MAX: Final = 1000
"""A driver that reports without end does not hold up the reading."""


class XidCounts:
    """What was reported since the first `listen`, over any number of times that the driver was let go."""

    def __init__(self) -> None:
        self._set: object = None
        self._cards: dict[int | None, str] = {}
        """By the handle's address: a card that fell off the bus no longer says who it is."""
        self._by_card: dict[str, Counter[int]] = {}

    def listen(self, handle: object, card_id: str, ask: Asking) -> None:
        """Begins to count a card's; again and again does no harm."""
        if _address(handle) in self._cards:
            return
        if self._set is None:
            self._set = ask("xid-listen", pynvml.nvmlEventSetCreate)
        if self._set is None:
            return
        told = ask("xid-listen", lambda: _register(handle, self._set))
        if told is not None:
            self._cards[_address(handle)] = card_id

    def take(self, ask: Asking) -> None:
        """Counts what was reported since the last time. Does not wait."""
        for _ in range(_AT_ONCE_MAX if self._set is not None else 0):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, 0)
            except pynvml.NVMLError_Timeout:
                return
            except pynvml.NVMLError as error:
                ask.count("xids", error)
                return
            card_id = self._cards.get(_address(event.device)) or ask(
                "xids",
                lambda event=event: text(pynvml.nvmlDeviceGetUUID(event.device)),  # type: ignore[misc]
            )
            if card_id is not None and event.eventType == _XID:
                self._by_card.setdefault(card_id, Counter())[int(event.eventData)] += 1

    def of(self, card_id: str) -> dict[int, int]:
        return dict(self._by_card.get(card_id, {}))

    def let_go(self, ask: Asking) -> None:
        """Before the driver is."""
        if self._set is not None:
            ask("xid-listen", lambda: pynvml.nvmlEventSetFree(self._set))
        self._set = None
        self._cards.clear()


def _register(handle: object, events: object) -> bool:
    pynvml.nvmlDeviceRegisterEvents(handle, _XID, events)
    return True


def _address(handle: object) -> int | None:
    return ctypes.cast(cast("ctypes.c_void_p", handle), ctypes.c_void_p).value
