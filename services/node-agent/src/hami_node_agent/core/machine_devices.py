"""Which devices beside the cards this machine has, of those that were asked for, and where the host has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from hami_model.errors import HamiError

from hami_node_agent.core.device_lists import DeviceRules, Feature, control_nodes, imex_node

FEATURE_NODES: Final[dict[Feature, tuple[str, ...]]] = {
    "gdrcopy": ("/dev/gdrdrv",),
    "gds": ("/dev/nvidia-fs",),
    "mofed": ("/dev/infiniband/uverbs", "/dev/infiniband/rdma_cm"),
}
"""What the names of a feature's device nodes begin with."""
FEATURE_FILES: Final[dict[Feature, tuple[str, ...]]] = {
    "gdrcopy": (),
    "gds": ("/etc/cufile.json", "/run/udev"),
    "mofed": (),
}
"""What containers need besides."""
IMEX_CHANNELS: Final = (0,)
"""Channels that containers may share; others belong to one workload each."""


class ImexChannelMissingError(HamiError):
    """A channel that must be there is not."""


class MachineDevices(msgspec.Struct, frozen=True, kw_only=True):
    """What was found at the start."""

    nodes: frozenset[str] = frozenset()
    """Character devices, as paths that begin with /dev/."""
    files: frozenset[str] = frozenset()
    """Those of FEATURE_FILES that lie below the driver's root."""

    def of_feature(self, feature: Feature) -> tuple[str, ...]:
        """Its nodes that are there."""
        return tuple(sorted(node for node in self.nodes if node.startswith(FEATURE_NODES[feature])))

    def imex_channels(self, wanted: Iterable[int], *, required: bool) -> tuple[int, ...]:
        """Those of `wanted` that are there. Raises ImexChannelMissingError."""
        asked = tuple(dict.fromkeys(wanted))
        found = tuple(channel for channel in asked if imex_node(channel) in self.nodes)
        missing = [imex_node(channel) for channel in asked if channel not in found]
        if missing and required:
            raise ImexChannelMissingError(
                f"devices.imex_channels: {', '.join(missing)} is not there; create it with nvidia-modprobe -c, or set "
                "devices.imex_required=false"
            )
        return found


def with_machine(
    rules: DeviceRules, machine: MachineDevices, imex_wanted: Iterable[int], *, imex_required: bool
) -> DeviceRules:
    """The rules as configured, with what this machine has. Raises ImexChannelMissingError."""
    return msgspec.structs.replace(
        rules,
        features_found=frozenset(feature for feature in rules.features if machine.of_feature(feature)),
        imex_channels=machine.imex_channels(imex_wanted, required=imex_required),
        control_nodes=control_nodes(machine.nodes),
    )
