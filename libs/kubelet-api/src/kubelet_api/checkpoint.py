"""Kubelet's device checkpoint: which device ids each container holds, and what Allocate answered.

The file lies in the device plugins folder and is replaced as a whole after every Allocate. It is kubelet's internal
state, so the reader takes what it needs and ignores the rest; an entry it cannot understand is listed, never dropped.
"""

import base64
import binascii
from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from kubelet_api.deviceplugin_v1beta1_pb2 import ContainerAllocateResponse

NO_NUMA_NODE = "-1"
"""Key of ids that lie on no NUMA node."""


class CheckpointError(ValueError):
    """The file as a whole is not a device checkpoint."""


class PodDevicesEntry(msgspec.Struct, frozen=True, rename="pascal"):
    """The devices of one resource that one container holds."""

    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids_by_numa: dict[str, list[str]] = msgspec.field(name="DeviceIDs")
    alloc_resp: str = ""
    """ContainerAllocateResponse, protobuf in base64."""

    @property
    def device_ids(self) -> frozenset[str]:
        """All ids, whatever NUMA node they lie on; order has no meaning in the file."""
        return frozenset().union(*self.device_ids_by_numa.values())

    def allocate_response(self) -> ContainerAllocateResponse:
        """What the plugin answered. Raises CheckpointError when the bytes are no such message."""
        try:
            raw = base64.b64decode(self.alloc_resp, validate=True)
            return ContainerAllocateResponse.FromString(raw)
        except (binascii.Error, DecodeError) as error:
            raise CheckpointError(
                f"AllocResp of pod {self.pod_uid} container {self.container_name} cannot be decoded: {error}"
            ) from error


class CheckpointData(msgspec.Struct, frozen=True, rename="pascal"):
    """The part of the file that the checksum covers."""

    pod_device_entries: list[PodDevicesEntry] | None = None
    registered_devices: dict[str, list[str] | None] | None = None


class Checkpoint(msgspec.Struct, frozen=True, rename="pascal"):
    """The file as kubelet writes it."""

    data: CheckpointData
    checksum: int = 0


class UnreadableEntry(msgspec.Struct, frozen=True):
    """An entry that is there but does not have the expected shape."""

    index: int
    reason: str
    pod_uid: str | None
    """Where it can still be told."""


class CheckpointView(msgspec.Struct, frozen=True):
    """What a reader gets: the entries that make sense and those that do not."""

    entries: tuple[PodDevicesEntry, ...]
    registered_devices: dict[str, frozenset[str]]
    unreadable: tuple[UnreadableEntry, ...] = ()

    def holding(self, resource_name: str, device_ids: frozenset[str]) -> tuple[PodDevicesEntry, ...]:
        """Entries of the resource with exactly these ids; several when an init container's ids were given again."""
        return tuple(
            entry for entry in self.entries if entry.resource_name == resource_name and entry.device_ids == device_ids
        )


class _StrictCheckpoint(msgspec.Struct, rename="pascal"):
    data: CheckpointData


class _LooseData(msgspec.Struct, rename="pascal"):
    pod_device_entries: list[Any] | None = None
    registered_devices: dict[str, Any] | None = None


class _LooseCheckpoint(msgspec.Struct, rename="pascal"):
    data: _LooseData


_STRICT = msgspec.json.Decoder(_StrictCheckpoint)
_LOOSE = msgspec.json.Decoder(_LooseCheckpoint)


def read_checkpoint(raw: bytes) -> CheckpointView:
    """Decode the file's content. Raises CheckpointError when it is no checkpoint; single bad entries are listed."""
    try:
        return _view(_STRICT.decode(raw).data)
    except (msgspec.DecodeError, RecursionError):
        return _read_loosely(raw)


def _view(data: CheckpointData) -> CheckpointView:
    registered = {
        resource: frozenset(ids) for resource, ids in (data.registered_devices or {}).items() if ids is not None
    }
    return CheckpointView(tuple(data.pod_device_entries or ()), registered)


def _read_loosely(raw: bytes) -> CheckpointView:
    """Of a file that is not all as expected."""
    try:
        loose = _LOOSE.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CheckpointError(f"not a kubelet device checkpoint: {error}") from error
    entries: list[PodDevicesEntry] = []
    unreadable: list[UnreadableEntry] = []
    for index, item in enumerate(loose.data.pod_device_entries or []):
        try:
            entries.append(msgspec.convert(_by_numa(item), PodDevicesEntry))
        except msgspec.ValidationError as error:
            pod_uid = item.get("PodUID") if isinstance(item, dict) else None
            unreadable.append(UnreadableEntry(index, str(error), pod_uid if isinstance(pod_uid, str) else None))
    registered = {
        resource: frozenset(id_ for id_ in ids if isinstance(id_, str))
        for resource, ids in (loose.data.registered_devices or {}).items()
        if isinstance(ids, list)
    }
    return CheckpointView(tuple(entries), registered, tuple(unreadable))


def _by_numa(item: Any) -> Any:  # noqa: ANN401  # JSON of any shape
    """Before 1.20 kubelet wrote the ids as one list."""
    ids = item.get("DeviceIDs") if isinstance(item, dict) else None
    return {**item, "DeviceIDs": {NO_NUMA_NODE: ids}} if isinstance(ids, list) else item


def write_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Encode as kubelet does."""
    return msgspec.json.encode(checkpoint)


def pod_devices_entry(
    pod_uid: str,
    container_name: str,
    resource_name: str,
    device_ids_by_numa: dict[int, list[str]],
    response: ContainerAllocateResponse,
) -> PodDevicesEntry:
    """The entry that kubelet writes for one answer of Allocate."""
    return PodDevicesEntry(
        pod_uid=pod_uid,
        container_name=container_name,
        resource_name=resource_name,
        device_ids_by_numa={str(node): list(ids) for node, ids in device_ids_by_numa.items()},
        alloc_resp=base64.b64encode(response.SerializeToString()).decode("ascii"),
    )
