"""NVIDIA's cards through NVML, by NVIDIA's own bindings. The driver's library can be any file, also a simulated one."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import pynvml
from hami_chassis.errors import Permanent
from hami_chassis.log import get_logger

from hami_node_agent.adapters.nvml_mig import instance_profiles, is_mode_off, parent_uuid
from hami_node_agent.adapters.nvml_topology import read_topology
from hami_node_agent.core import mig_uuid
from hami_node_agent.core.inventory import CardFacts
from hami_node_agent.core.topology import Topology

log = get_logger("nvml")

T = TypeVar("T")

_SONAME: Final = "libnvidia-ml.so.1"
LIBRARY_FOLDERS: Final = (
    "usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib64", "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)  # fmt: skip
"""Under a driver root, in order."""
_DOMAIN: Final = re.compile(r"^0000(?=[0-9a-f]{4}:)")
_WATCHED_EVENTS: Final = (
    pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError | pynvml.nvmlEventTypeSingleBitEccError
)
_LONG_GONE: Final = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_NOT_FOUND)


class DriverError(Permanent):
    """The driver cannot be used; the message says what to change."""


class CriticalEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An XID. `uuid` is the card's, and None where the driver does not say which card it is about."""

    uuid: str | None
    xid: int
    mig_device: str = ""
    """A MIG device whose card cannot be found out: that says nothing of any card."""


def find_library(library_file: str, driver_root: str) -> str:
    """The driver's library: the file that was named, else the one under the root, else the loader's."""
    if library_file:
        return library_file
    if driver_root and driver_root != "/":
        for folder in LIBRARY_FOLDERS:
            path = Path(driver_root) / folder / _SONAME
            if path.exists():
                return str(path.resolve())
    return _SONAME


async def driver_version(nvml: Nvml) -> str:
    """Such as `570.86.15`; empty where the driver does not say."""
    try:
        return await nvml.call(lambda: _text(pynvml.nvmlSystemGetDriverVersion()))
    except pynvml.NVMLError as error:
        log.warning("driver-version-unknown", reason=str(error))
        return ""


class Nvml:
    """All calls go through one thread, except the waiting for events, which has its own."""

    def __init__(self, *, sysfs: Path = Path("/sys"), with_mig: bool = False) -> None:
        """`with_mig`: also ask which MIG instances each card can hold."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nvml")
        self._events_thread = ThreadPoolExecutor(1, thread_name_prefix="nvml-events")
        self._sysfs = sysfs
        self._with_mig = with_mig
        self._event_set: Any = None
        self._watched: dict[int | None, str] = {}
        """UUIDs by handle: a card that fell off the bus no longer tells its own."""

    async def start(self, library: str) -> None:
        """Loads the driver. Raises DriverError."""
        await self.call(lambda: _load(library))

    async def close(self) -> None:
        self._events_thread.shutdown(wait=True)
        with contextlib.suppress(pynvml.NVMLError):
            await self.call(pynvml.nvmlShutdown)
        self._thread.shutdown(wait=True)

    async def call(self, work: Callable[[], T]) -> T:
        """Does work on the driver's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def facts(self) -> Sequence[CardFacts]:
        """Every card that answers. Raises DriverError only where not even their number is known."""
        return await self.call(self._facts)

    def _facts(self) -> list[CardFacts]:
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise DriverError(f"the driver does not tell how many cards there are: {error}") from error
        found: list[CardFacts] = []
        for index in range(count):
            try:
                found.append(self._card(index))
            except pynvml.NVMLError as error:
                log.warning("card-unreadable", index=index, reason=str(error))
        return found

    def _card(self, index: int) -> CardFacts:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory_bytes, fault = _memory(handle)
        bus_id = _text(pynvml.nvmlDeviceGetPciInfo(handle).busId)
        return CardFacts(
            uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
            index=index,
            name=_text(pynvml.nvmlDeviceGetName(handle)),
            minor=pynvml.nvmlDeviceGetMinorNumber(handle),
            memory_bytes=memory_bytes,
            memory_fault=fault,
            numa_text=self._numa_text(handle, bus_id),
            pci_bus_id=bus_id,
            mig_profiles=instance_profiles(handle) if self._with_mig else (),
            is_mig_off=self._with_mig and is_mode_off(handle),
        )

    def _numa_text(self, handle: object, bus_id: str) -> str | None:
        try:
            return str(pynvml.nvmlDeviceGetNumaNodeId(handle))
        except pynvml.NVMLError:
            pass
        path = self._sysfs / "bus/pci/devices" / _DOMAIN.sub("", bus_id.lower()) / "numa_node"
        try:
            return path.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            return None

    async def probe(self, uuid: str) -> str:
        """Asks the card a few cheap things; what went wrong, or empty."""
        return await self.call(lambda: _probe(uuid))

    async def topology(self, uuids: Sequence[str]) -> Topology:
        """How these cards are connected; what cannot be read is one of its faults."""
        return await self.call(lambda: read_topology(tuple(uuids)))

    async def watch_events(self, uuids: Sequence[str]) -> dict[str, str]:
        """Subscribes to the faults of these cards; answers why, for those where it is not possible."""
        return await self.call(lambda: self._watch_events(uuids))

    def _watch_events(self, uuids: Sequence[str]) -> dict[str, str]:
        refused: dict[str, str] = {}
        try:
            if self._event_set is None:
                self._event_set = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            return dict.fromkeys(uuids, str(error))
        for uuid in uuids:
            if uuid in self._watched.values():
                continue
            try:
                handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                kinds = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & _WATCHED_EVENTS
                pynvml.nvmlDeviceRegisterEvents(handle, kinds, self._event_set)
                self._watched[_address(handle)] = uuid
            except pynvml.NVMLError as error:
                refused[uuid] = str(error)
        return refused

    async def next_event(self, timeout_seconds: float) -> CriticalEvent | None:
        """The next XID, or None when there was none in that time. Raises DriverError."""
        if self._event_set is None:
            await asyncio.sleep(timeout_seconds)
            return None
        wait = asyncio.get_running_loop().run_in_executor(
            self._events_thread, lambda: self._next_event(round(timeout_seconds * 1000))
        )
        return await asyncio.shield(wait)

    def _next_event(self, timeout_ms: int) -> CriticalEvent | None:
        try:
            event = pynvml.nvmlEventSetWait_v2(self._event_set, timeout_ms)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_TIMEOUT:
                return None
            raise DriverError(f"waiting for faults of cards failed: {error}") from error
        if event.eventType != pynvml.nvmlEventTypeXidCriticalError:
            return None
        watched = self._watched.get(_address(event.device))
        return attributed(watched or _uuid_of(event.device), int(event.eventData), parent_uuid)


def attributed(uuid: str | None, xid: int, parent_of: Callable[[str], str | None]) -> CriticalEvent:
    """The event of a card, or of one of its MIG devices, whose card is found by its name or by asking the driver."""
    card = None if uuid is None else mig_uuid.card_of(uuid, parent_of)
    return CriticalEvent(uuid=card, xid=xid, mig_device=uuid if uuid is not None and card is None else "")


def _uuid_of(handle: object) -> str | None:
    try:
        return _text(pynvml.nvmlDeviceGetUUID(handle))
    except pynvml.NVMLError:
        return None


def _load(library: str) -> None:
    """The bindings load the library by its plain name only, so it is put where they keep it."""
    try:
        pynvml.nvmlLib = ctypes.CDLL(library)
        pynvml.nvmlInit()
    except OSError as error:
        raise DriverError(f"nvml.library_file {library}: {error}; is NVIDIA's driver installed?") from error
    except pynvml.NVMLError as error:
        raise DriverError(f"{library} cannot be initialised: {error}") from error


def _memory(handle: object) -> tuple[int | None, str]:
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total), ""
    except pynvml.NVMLError as error:
        return None, "" if error.value == pynvml.NVML_ERROR_NOT_SUPPORTED else str(error)


def _probe(uuid: str) -> str:
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        pynvml.nvmlDeviceGetPciInfo(handle)
    except pynvml.NVMLError as error:
        return "the card is lost" if error.value in _LONG_GONE else str(error)
    _, fault = _memory(handle)
    return fault


def _address(handle: Any) -> int | None:  # noqa: ANN401  # a pointer of the bindings, which have no types
    return ctypes.cast(handle, ctypes.c_void_p).value


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
