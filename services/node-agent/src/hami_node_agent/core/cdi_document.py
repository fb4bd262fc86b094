"""The shape of a CDI specification, and whether one of ours has it: a runtime ignores a file with any fault.

Version: the lowest one that knows all members that are used, as runtimes refuse versions that are newer than they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from hami_model.errors import HamiError

Version = tuple[int, int, int]
MIN_VERSION: Final[Version] = (0, 5, 0)
"""First version whose device names may begin with a digit and whose device nodes may have another path on the host."""
_KNOWN_FROM: Final[dict[str, Version]] = {
    "annotations": (0, 6, 0),
    "additionalGids": (0, 7, 0),
    "intelRdt": (0, 7, 0),
    "netDevices": (1, 1, 0),
    "schemata": (1, 1, 0),
    "enableMonitoring": (1, 1, 0),
}

_Path = Annotated[str, msgspec.Meta(pattern="^/")]
_Assignment = Annotated[str, msgspec.Meta(pattern="^[^=]+=")]
_Name = Annotated[str, msgspec.Meta(min_length=1)]
_Whole = Annotated[int, msgspec.Meta(ge=0)]


class InvalidSpecificationError(HamiError):
    """A specification that no runtime would take; the message says what is wrong where."""


class _Part(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    pass


class DeviceNode(_Part, frozen=True):
    path: _Path
    host_path: _Path | None = None
    type: Literal["b", "c", "u", "p"] | None = None
    major: int | None = None
    minor: int | None = None
    file_mode: _Whole | None = None
    permissions: Annotated[str, msgspec.Meta(pattern="^[rwm]*$")] | None = None
    uid: _Whole | None = None
    gid: _Whole | None = None


class NetDevice(_Part, frozen=True):
    host_interface_name: _Name
    name: _Name


class SpecMount(_Part, frozen=True):
    host_path: _Name
    container_path: _Path
    options: list[str] | None = None
    type: str | None = None


class Hook(_Part, frozen=True):
    hook_name: Literal["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"]
    path: _Path
    args: list[str] | None = None
    env: list[_Assignment] | None = None
    timeout: _Whole | None = None


class IntelRdt(_Part, frozen=True):
    clos_id: str | None = msgspec.field(default=None, name="closID")
    l3_cache_schema: str | None = msgspec.field(default=None, name="l3CacheSchema")
    mem_bw_schema: str | None = None
    schemata: list[str] | None = None
    enable_cmt: bool | None = msgspec.field(default=None, name="enableCMT")
    enable_mbm: bool | None = msgspec.field(default=None, name="enableMBM")
    enable_monitoring: bool | None = None


class Edits(_Part, frozen=True):
    """What is done to a container."""

    env: list[_Assignment] | None = None
    device_nodes: list[DeviceNode] | None = None
    net_devices: list[NetDevice] | None = None
    mounts: list[SpecMount] | None = None
    hooks: list[Hook] | None = None
    additional_gids: list[Annotated[int, msgspec.Meta(ge=1, le=2**32 - 1)]] | None = None
    intel_rdt: IntelRdt | None = None


class SpecDevice(_Part, frozen=True):
    name: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?$")]
    container_edits: Edits
    annotations: dict[str, str] | None = None


class Document(_Part, frozen=True):
    cdi_version: Annotated[str, msgspec.Meta(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$")]
    kind: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z][A-Za-z0-9_.-]*/[A-Za-z][A-Za-z0-9_.-]*$")]
    devices: Annotated[list[SpecDevice], msgspec.Meta(min_length=1)]
    annotations: dict[str, str] | None = None
    container_edits: Edits | None = None


def encoded(kind: str, devices: Mapping[str, dict[str, Any]], general: dict[str, Any] | None = None) -> bytes:
    """The specification of `devices` (edits by name). Raises InvalidSpecificationError."""
    document: dict[str, Any] = {
        "cdiVersion": "",
        "kind": kind,
        "devices": [{"name": name, "containerEdits": edits} for name, edits in devices.items()],
    }
    if general:
        document["containerEdits"] = general
    document["cdiVersion"] = ".".join(map(str, needed_version(document)))
    content = msgspec.json.encode(document)
    try:
        found = msgspec.json.decode(content, type=Document)
    except msgspec.ValidationError as error:
        raise InvalidSpecificationError(f"CDI specification {kind}: {error}") from error
    empty = [device.name for device in found.devices if device.container_edits == Edits()]
    if empty:
        raise InvalidSpecificationError(f"CDI specification {kind}: devices {', '.join(empty)} change nothing")
    return content


def known_edits(raw: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Edits that somebody else wrote, without members that we do not know, and the names of those.

    Raises InvalidSpecificationError where what is left has not the right shape.
    """
    kept: dict[str, Any] = {}
    unknown: list[str] = []
    for name, value in raw.items():
        if name not in _members(Edits):
            unknown.append(name)
            continue
        part = _PARTS.get(name)
        if part is None or not isinstance(value, list | dict):
            kept[name] = value
            continue
        members = _members(part)
        items = [_without(item, members, name, unknown) for item in (value if isinstance(value, list) else [value])]
        kept[name] = items if isinstance(value, list) else items[0]
    try:
        msgspec.convert(kept, Edits)
    except msgspec.ValidationError as error:
        raise InvalidSpecificationError(str(error)) from error
    return kept, tuple(dict.fromkeys(unknown))


def _without(item: object, members: frozenset[str], place: str, unknown: list[str]) -> object:
    if not isinstance(item, dict):
        return item
    unknown += [f"{place}.{name}" for name in item if name not in members]
    return {name: value for name, value in item.items() if name in members}


def _members(part: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(field.encode_name for field in msgspec.structs.fields(part))


_PARTS: Final[dict[str, type[msgspec.Struct]]] = {
    "deviceNodes": DeviceNode,
    "netDevices": NetDevice,
    "mounts": SpecMount,
    "hooks": Hook,
    "intelRdt": IntelRdt,
}


def needed_version(part: object) -> Version:
    """The lowest version that knows all members below `part`."""
    if isinstance(part, Mapping):
        return max(
            [MIN_VERSION, *(max(_KNOWN_FROM.get(str(k), MIN_VERSION), needed_version(v)) for k, v in part.items())]
        )
    if isinstance(part, list):
        return max([MIN_VERSION, *map(needed_version, part)])
    return MIN_VERSION
