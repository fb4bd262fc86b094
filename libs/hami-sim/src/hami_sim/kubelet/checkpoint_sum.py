"""The checksum in kubelet's device checkpoint: FNV-1a (32 bits) over a printed form of the data.

The printed form is that of Go values: field names with their types, slices as `[a b]`, maps as `map[k:v]` with sorted
keys. A recorded checkpoint is the test.
"""

import base64

from kubelet_api.checkpoint import CheckpointData, PodDevicesEntry

_FNV_OFFSET = 0x811C9DC5
_FNV_PRIME = 0x01000193


def checkpoint_sum(data: CheckpointData) -> int:
    """As kubelet computes it."""
    value = _FNV_OFFSET
    for byte in _printed(data).encode():
        value = ((value ^ byte) * _FNV_PRIME) & 0xFFFFFFFF
    return value


def _printed(data: CheckpointData) -> str:
    entries = (
        "<nil>" if data.pod_device_entries is None else _slice([_entry(entry) for entry in data.pod_device_entries])
    )
    registered = (
        "<nil>"
        if data.registered_devices is None
        else _map({key: _strings(ids) for key, ids in sorted(data.registered_devices.items())})
    )
    return (
        f"(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){entries}"
        f" RegisteredDevices:(map[string][]string){registered}}}"
    )


def _entry(entry: PodDevicesEntry) -> str:
    by_numa = sorted(entry.device_ids_by_numa.items(), key=lambda item: int(item[0]))
    response = _slice([str(byte) for byte in base64.b64decode(entry.alloc_resp)])
    return (
        f"{{PodUID:(string){entry.pod_uid} ContainerName:(string){entry.container_name}"
        f" ResourceName:(string){entry.resource_name}"
        f" DeviceIDs:(checkpoint.DevicesPerNUMA){_map({key: _strings(ids) for key, ids in by_numa})}"
        f" AllocResp:([]uint8){response}}}"
    )


def _strings(values: list[str] | None) -> str:
    return "<nil>" if values is None else _slice(values)


def _slice(values: list[str]) -> str:
    return f"[{' '.join(values)}]"


def _map(values: dict[str, str]) -> str:
    return f"map[{' '.join(f'{key}:{value}' for key, value in values.items())}]"
