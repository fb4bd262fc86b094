"""Counts the XIDs that the driver reports, which it tells each listener only once."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from typing import Final, cast

import msgspec
import pynvml

from hami_monitor.adapters.nvml_asking import Asking, text
from hami_monitor.core.host import HostCard, HostInstance

_XID: Final = pynvml.nvmlEventTypeXidCriticalError
_NONE: Final = 0xFFFFFFFF
_AT_ONCE_MAX: Final = 1000
"""A driver that reports without end does not hold up the reading."""


class XidCounts:
    """What was reported since the first `listen`, over any number of times that the driver was let go."""

    def __init__(self) -> None:
        self._set: object = None
        self._cards: dict[int | None, str] = {}
        """By the handle's address: a card that fell off the bus no longer says who it is."""
        self._by_card: dict[str, Counter[int]] = {}
        self._by_instance: dict[str, Counter[int]] = {}
        """Of instances that there are, by UUID: others have their numbers later."""

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

    def counted(self, cards: Sequence[HostCard], ask: Asking) -> tuple[HostCard, ...]:
        """The cards with what was reported until now. Does not wait."""
        self._take(cards, ask)
        there = {instance.id for card in cards for instance in card.instances}
        self._by_instance = {name: counts for name, counts in self._by_instance.items() if name in there}
        return tuple(
            msgspec.structs.replace(
                card,
                xids=dict(self._by_card.get(card.id, {})),
                instances=tuple(
                    msgspec.structs.replace(instance, xids=dict(self._by_instance.get(instance.id, {})))
                    for instance in card.instances
                ),
            )
            for card in cards
        )

    def _take(self, cards: Sequence[HostCard], ask: Asking) -> None:
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
                self._count(card_id, event, cards)

    def _count(self, told: str, event: pynvml.c_nvmlEventData_t, cards: Sequence[HostCard]) -> None:
        """`told`: the card's UUID, or an instance's."""
        xid = int(event.eventData)
        card = next((card for card in cards if told in (card.id, *(one.id for one in card.instances))), None)
        self._by_card.setdefault(told if card is None else card.id, Counter())[xid] += 1
        for instance in card.instances if card is not None else ():
            if instance.id == told or _is_of(event, instance):
                self._by_instance.setdefault(instance.id, Counter())[xid] += 1

    def let_go(self, ask: Asking) -> None:
        """Before the driver is."""
        if self._set is not None:
            ask("xid-listen", lambda: pynvml.nvmlEventSetFree(self._set))
        self._set = None
        self._cards.clear()


def _is_of(event: pynvml.c_nvmlEventData_t, instance: HostInstance) -> bool:
    """A fault of a GPU instance as a whole is that of all its compute instances."""
    if event.gpuInstanceId == _NONE or event.gpuInstanceId != instance.gpu_instance:
        return False
    return event.computeInstanceId in (_NONE, instance.compute_instance)


def _register(handle: object, events: object) -> bool:
    pynvml.nvmlDeviceRegisterEvents(handle, _XID, events)
    return True


def _address(handle: object) -> int | None:
    return ctypes.cast(cast("ctypes.c_void_p", handle), ctypes.c_void_p).value
