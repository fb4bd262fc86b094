"""NVIDIA's cards through NVML, by NVIDIA's own bindings. The driver's library can be any file, also a simulated one."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import pynvml
from hami_chassis.errors import Transient
from hami_chassis.log import get_logger

from hami_node_agent.adapters import nvml_library
from hami_node_agent.adapters.nvml_events import CriticalEvent, EventSet, attributed
from hami_node_agent.adapters.nvml_library import DRIVER_GONE, DriverError, text
from hami_node_agent.adapters.nvml_mig import instance_profiles, is_mode_off, parent_uuid, switch_mode_on
from hami_node_agent.adapters.nvml_threads import DriverThread, NotAnsweringError
from hami_node_agent.adapters.nvml_topology import read_topology
from hami_node_agent.core import mig_uuid
from hami_node_agent.core.inventory import CardFacts, Discovery, UnreadableCard
from hami_node_agent.core.topology import Topology

log = get_logger("nvml")

T = TypeVar("T")

_DOMAIN: Final = re.compile(r"^0000(?=[0-9a-f]{4}:)")
_LONG_GONE: Final = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_NOT_FOUND)
_SLOW_FACTOR: Final = 6
"""Loading the driver, asking how all cards are connected and making MIG instances may take so many times longer."""


class BeingLoadedError(Transient):
    """Nothing was asked: the driver's library is being loaded anew. This says nothing of any card."""

    def __init__(self) -> None:
        super().__init__("the driver's library is being loaded anew")


class Nvml:
    """Each card's calls go through a thread of its own, and so do those about no card and the waiting for events."""

    def __init__(
        self,
        library: Callable[[], str],
        *,
        sysfs: Path = Path("/sys"),
        with_mig: bool = False,
        answer_seconds: float = 5.0,
    ) -> None:
        """`library` says where the driver's library is, anew at each loading.

        `with_mig`: also ask which MIG instances each card can hold.
        """
        self._library = library
        self._sysfs = sysfs
        self._with_mig = with_mig
        self._answer_seconds = answer_seconds
        self._general = DriverThread("driver")
        self._waiting = DriverThread("driver's events")
        self._cards: dict[str, DriverThread] = {}
        self._indexes: dict[int, str] = {}
        """UUIDs by index, as last told."""
        self._events = EventSet()
        self._is_reloading = False
        self._loadings = 0
        """How often the library was loaded anew, or that was tried."""
        self._gone_at: dict[str, int] = {}
        """Cards of which the driver says only that it is gone itself: at which loading that began."""

    async def start(self) -> None:
        """Loads the driver. Raises DriverError."""
        await self._generally(lambda: nvml_library.load(self._library()), _SLOW_FACTOR)

    async def close(self) -> None:
        threads = [self._general, self._waiting, *self._cards.values()]
        if not any(thread.is_overdue for thread in threads):
            with contextlib.suppress(pynvml.NVMLError, DriverError):
                await self._generally(pynvml.nvmlShutdown)
        for thread in threads:
            thread.close()

    async def reload(self) -> None:
        """Loads the library anew: the driver was started again. Raises DriverError."""
        self._is_reloading = True
        try:
            async with asyncio.timeout(self._answer_seconds):
                # Threads tell nobody that they have come to rest.
                while not all(thread.is_idle for thread in (self._general, self._waiting, *self._cards.values())):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            self._events.forget()
            await self._generally(nvml_library.unload, reloading=True)
            await self._generally(lambda: nvml_library.load(self._library()), _SLOW_FACTOR, reloading=True)
        except TimeoutError:
            raise DriverError(
                "the driver was started again, but a call of the old one hangs, so its library cannot be loaded anew; "
                "restart the node-agent"
            ) from None
        finally:
            self._is_reloading = False
            self._loadings += 1

    @property
    def is_gone(self) -> bool:
        """Whether the driver says so when it is asked for some card, and was not loaded anew since."""
        return self._loadings in self._gone_at.values()

    async def driver_version(self) -> str:
        """Such as `570.86.15`; empty where the driver does not say."""
        try:
            return await self._generally(lambda: text(pynvml.nvmlSystemGetDriverVersion()))
        except (pynvml.NVMLError, DriverError) as error:
            log.warning("driver-version-unknown", reason=str(error))
            return ""

    async def _generally(self, work: Callable[[], T], factor: int = 1, *, reloading: bool = False) -> T:
        """About no card. Raises DriverError, also where the driver does not answer."""
        if self._is_reloading and not reloading:
            raise DriverError(str(BeingLoadedError()))
        try:
            return await self._general.call(work, self._answer_seconds * factor)
        except NotAnsweringError as error:
            raise DriverError(str(error)) from error

    async def of_card(self, uuid: str, work: Callable[[], T], *, is_slow: bool = False) -> T:
        """About one card, on its thread. Raises what `work` raises, and Transient where the driver does not answer."""
        return await self._on(uuid, f"card {uuid}", work, _SLOW_FACTOR if is_slow else 1)

    async def _on(self, key: str, name: str, work: Callable[[], T], factor: int = 1) -> T:
        if self._is_reloading:
            raise BeingLoadedError
        thread = self._cards.get(key)
        if thread is None:
            thread = self._cards[key] = DriverThread(name)
        return await thread.call(work, self._answer_seconds * factor)

    async def discover(self) -> Discovery:
        """Every card. Raises DriverError only where not even their number is known."""
        try:
            count = await self._generally(pynvml.nvmlDeviceGetCount)
        except pynvml.NVMLError as error:
            raise DriverError(
                f"the driver does not tell how many cards there are: {error}", is_gone=error.value in DRIVER_GONE
            ) from error
        found = await asyncio.gather(*(self._card_at(index) for index in range(count)))
        cards = tuple(card for card in found if isinstance(card, CardFacts))
        for card in cards:
            self._indexes[card.index] = card.uuid
            nameless = self._cards.pop(_at(card.index), None)
            if nameless is not None:
                nameless.close()
        return Discovery(cards=cards, unreadable=tuple(card for card in found if isinstance(card, UnreadableCard)))

    async def _card_at(self, index: int) -> CardFacts | UnreadableCard:
        known = self._indexes.get(index, "")
        try:
            return await self._on(known or _at(index), f"card {known or index}", lambda: self._read(index))
        except (pynvml.NVMLError, Transient) as error:
            return UnreadableCard(index=index, uuid=known, reason=str(error))

    def _read(self, index: int) -> CardFacts:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory_bytes, fault = _memory(handle)
        bus_id = text(pynvml.nvmlDeviceGetPciInfo(handle).busId)
        return CardFacts(
            uuid=text(pynvml.nvmlDeviceGetUUID(handle)),
            index=index,
            name=text(pynvml.nvmlDeviceGetName(handle)),
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

    async def probe(self, uuid: str) -> str | None:
        """Asks the card a few cheap things; what went wrong, or empty.

        None where nothing is known of the card: it was not asked, or the driver must be loaded anew first.
        """
        try:
            fault = await self.of_card(uuid, lambda: _probe(uuid))
        except BeingLoadedError:
            return None
        except DriverError as error:
            began = self._gone_at.setdefault(uuid, self._loadings)
            return None if began == self._loadings else str(error)
        except Transient as error:
            return str(error)
        self._gone_at.pop(uuid, None)
        return fault

    async def switch_mig_on(self, uuid: str) -> str:
        """Switches the MIG mode of a card on that nobody uses; why not, or empty."""
        try:
            return await self.of_card(uuid, lambda: switch_mode_on(uuid), is_slow=True)
        except Transient as error:
            return str(error)

    async def topology(self, uuids: Sequence[str]) -> Topology:
        """How these cards are connected; what cannot be read is one of its faults."""
        answering = tuple(uuid for uuid in uuids if uuid not in self._cards or not self._cards[uuid].is_overdue)
        try:
            return await self._on("topology", "topology", lambda: read_topology(answering), _SLOW_FACTOR)
        except Transient as error:
            return Topology(faults=(f"cards have no pair scores: how they are connected cannot be read: {error}",))

    @property
    def has_events(self) -> bool:
        """Whether faults of cards can be subscribed to and waited for."""
        return self._events.exists and not self._is_reloading

    async def create_events(self) -> None:
        """From here on faults can be subscribed to. Raises DriverError."""
        try:
            await self._generally(self._events.create)
        except pynvml.NVMLError as error:
            raise DriverError(f"faults of cards cannot be waited for: {error}") from error

    async def watch_events(self, uuid: str) -> str:
        """Subscribes to the faults of a card, unless that is done; why the card refuses, or empty."""
        try:
            if not self._events.watches(uuid):
                await self.of_card(uuid, lambda: self._events.watch(uuid))
        except BeingLoadedError:
            return ""
        except pynvml.NVMLError as error:
            return "" if error.value in DRIVER_GONE else str(error)
        except Transient as error:
            return str(error)
        return ""

    async def drop_events(self) -> None:
        """Nothing is subscribed to any more; what was waited for failed. A wait that hangs keeps all as it is."""
        if self._waiting.is_overdue:
            return
        with contextlib.suppress(DriverError):
            await self._generally(self._events.drop)

    async def next_event(self, timeout_seconds: float) -> CriticalEvent | None:
        """The next fault, or None when there was none in that time. Raises DriverError."""
        try:
            event = await self._waiting.call(
                lambda: self._events.wait(round(timeout_seconds * 1000)), timeout_seconds + self._answer_seconds
            )
        except NotAnsweringError as error:
            raise DriverError(str(error)) from error
        device = event.uuid if event is not None else None
        if event is None or device is None or not mig_uuid.is_mig(device):
            return event
        parent: str | None = None
        with contextlib.suppress(DriverError):
            parent = await self._generally(lambda: parent_uuid(device))
        return attributed(event, lambda _device: parent)


def _at(index: int) -> str:
    return f"index {index}"


def _memory(handle: object) -> tuple[int | None, str]:
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total), ""
    except pynvml.NVMLError as error:
        return None, "" if error.value == pynvml.NVML_ERROR_NOT_SUPPORTED else str(error)


def _probe(uuid: str) -> str:
    """Raises DriverError where the fault is the driver's."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        pynvml.nvmlDeviceGetPciInfo(handle)
        with contextlib.suppress(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as error:
        if error.value in DRIVER_GONE:
            raise DriverError(str(error), is_gone=True) from error
        return "the card is lost" if error.value in _LONG_GONE else str(error)
    return ""
