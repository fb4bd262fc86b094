"""A card's sensors and counters, and its MIG instances.

PCIe throughput is left out: the driver measures it for 20 ms a card and direction while the caller waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pynvml

from hami_monitor.adapters.nvml_asking import Asking, text
from hami_monitor.core.host import CLOCK_LIMITS, HostInstance

_MIG_MARK: Final = " MIG "

_SENSORS: Final[dict[str, tuple[str, Callable[[Any], int]]]] = {
    "temperature_celsius": (
        "temperature",
        lambda handle: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
    ),
    "power_milliwatts": ("power", pynvml.nvmlDeviceGetPowerUsage),
    "power_limit_milliwatts": ("power-limit", pynvml.nvmlDeviceGetEnforcedPowerLimit),
    "sm_clock_megahertz": ("clock", lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
    "memory_clock_megahertz": ("clock", lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
    "ecc_corrected": (
        "ecc",
        lambda handle: pynvml.nvmlDeviceGetTotalEccErrors(
            handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC
        ),
    ),
    "ecc_uncorrected": (
        "ecc",
        lambda handle: pynvml.nvmlDeviceGetTotalEccErrors(
            handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        ),
    ),
}
"""Fields of HostCard: the query's name in metrics, and the query."""


def sensors(handle: object, ask: Asking) -> dict[str, Any]:
    """Fields of HostCard."""
    found: dict[str, Any] = {
        field: ask(query, lambda read=read: int(read(handle)))  # type: ignore[misc]
        for field, (query, read) in _SENSORS.items()
    }
    bits = ask("clock-limits", lambda: int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))
    found["clock_limits"] = (
        None if bits is None else frozenset(limit for bit, limit in CLOCK_LIMITS.items() if bits & bit)
    )
    found["instances"] = tuple(_instances(handle, ask))
    return found


def _instances(handle: object, ask: Asking) -> Iterator[HostInstance]:
    mode = ask("mig-mode", lambda: pynvml.nvmlDeviceGetMigMode(handle)[0])
    if mode != pynvml.NVML_DEVICE_MIG_ENABLE:
        return
    for place in range(ask("mig-count", lambda: int(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle))) or 0):
        instance = ask("mig-handle", lambda place=place: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place))  # type: ignore[misc]
        found = None if instance is None else _instance(instance, ask)
        if found is not None:
            yield found


def _instance(handle: object, ask: Asking) -> HostInstance | None:
    uuid = ask("mig-uuid", lambda: text(pynvml.nvmlDeviceGetUUID(handle)))
    if uuid is None:
        return None
    memory = ask("mig-memory", lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    name = ask("mig-name", lambda: text(pynvml.nvmlDeviceGetName(handle))) or ""
    return HostInstance(
        id=uuid,
        profile=name.partition(_MIG_MARK)[2],
        gpu_instance=ask("mig-instance", lambda: int(pynvml.nvmlDeviceGetGpuInstanceId(handle))),
        compute_instance=ask("mig-instance", lambda: int(pynvml.nvmlDeviceGetComputeInstanceId(handle))),
        memory_total_bytes=None if memory is None else int(memory.total),
        memory_used_bytes=None if memory is None else int(memory.used),
    )
