"""What NVIDIA's CDI specifications say of a machine: device nodes of each card, and the driver's files for all.

The driver's files are found under a root in our container; specifications name the host's paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

import msgspec
from hami_model import env
from hami_model.errors import HamiError

from hami_node_agent.core import cdi_document
from hami_node_agent.core.device_lists import (
    CARD_CLASS,
    CDI_VENDOR,
    EVERY_DEVICE,
    IMEX_CLASS,
    DeviceRules,
    Feature,
    VisibleDevice,
    imex_node,
)
from hami_node_agent.core.machine_devices import FEATURE_FILES, MachineDevices

Edits = dict[str, Any]

_DRIVER: Final = "libcuda.so."
_READ_ONLY: Final = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
_SOCKET: Final = [*_READ_ONLY, "noexec"]
_CTK: Final = "nvidia-ctk"
"""Its hooks are sub-commands of `hook`; those of nvidia-cdi-hook are not."""


class DriverFilesMissingError(HamiError):
    """The driver's library was not found, so no specification can be written."""


class DriverFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files of the driver, as paths below its root."""

    version: str
    """As in the names of its libraries, such as 550.54.14."""
    libraries: tuple[str, ...]
    programs: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    firmware: tuple[str, ...] = ()


class HostRoots(msgspec.Struct, frozen=True, kw_only=True):
    """Where the host has what we see below the driver's root."""

    driver: str = "/"
    devices: str = "/"
    hook_file: str = "/usr/bin/nvidia-ctk"
    """NVIDIA's program that links libraries in a new container. Empty: none is called."""

    def of_file(self, path: str) -> str:
        return f"{self.driver.rstrip('/')}{path}"

    def of_node(self, path: str) -> str:
        return f"{self.devices.rstrip('/')}{path}"


def driver_version(names: Iterable[str]) -> str | None:
    """The version in the name of the driver's library among names of files, such as libcuda.so.550.54.14."""
    found = [name.removeprefix(_DRIVER) for name in names if name.startswith(_DRIVER)]
    return max((text for text in found if "." in text), default=None)


def specifications(
    devices: Sequence[VisibleDevice],
    rules: DeviceRules,
    machine: MachineDevices,
    files: DriverFiles,
    roots: HostRoots,
) -> dict[str, bytes]:
    """Content by class; a class without devices has none. Raises InvalidSpecificationError."""
    found: dict[str, bytes] = {}
    cards = {
        device.uuid if rules.id_strategy == "uuid" else device.index: node_edits(device.nodes, roots)
        for device in devices
    }
    if cards:
        found[CARD_CLASS] = _encoded(CARD_CLASS, cards, driver_edits(files, rules.control_nodes, roots))
    channels = {str(channel): imex_edits(channel, roots) for channel in rules.imex_channels}
    if channels:
        found[IMEX_CLASS] = _encoded(IMEX_CLASS, channels)
    for feature in rules.features:
        if feature in rules.features_found:
            found[feature] = _encoded(feature, {EVERY_DEVICE: feature_edits(feature, machine, roots)})
    return found


def file_name(device_class: str) -> str:
    return f"{CDI_VENDOR}-{device_class}.json"


def _encoded(device_class: str, devices: dict[str, Edits], general: Edits | None = None) -> bytes:
    return cdi_document.encoded(f"{CDI_VENDOR}/{device_class}", devices, general)


def node_edits(nodes: Iterable[str], roots: HostRoots) -> Edits:
    return {"deviceNodes": [_node(path, roots) for path in nodes]}


def imex_edits(channel: int, roots: HostRoots) -> Edits:
    return node_edits([imex_node(channel)], roots)


def feature_edits(feature: Feature, machine: MachineDevices, roots: HostRoots) -> Edits:
    """Nodes and files of GDRCopy, GPUDirect Storage or Mellanox."""
    edits = node_edits(machine.of_feature(feature), roots)
    files = [path for path in FEATURE_FILES[feature] if path in machine.files]
    mounts = [_mount(roots.of_file(path), path, _READ_ONLY) for path in files]
    return {**edits, "mounts": mounts} if mounts else edits


def beside_cards(rules: DeviceRules, machine: MachineDevices, roots: HostRoots) -> tuple[Edits, ...]:
    """Features and channels as edits, for containers whose cards come by edits too."""
    features = [feature for feature in rules.features if feature in rules.features_found]
    return (
        *(imex_edits(channel, roots) for channel in rules.imex_channels),
        *(feature_edits(feature, machine, roots) for feature in features),
    )


def driver_edits(files: DriverFiles, control_nodes: Sequence[str], roots: HostRoots) -> Edits:
    """What every container with a card gets. NVIDIA's runtime is told to leave it alone."""
    mounts = [_mount(roots.of_file(path), path, _READ_ONLY) for path in (*files.libraries, *files.programs)]
    mounts += [_mount(roots.of_file(path), path, _READ_ONLY) for path in files.firmware]
    mounts += [_mount(roots.of_file(path), path, _SOCKET) for path in files.sockets]
    edits: Edits = {
        "env": [f"{env.VISIBLE_CARDS}={env.VISIBLE_CARDS_VOID}"],
        "deviceNodes": [_node(path, roots) for path in control_nodes],
        "mounts": mounts,
    }
    if roots.hook_file:
        edits["hooks"] = _hooks(files, roots.hook_file)
    return edits


def _hooks(files: DriverFiles, hook_file: str) -> list[Edits]:
    program = PurePosixPath(hook_file).name
    words = [program, "hook"] if program == _CTK else [program]
    folders = sorted({str(PurePosixPath(path).parent) for path in files.libraries})
    links = [
        f"libcuda.so.1::{PurePosixPath(path).parent}/libcuda.so"
        for path in files.libraries
        if PurePosixPath(path).name == f"{_DRIVER}{files.version}"
    ]
    calls = [
        ["create-symlinks", *(word for link in links for word in ("--link", link))],
        ["update-ldcache", *(word for folder in folders for word in ("--folder", folder))],
    ]
    return [{"hookName": "createContainer", "path": hook_file, "args": [*words, *call]} for call in calls]


def _mount(host_path: str, container_path: str, options: list[str]) -> Edits:
    return {"hostPath": host_path, "containerPath": container_path, "options": options}


def _node(path: str, roots: HostRoots) -> Edits:
    host_path = roots.of_node(path)
    return {"path": path} if host_path == path else {"path": path, "hostPath": host_path}
