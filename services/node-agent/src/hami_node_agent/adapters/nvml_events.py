"""Faults that the driver reports by itself: one event set for all cards, waited for on a thread of its own."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pynvml

from hami_node_agent.adapters.nvml_library import DriverError, text
from hami_node_agent.core import mig_uuid

_WANTED: Final = (
    pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError | pynvml.nvmlEventTypeSingleBitEccError
)
_NO_INSTANCE: Final = 0xFFFFFFFF
_FAULTS: Final = (pynvml.nvmlEventTypeXidCriticalError, pynvml.nvmlEventTypeDoubleBitEccError)
"""A single-bit error was corrected and is none."""


class CriticalEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An XID, or a memory error that cannot be corrected."""

    uuid: str | None
    """Of the card; None where the driver does not say which card it is about."""
    xid: int | None
    """None: a double-bit memory error."""
    mig_device: str = ""
    """A MIG device whose card cannot be found out: that says nothing of any card."""
    gpu_instance: int | None = None
    compute_instance: int | None = None
    """Of the MIG instance that it can be attributed to."""


class EventSet:
    """What is subscribed to. `watch` may be called while another thread is in `wait`."""

    def __init__(self) -> None:
        self._set: Any = None
        self._watched: dict[int | None, str] = {}
        """UUIDs by handle: a card that fell off the bus no longer tells its own."""

    @property
    def exists(self) -> bool:
        return self._set is not None

    def watches(self, uuid: str) -> bool:
        return uuid in self._watched.values()

    def create(self) -> None:
        """Raises NVMLError."""
        if self._set is None:
            self._set = pynvml.nvmlEventSetCreate()

    def drop(self) -> None:
        """Nothing is subscribed to any more. Nobody may be waiting."""
        if self._set is not None:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(self._set)
        self.forget()

    def forget(self) -> None:
        """The library that had it is gone."""
        self._set = None
        self._watched = {}

    def watch(self, uuid: str) -> None:
        """Raises NVMLError. A card without such events counts as watched: its probes say what there is to say.

        Where all is dropped meanwhile, this subscribes to nothing.
        """
        into, watched = self._set, self._watched
        if into is None:
            return
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        try:
            kinds = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & _WANTED
            pynvml.nvmlDeviceRegisterEvents(handle, kinds, into)
        except pynvml.NVMLError as error:
            if into is not self._set:
                return
            if error.value != pynvml.NVML_ERROR_NOT_SUPPORTED:
                raise
        watched[_address(handle)] = uuid

    def wait(self, timeout_ms: int) -> CriticalEvent | None:
        """The next fault, or None when there was none in that time. Raises DriverError. Asks nothing of any card."""
        try:
            event = pynvml.nvmlEventSetWait_v2(self._set, timeout_ms)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_TIMEOUT:
                return None
            raise DriverError(f"waiting for faults of cards failed: {error}") from error
        if event.eventType not in _FAULTS:
            return None
        is_xid = event.eventType == pynvml.nvmlEventTypeXidCriticalError
        return CriticalEvent(
            uuid=self._watched.get(_address(event.device)) or _uuid_of(event.device),
            xid=int(event.eventData) if is_xid else None,
            gpu_instance=None if event.gpuInstanceId == _NO_INSTANCE else int(event.gpuInstanceId),
            compute_instance=None if event.computeInstanceId == _NO_INSTANCE else int(event.computeInstanceId),
        )


def attributed(event: CriticalEvent, parent_of: Callable[[str], str | None]) -> CriticalEvent:
    """The event of a card, or of one of its MIG devices, whose card is found by its name or by asking the driver."""
    if event.uuid is None:
        return event
    card = mig_uuid.card_of(event.uuid, parent_of)
    return msgspec.structs.replace(event, uuid=card, mig_device=event.uuid if card is None else "")


def _uuid_of(handle: object) -> str | None:
    try:
        return text(pynvml.nvmlDeviceGetUUID(handle))
    except pynvml.NVMLError:
        return None


def _address(handle: Any) -> int | None:  # noqa: ANN401  # a pointer of the bindings, which have no types
    return ctypes.cast(handle, ctypes.c_void_p).value
