"""Looks for device nodes where the driver's are."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hami_node_agent.config import DeviceSettings, NvmlSettings
from hami_node_agent.core.device_lists import DeviceRules, Feature
from hami_node_agent.core.driver_spec import HostRoots
from hami_node_agent.core.machine_devices import FEATURE_FILES, MachineDevices, with_machine

USUAL_DRIVER_ROOT: Final = "/driver-root"
"""Where HAMi's chart mounts the driver."""
_FOLDERS: Final = ("dev", "dev/infiniband", "dev/nvidia-caps", "dev/nvidia-caps-imex-channels")
_OWN_ROOT: Final = Path("/")


def driver_root(nvml: NvmlSettings) -> str:
    """Where the host's driver lies in this container."""
    return nvml.driver_root or (USUAL_DRIVER_ROOT if Path(USUAL_DRIVER_ROOT).is_dir() else "/")


def dev_root(driver_root: str) -> Path:
    """Under which folder of this container device nodes lie in dev/."""
    root = Path(driver_root)
    return root if (root / "dev").is_dir() else _OWN_ROOT


def find_devices(driver_root: str) -> MachineDevices:
    """What lies under the driver's root, and IMEX channels also where they usually are."""
    root = dev_root(driver_root)
    found = set(_character_devices(root, _FOLDERS))
    found |= set(_character_devices(_OWN_ROOT, ("dev/nvidia-caps-imex-channels",)))
    wanted = [path for paths in FEATURE_FILES.values() for path in paths]
    files = [path for path in wanted if (Path(driver_root) / path.removeprefix("/")).exists()]
    return MachineDevices(nodes=frozenset(found), files=frozenset(files))


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


def host_roots(asked: DeviceSettings, nvml: NvmlSettings) -> HostRoots:
    return HostRoots(
        driver=nvml.host_driver_root,
        devices=nvml.host_dev_root or nvml.host_driver_root,
        hook_file=asked.cdi_hook_file,
    )


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
