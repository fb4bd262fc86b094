"""A MigDriver over NVML."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pynvml
from hami_chassis.errors import Transient
from hami_model.cards import MigPlacement
from hami_model.mig_allocations import MigInstance

from hami_node_agent.adapters.nvml import Nvml
from hami_node_agent.adapters.nvml_mig import instance_profiles
from hami_node_agent.core.mig_instances import LiveInstance
from hami_node_agent.core.mig_profiles import InstanceProfile, named

_WHOLE_BY_SLICES: Final = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4, 8: 5, 6: 6}
"""NVML_COMPUTE_INSTANCE_PROFILE_* of a compute instance that is all of a GPU instance."""
_CAPABILITIES: Final = Path("/proc/driver/nvidia-caps/mig-minors")


class MigError(Transient):
    """The driver did not do what was asked; the message says what."""


class NvmlMigDriver:
    """All calls of a card go through its thread in `nvml`."""

    def __init__(self, nvml: Nvml, *, capabilities: Path = _CAPABILITIES) -> None:
        self._nvml = nvml
        self._capabilities = capabilities

    async def kind_of(self, card_id: str, profile: str) -> int:
        return (await self._nvml.of_card(card_id, lambda: _profile(card_id, profile))).kind

    async def instances(self, card_id: str) -> Sequence[LiveInstance]:
        return await self._nvml.of_card(card_id, lambda: _instances(card_id))

    async def create(self, card_id: str, kind: int, placement: MigPlacement) -> LiveInstance:
        return await self._nvml.of_card(card_id, lambda: _create(card_id, kind, placement), is_slow=True)

    async def complete(self, card_id: str, instance: LiveInstance) -> LiveInstance:
        return await self._nvml.of_card(card_id, lambda: _complete(card_id, instance), is_slow=True)

    async def destroy(self, card_id: str, instance: LiveInstance) -> None:
        await self._nvml.of_card(card_id, lambda: _destroy(card_id, instance), is_slow=True)

    async def capability_minors(self, card_id: str, instance: MigInstance) -> tuple[int, int]:
        minor = await self._nvml.of_card(card_id, lambda: _minor(card_id))
        try:
            lines = self._capabilities.read_text(encoding="ascii").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise MigError(f"device nodes of MIG instances are not known: {self._capabilities}: {error}") from error
        numbers = dict(line.rsplit(" ", 1) for line in lines if " " in line)
        gpu = f"gpu{minor}/gi{instance.gpu_instance}"
        names = (f"{gpu}/access", f"{gpu}/ci{instance.compute_instance}/access")
        missing = [name for name in names if not numbers.get(name, "").isdecimal()]
        if missing:
            raise MigError(f"{self._capabilities} names no {' and no '.join(missing)}")
        return int(numbers[names[0]]), int(numbers[names[1]])


class _Naming:
    """NVML's errors as MigError, with what was being done."""

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, pynvml.NVMLError):
            raise MigError(f"{self._doing}: {error}") from error


def _minor(card_id: str) -> int:
    with _Naming(f"card {card_id}"):
        return int(pynvml.nvmlDeviceGetMinorNumber(pynvml.nvmlDeviceGetHandleByUUID(card_id)))


def _profiles(card_id: str) -> tuple[InstanceProfile, ...]:
    with _Naming(f"MIG profiles of card {card_id}"):
        return instance_profiles(pynvml.nvmlDeviceGetHandleByUUID(card_id))


def _profile(card_id: str, name: str) -> InstanceProfile:
    found = named(_profiles(card_id), name)
    if found is None:
        raise MigError(f"card {card_id} has no MIG profile {name!r}")
    return found


def _of_kind(card_id: str, kind: int) -> InstanceProfile:
    found = next((profile for profile in _profiles(card_id) if profile.kind == kind), None)
    if found is None:
        raise MigError(f"card {card_id} has no MIG profile of kind {kind}")
    return found


def _instances(card_id: str) -> tuple[LiveInstance, ...]:
    with _Naming(f"MIG instances of card {card_id}"):
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(card_id)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:  # the card was taken out of the machine, with all it had
                return ()
            raise
        if not pynvml.nvmlDeviceGetMigMode(handle)[0]:
            return ()
        made = _made(handle)
        found: list[LiveInstance] = []
        for profile in instance_profiles(handle):
            count = pynvml.c_uint(0)
            listed = (pynvml.c_nvmlGpuInstance_t * max(1, profile.instance_count))()
            pynvml.nvmlDeviceGetGpuInstances(handle, profile.driver_id, listed, pynvml.byref(count))
            for instance in listed[: count.value]:
                info = pynvml.nvmlGpuInstanceGetInfo(instance)
                place = MigPlacement(start=info.placement.start, size=info.placement.size)
                found.append(
                    LiveInstance(gpu_instance=info.id, kind=profile.kind, placement=place, made=made.get(info.id))
                )
        return tuple(found)


def _made(handle: Any) -> dict[int, MigInstance]:  # noqa: ANN401  # a handle of the bindings, which have no types
    """MIG devices of a card by the number of their GPU instance."""
    found: dict[int, MigInstance] = {}
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError as error:
            if error.value in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT):
                continue
            raise
        uuid = pynvml.nvmlDeviceGetUUID(device)
        number = pynvml.nvmlDeviceGetGpuInstanceId(device)
        found[number] = MigInstance(
            uuid=uuid.decode() if isinstance(uuid, bytes) else uuid,
            gpu_instance=number,
            compute_instance=pynvml.nvmlDeviceGetComputeInstanceId(device),
        )
    return found


def _create(card_id: str, kind: int, placement: MigPlacement) -> LiveInstance:
    profile = _of_kind(card_id, kind)
    with _Naming(f"making a MIG instance at {placement} of card {card_id}"):
        handle = pynvml.nvmlDeviceGetHandleByUUID(card_id)
        if not pynvml.nvmlDeviceGetMigMode(handle)[0]:
            raise MigError(f"card {card_id}: its MIG mode is off; switch it on with: nvidia-smi -i {card_id} -mig 1")
        place = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
        made = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile.driver_id, pynvml.byref(place))
        number = pynvml.nvmlGpuInstanceGetInfo(made).id
    instance = LiveInstance(gpu_instance=number, kind=kind, placement=placement)
    try:
        return _complete(card_id, instance)
    except MigError:
        with contextlib.suppress(MigError):
            _destroy(card_id, instance)
        raise


def _complete(card_id: str, instance: LiveInstance) -> LiveInstance:
    slices = _of_kind(card_id, instance.kind).slice_count
    with _Naming(f"making the compute instance of GPU instance {instance.gpu_instance} of card {card_id}"):
        handle = pynvml.nvmlDeviceGetHandleByUUID(card_id)
        gpu = pynvml.nvmlDeviceGetGpuInstanceById(handle, instance.gpu_instance)
        whole = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
            gpu, _WHOLE_BY_SLICES[slices], pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, version=1
        )
        pynvml.nvmlGpuInstanceCreateComputeInstance(gpu, whole.id)
        made = _made(handle).get(instance.gpu_instance)
    if made is None:
        raise MigError(f"card {card_id}: GPU instance {instance.gpu_instance} shows no MIG device")
    return LiveInstance(gpu_instance=instance.gpu_instance, kind=instance.kind, placement=instance.placement, made=made)


def _destroy(card_id: str, instance: LiveInstance) -> None:
    with _Naming(f"destroying GPU instance {instance.gpu_instance} of card {card_id}"):
        handle = pynvml.nvmlDeviceGetHandleByUUID(card_id)
        gpu = pynvml.nvmlDeviceGetGpuInstanceById(handle, instance.gpu_instance)
        if instance.made is not None:
            compute = pynvml.nvmlGpuInstanceGetComputeInstanceById(gpu, instance.made.compute_instance)
            pynvml.nvmlComputeInstanceDestroy(compute)
        pynvml.nvmlGpuInstanceDestroy(gpu)
