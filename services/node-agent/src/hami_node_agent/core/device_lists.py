"""How a container is told which devices are its own: the device list strategies of NVIDIA's device plugin.

envvar           NVIDIA_VISIBLE_DEVICES names them, NVIDIA's runtime shows them
volume-mounts    /dev/null mounted once for each of them, under a folder that NVIDIA's runtime reads
cdi-annotations  CDI names in an annotation of the container, for runtimes that read them there
cdi-cri          CDI names in their own field of kubelet's request to the runtime

Several at once are all written. With CDI alone nothing is said to NVIDIA's runtime, and no device nodes are passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from hami_model import env

from hami_node_agent.core.grant import Mount

Strategy = Literal["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"]
IdStrategy = Literal["uuid", "index"]
Feature = Literal["gdrcopy", "gds", "mofed"]

CDI_VENDOR: Final = "k8s.device-plugin.nvidia.com"
"""Of the specifications that stand for whole cards; NVIDIA's device plugin uses the same."""
CARD_CLASS: Final = "gpu"
IMEX_CLASS: Final = "imex-channel"
EVERY_DEVICE: Final = "all"
"""Name of the one device of a feature's class."""
_OF_CDI: Final = frozenset({"cdi-annotations", "cdi-cri"})
_MOUNTED_LIST: Final = "/var/run/nvidia-container-devices"
_NOTHING: Final = "/dev/null"
_ANNOTATION: Final = "nvidia-device-plugin_"
_CONTROL_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
_FEATURE_VARIABLES: Final[dict[Feature, str]] = {
    "gdrcopy": "NVIDIA_GDRCOPY",
    "gds": "NVIDIA_GDS",
    "mofed": "NVIDIA_MOFED",
}
_FEATURE_ENABLED: Final = "enabled"
_IMEX_VARIABLE: Final = "NVIDIA_IMEX_CHANNELS"


class VisibleDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A card, or a MIG instance, that a container is to see."""

    uuid: str
    index: str
    """NVML's number; `<card>:<instance>` of a MIG instance."""
    nodes: tuple[str, ...] = ()
    """Its device nodes, as paths in the container."""


class DeviceNode(msgspec.Struct, frozen=True, kw_only=True):
    """A device file that a container may read and write."""

    container_path: str
    host_path: str


class DeviceRules(msgspec.Struct, frozen=True, kw_only=True):
    """What was configured, and what this machine has of it."""

    strategies: tuple[Strategy, ...] = ("envvar",)
    id_strategy: IdStrategy = "uuid"
    pass_nodes: bool = False
    features: tuple[Feature, ...] = ()
    """Those that are switched on."""
    features_found: frozenset[Feature] = frozenset()
    """Those whose device nodes this machine has: only they have a CDI specification."""
    imex_channels: tuple[int, ...] = ()
    """Those that are wanted and there."""
    control_nodes: tuple[str, ...] = ()
    """Nodes of the driver itself that this machine has."""
    host_dev_root: str = "/"
    """Under which folder of the host the nodes lie in dev/."""
    cdi_annotation_prefix: str = "cdi.k8s.io/"

    @property
    def uses_cdi(self) -> bool:
        return not _OF_CDI.isdisjoint(self.strategies)

    @property
    def uses_runtime(self) -> bool:
        """Whether NVIDIA's runtime is told."""
        return not _OF_CDI.issuperset(self.strategies)


class DeviceList(msgspec.Struct, frozen=True, kw_only=True):
    """What one container is told of its devices."""

    environment: dict[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    annotations: dict[str, str] = {}
    cdi_devices: tuple[str, ...] = ()


def device_list(devices: Sequence[VisibleDevice], rules: DeviceRules, new_id: str) -> DeviceList:
    """`new_id` is unique and may be part of an annotation's key."""
    by_uuid = {device.uuid: device for device in devices}
    ids = [device.uuid if rules.id_strategy == "uuid" else device.index for device in by_uuid.values()]
    cdi_names = _cdi_names(ids, rules) if rules.uses_cdi else ()
    annotations: dict[str, str] = {}
    if "cdi-annotations" in rules.strategies:
        annotations[f"{rules.cdi_annotation_prefix}{_ANNOTATION}{new_id}"] = ",".join(cdi_names)
    found = DeviceList(annotations=annotations, cdi_devices=cdi_names if "cdi-cri" in rules.strategies else ())
    return msgspec.structs.replace(found, **_for_runtime(by_uuid, ids, rules)) if rules.uses_runtime else found


def runtime_list(devices: Sequence[VisibleDevice], rules: DeviceRules) -> DeviceList:
    """The same for NVIDIA's runtime alone, whatever else is configured."""
    strategies: tuple[Strategy, ...] = tuple(one for one in rules.strategies if one not in _OF_CDI) or ("envvar",)
    return device_list(devices, msgspec.structs.replace(rules, strategies=strategies), "")


def _cdi_names(ids: Sequence[str], rules: DeviceRules) -> tuple[str, ...]:
    names = [f"{CARD_CLASS}={device}" for device in ids]
    names += [f"{IMEX_CLASS}={channel}" for channel in rules.imex_channels]
    names += [f"{feature}={EVERY_DEVICE}" for feature in rules.features if feature in rules.features_found]
    return tuple(f"{CDI_VENDOR}/{name}" for name in names)


def _for_runtime(devices: dict[str, VisibleDevice], ids: Sequence[str], rules: DeviceRules) -> dict[str, object]:
    environment = {_FEATURE_VARIABLES[feature]: _FEATURE_ENABLED for feature in rules.features}
    mounts: list[Mount] = []
    channels = [str(channel) for channel in rules.imex_channels]
    if "envvar" in rules.strategies:
        environment[env.VISIBLE_CARDS] = ",".join(ids)
        if channels:
            environment[_IMEX_VARIABLE] = ",".join(channels)
    if "volume-mounts" in rules.strategies:
        environment[env.VISIBLE_CARDS] = _MOUNTED_LIST
        names = [*ids, *(f"imex/{channel}" for channel in channels)]
        mounts = [
            Mount(container_path=f"{_MOUNTED_LIST}/{name}", host_path=_NOTHING, read_only=False) for name in names
        ]
    return {
        "environment": environment,
        "mounts": tuple(mounts),
        "nodes": _nodes(devices, rules) if rules.pass_nodes else (),
    }


def _nodes(devices: dict[str, VisibleDevice], rules: DeviceRules) -> tuple[DeviceNode, ...]:
    """Each once: instances of one card share its node."""
    paths = [*rules.control_nodes, *(path for device in devices.values() for path in device.nodes)]
    paths += [imex_node(channel) for channel in rules.imex_channels]
    root = rules.host_dev_root.rstrip("/")
    return tuple(DeviceNode(container_path=path, host_path=f"{root}{path}") for path in dict.fromkeys(paths))


def card_node(minor: int) -> str:
    return f"/dev/nvidia{minor}"


def capability_node(minor: int) -> str:
    """Through which a MIG instance is opened."""
    return f"/dev/nvidia-caps/nvidia-cap{minor}"


def imex_node(channel: int) -> str:
    return f"/dev/nvidia-caps-imex-channels/channel{channel}"


def control_nodes(present: frozenset[str]) -> tuple[str, ...]:
    """Of the driver itself, those that are there."""
    return tuple(path for path in _CONTROL_NODES if path in present)
