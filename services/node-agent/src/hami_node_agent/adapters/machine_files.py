"""Looks for device nodes where the driver's are."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hami_node_agent.config import DeviceSettings, NvmlSettings
from hami_node_agent.core.device_lists import DeviceRules, Feature
from hami_node_agent.core.machine_devices import MachineDevices, with_machine

_FOLDERS: Final = ("dev", "dev/infiniband", "dev/nvidia-caps", "dev/nvidia-caps-imex-channels")
_OWN_ROOT: Final = Path("/")


def dev_root(driver_root: str) -> Path:
    """Under which folder of this container device nodes lie in dev/."""
    root = Path(driver_root or "/")
    return root if (root / "dev").is_dir() else _OWN_ROOT


def find_devices(driver_root: str) -> MachineDevices:
    """What lies under the driver's root, and IMEX channels also where they usually are."""
    root = dev_root(driver_root)
    found = set(_character_devices(root, _FOLDERS))
    found |= set(_character_devices(_OWN_ROOT, ("dev/nvidia-caps-imex-channels",)))
    return MachineDevices(nodes=frozenset(found))


def device_rules(asked: DeviceSettings, nvml: NvmlSettings, machine: MachineDevices) -> DeviceRules:
    """Raises ImexChannelMissingError."""
    features: dict[Feature, bool] = {"gdrcopy": asked.gdrcopy, "gds": asked.gds, "mofed": asked.mofed}
    rules = DeviceRules(
        strategies=asked.list_strategies,
        id_strategy=asked.id_strategy,
        pass_nodes=asked.pass_nodes,
        features=tuple(feature for feature, wanted in features.items() if wanted),
        host_dev_root=nvml.host_dev_root or nvml.host_driver_root,
        cdi_annotation_prefix=asked.cdi_annotation_prefix,
    )
    return with_machine(rules, machine, asked.imex_channels, imex_required=asked.imex_required)


def _character_devices(root: Path, folders: tuple[str, ...]) -> Iterator[str]:
    for folder in folders:
        try:
            entries = list((root / folder).iterdir())
        except OSError:
            continue
        for entry in entries:
            try:
                if stat.S_ISCHR(entry.stat().st_mode):
                    yield f"/{entry.relative_to(root)}"
            except OSError:
                continue
