"""What NVIDIA's device plugin reads of the device configuration: `version`, `flags`, `resources`, `sharing`, `imex`.

Flags become our settings, below all others. Sharing counts for MIG devices only, as with HAMi: cards are shared in
slices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import yaml
from hami_model.errors import MalformedError

KEYS: Final = frozenset({"version", "flags", "resources", "sharing", "imex"})
_VERSION: Final = "v1"
_SETTINGS: Final = {
    "migStrategy": "devices.mig_strategy",
    "failOnInitError": "nvml.required",
    "nvidiaDriverRoot": "nvml.host_driver_root",
    "nvidiaDevRoot": "nvml.host_dev_root",
    "gdrcopyEnabled": "devices.gdrcopy",
    "gdsEnabled": "devices.gds",
    "mofedEnabled": "devices.mofed",
    "plugin.passDeviceSpecs": "devices.pass_nodes",
    "plugin.deviceListStrategy": "devices.list_strategies",
    "plugin.deviceIDStrategy": "devices.id_strategy",
    "plugin.cdiAnnotationPrefix": "devices.cdi_annotation_prefix",
    "plugin.nvidiaCTKPath": "devices.cdi_hook_file",
    "plugin.containerDriverRoot": "nvml.driver_root",
    "channelIDs": "devices.imex_channels",
    "required": "devices.imex_required",
}
"""By the name below `flags`, or below `imex`."""
_OF_OTHERS: Final = ("gfd", "useNodeFeatureAPI", "deviceDiscoveryStrategy")
"""Flags of NVIDIA's other programs, or without a choice here."""


class NvidiaConfigError(MalformedError):
    """The file's NVIDIA part cannot be used."""


class NvidiaConfig(msgspec.Struct, frozen=True, kw_only=True):
    values: tuple[tuple[str, str, str], ...] = ()
    """Path of our setting, text, and where it stood."""
    replicas: Mapping[str, int] = {}
    """Shares of each MIG device, by resource."""
    one_at_most: bool = False
    """Shares do not add up: a container may ask for one."""
    notes: tuple[str, ...] = ()
    """What has no effect."""


def parse(text: str) -> NvidiaConfig:
    """Reads the keys that are NVIDIA's; what is HAMi's is left alone. Raises NvidiaConfigError."""
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise NvidiaConfigError(f"device configuration: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, Mapping):
        return NvidiaConfig()
    version = document.get("version", _VERSION)
    if version != _VERSION:
        raise NvidiaConfigError(f"device configuration: version {version!r} is not known; write {_VERSION}")
    values: list[tuple[str, str, str]] = []
    notes: list[str] = []
    for group in ("flags", "imex"):
        _read_group(_mapping(document, group), group, "", values, notes)
    if document.get("resources"):
        notes.append("resources: has no effect, as with HAMi: the resource's name is nvidia.resourceCountName")
    sharing = _mapping(document, "sharing")
    if "mps" in sharing:
        notes.append("sharing.mps: has no effect: cards are shared in slices")
    slicing = _mapping(sharing, "timeSlicing")
    return NvidiaConfig(
        values=tuple(values),
        replicas=_replicas(slicing, notes),
        one_at_most=slicing.get("failRequestsGreaterThanOne") is True,
        notes=tuple(notes),
    )


def _mapping(document: Mapping[Any, Any], key: str) -> Mapping[Any, Any]:
    found = document.get(key)
    if found is not None and not isinstance(found, Mapping):
        raise NvidiaConfigError(f"device configuration: {key}: must be a mapping")
    return found or {}


def _read_group(
    group: Mapping[Any, Any], place: str, below: str, values: list[tuple[str, str, str]], notes: list[str]
) -> None:
    for key, value in group.items():
        name, where = f"{below}{key}", f"{place}.{below}{key}"
        if name == "plugin" and isinstance(value, Mapping):
            _read_group(value, place, "plugin.", values, notes)
        elif name in _SETTINGS and value is not None:
            values.append((_SETTINGS[name], _text(value), where))
        elif name not in _OF_OTHERS:
            notes.append(f"{where}: is not known and has no effect")


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _replicas(slicing: Mapping[Any, Any], notes: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    listed = slicing.get("resources") or []
    if not isinstance(listed, list):
        raise NvidiaConfigError("device configuration: sharing.timeSlicing.resources: must be a list")
    for number, entry in enumerate(listed):
        place = f"sharing.timeSlicing.resources[{number}]"
        replicas = entry.get("replicas") if isinstance(entry, Mapping) else None
        if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 1:
            raise NvidiaConfigError(f"device configuration: {place}: needs a name and replicas of at least 1")
        found[str(entry.get("name"))] = replicas
        if entry.get("rename"):
            notes.append(f"{place}.rename: has no effect, as with HAMi")
    if slicing.get("renameByDefault"):
        notes.append("sharing.timeSlicing.renameByDefault: has no effect, as with HAMi")
    return found
