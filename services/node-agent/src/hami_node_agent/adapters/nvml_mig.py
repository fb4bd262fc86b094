"""What NVML says of MIG. To be called on the thread that holds the driver."""

from __future__ import annotations

from typing import Any, Final

import pynvml
from hami_model.cards import MigPlacement

from hami_node_agent.core.mig_profiles import InstanceProfile

_NOT_MADE: Final = (
    pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
)  # fmt: skip
"""The card, or this driver, has no such profile."""


def instance_profiles(handle: object) -> tuple[InstanceProfile, ...]:
    """The kinds of instances that a card can hold; none of a card without MIG. Raises NVMLError."""
    found = (_instance_profile(handle, kind) for kind in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT))
    return tuple(profile for profile in found if profile is not None)


def is_mode_off(handle: object) -> bool:
    """False also of a card without MIG. Raises NVMLError."""
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError as error:
        if error.value in _NOT_MADE:
            return False
        raise
    return not current


def switch_mode_on(uuid: str) -> str:
    """Switches the MIG mode of a card on; why that cannot be, or empty. A card that anybody uses is left alone."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        current, pending = pynvml.nvmlDeviceGetMigMode(handle)
        if current:
            return ""
        if pending:
            return f"it waits for a reset; with nothing running on the card: nvidia-smi --gpu-reset -i {uuid}"
        used_by = len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
        used_by += len(pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle))
        if used_by:
            return f"{used_by} processes use the card; it is switched on once they have ended"
        activation = pynvml.nvmlDeviceSetMigMode(handle, pynvml.NVML_DEVICE_MIG_ENABLE)
    except pynvml.NVMLError as error:
        return f"it cannot be switched on: {error}"
    if activation != pynvml.NVML_SUCCESS:
        return f"it waits for a reset; with nothing running on the card: nvidia-smi --gpu-reset -i {uuid}"
    return ""


def _instance_profile(handle: object, kind: int) -> InstanceProfile | None:
    try:
        info: Any = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, kind, version=1)
    except pynvml.NVMLError as error:
        if error.value in _NOT_MADE:
            return None
        raise
    return InstanceProfile(
        kind=kind,
        driver_id=info.id,
        slice_count=info.sliceCount,
        instance_count=info.instanceCount,
        sm_count=info.multiprocessorCount,
        memory_mib=info.memorySizeMB,
        placements=_placements(handle, info.id),
    )


def _placements(handle: object, driver_id: int) -> tuple[MigPlacement, ...]:
    count = pynvml.c_uint(0)
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, driver_id, None, pynvml.byref(count))
    listed = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, driver_id, listed, pynvml.byref(count))
    return tuple(MigPlacement(start=place.start, size=place.size) for place in listed[: count.value])


def parent_uuid(mig_device: str) -> str | None:
    """The card of a MIG device by its UUID; None where the driver does not know it."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(mig_device)
        uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle))
    except pynvml.NVMLError:
        return None
    return uuid.decode("utf-8", "replace") if isinstance(uuid, bytes) else str(uuid)
