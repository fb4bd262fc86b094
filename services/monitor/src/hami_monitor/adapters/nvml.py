"""The cards of the node, by NVML. A query that fails costs its own value and nothing else."""

from __future__ import annotations

import _ctypes
import ctypes
from pathlib import Path
from typing import Final

import msgspec
import pynvml

from hami_monitor.adapters.nvml_asking import Asking, text
from hami_monitor.adapters.nvml_sensors import sensors
from hami_monitor.adapters.nvml_xids import XidCounts
from hami_monitor.core.host import HostCard, HostProcess, HostReading

LIBRARY: Final = "libnvidia-ml.so.1"


class _Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What does not change while the driver is loaded, remembered for a card that stops answering."""

    id: str
    model: str
    memory_total_bytes: int | None


class NvmlHost:
    """A HostSource. Not to be called from two threads at once."""

    def __init__(self, driver_library_folder: str = "") -> None:
        self._folder = driver_library_folder
        self._library: ctypes.CDLL | None = None
        self._is_open = False
        self._identities: dict[int, _Identity] = {}
        self._last_seen_us: dict[str, int] = {}
        self._ask = Asking()
        self._xids = XidCounts()

    def read(self) -> HostReading:
        """Takes as long as the driver does."""
        self._ask = Asking()
        try:
            self._open()
            count = pynvml.nvmlDeviceGetCount()
        except (pynvml.NVMLError, OSError) as error:
            problem = f"{LIBRARY}: {error}"  # in the library's words, so before it is let go
            self.close()
            return HostReading(problem=problem)
        cards = [card for index in range(count) if (card := self._card(index)) is not None]
        told = self._xids.counted(cards, self._ask)
        return HostReading(cards=told, failures=dict(self._ask.failures))

    def close(self) -> None:
        """Lets the driver go; the next reading opens it anew, of whatever version it is then."""
        if self._is_open:
            self._is_open = False
            self._xids.let_go(self._ask)
            self._ask("shutdown", pynvml.nvmlShutdown)
        loaded = [library for library in (pynvml.nvmlLib, self._library) if library is not None]
        pynvml.nvmlLib = self._library = None
        pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001  # functions of the library that goes
        for library in loaded:
            _ctypes.dlclose(library._handle)  # noqa: SLF001  # ctypes has no other way

    def _open(self) -> None:
        if self._is_open:
            return
        if self._folder and self._library is None:
            # The loader answers later requests for this name with what is already loaded under it.
            self._library = ctypes.CDLL(str(Path(self._folder) / LIBRARY), mode=ctypes.RTLD_GLOBAL)
        pynvml.nvmlInit()
        self._is_open = True

    def _card(self, index: int) -> HostCard | None:
        """None for a card that has never told who it is."""
        handle = self._ask("handle", lambda: pynvml.nvmlDeviceGetHandleByIndex(index))
        if handle is None:
            known = self._identities.get(index)
            return None if known is None else _silent(index, known)
        card_id = self._ask("uuid", lambda: text(pynvml.nvmlDeviceGetUUID(handle)))
        if card_id is None:
            known = self._identities.get(index)
            return None if known is None else _silent(index, known)
        self._xids.listen(handle, card_id, self._ask)
        memory = self._ask("memory", lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
        utilisation = self._ask("utilisation", lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
        known = self._identities.get(index)
        total = int(memory.total) if memory is not None else known.memory_total_bytes if known is not None else None
        model = self._ask("name", lambda: text(pynvml.nvmlDeviceGetName(handle))) or (known.model if known else "")
        self._identities[index] = _Identity(id=card_id, model=model, memory_total_bytes=total)
        return HostCard(
            id=card_id,
            index=index,
            model=model,
            memory_total_bytes=total,
            memory_used_bytes=int(memory.used) if memory is not None else None,
            utilisation_percent=int(utilisation.gpu) if utilisation is not None else None,
            memory_controller_percent=int(utilisation.memory) if utilisation is not None else None,
            processes=self._processes(handle, card_id),
            **sensors(handle, self._ask),
        )

    def _processes(self, handle: object, card_id: str) -> tuple[HostProcess, ...] | None:
        compute = self._ask("processes", lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
        if compute is None:
            return None
        graphics = self._ask("graphics-processes", lambda: pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)) or []
        busy = self._busy(handle, card_id)
        memory = {int(process.pid): process.usedGpuMemory for process in (*graphics, *compute)}
        return tuple(
            HostProcess(
                pid=pid,
                memory_used_bytes=None if used is None else int(used),
                # Who is not among the samples of a card that has any was idle.
                utilisation_percent=None if busy is None else busy.get(pid, 0),
            )
            for pid, used in sorted(memory.items())
        )

    def _busy(self, handle: object, card_id: str) -> dict[int, int] | None:
        """Percent by pid since the last reading; None where the card does not tell processes apart."""
        since = self._last_seen_us.get(card_id, 0)
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since)
        except pynvml.NVMLError_NotFound:
            return {}
        except pynvml.NVMLError as error:
            self._ask.count("process-utilisation", error)
            return None
        self._last_seen_us[card_id] = max((int(sample.timeStamp) for sample in samples), default=since)
        return {int(sample.pid): int(sample.smUtil) for sample in samples}


def _silent(index: int, known: _Identity) -> HostCard:
    return HostCard(id=known.id, index=index, model=known.model, memory_total_bytes=known.memory_total_bytes)
