"""HAMi's device configuration file (YAML), as far as we use it.

Read tolerantly, as operators bring it from HAMi: an unknown key is a warning, a value of the wrong type an error that
names its path. Several families stand side by side, each in its own section.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import yaml

from hami_model.errors import HamiError
from hami_model.vendors import ResourceNames, VendorDescriptor, catalogue

CorePolicy = Literal["", "default", "force", "disable"]


class DeviceConfigError(HamiError):
    """The device configuration cannot be used. `faults` lists every one with its path."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("device configuration: " + "; ".join(faults))
        self.faults = faults


class MigAllowance(msgspec.Struct, frozen=True, kw_only=True):
    """Which MIG profiles may be made on which models (substring match)."""

    models: list[str] = []
    profiles: list[str] = []


class _Section(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One section as written; an omitted key is its zero value, as HAMi reads it."""

    resource_count_name: str = ""
    resource_memory_name: str = ""
    resource_memory_percentage_name: str = ""
    resource_core_name: str = ""
    resource_priority_name: str = ""
    overwrite_env: bool = False
    default_memory: int = 0
    default_cores: int = 0
    default_gpu_num: int = msgspec.field(default=0, name="defaultGPUNum")
    memory_factor: int = 1
    device_split_count: int | None = None
    device_memory_scaling: float | None = None
    device_core_scaling: float | None = None
    pre_configured_device_memory: int = 0
    enable_numa_topology: bool = False
    lib_cuda_log_level: str | int | None = None
    disable_core_limit: bool = False
    gpu_core_policy: str = ""
    runtime_class_name: str = ""
    mig_profile_allowlist: list[MigAllowance] = []


class VendorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How one family is configured on this cluster."""

    vendor: VendorDescriptor
    resources: ResourceNames
    overwrite_env: bool = False
    default_memory_mib: int = 0
    """Memory of a request that names none; 0 means the whole card."""
    default_cores_percent: int = 0
    default_count: int = 1
    """Cards of a container that asks only for memory or cores; 0 leaves such a container alone."""
    memory_factor: int = 1
    """MiB in one unit of the memory resource; never below 1."""
    split_count: int = 10
    """Slots of one card."""
    memory_scaling: float = 1.0
    core_scaling: float = 1.0
    preconfigured_memory_mib: int = 0
    numa_topology: bool = False
    library_log_level: str = "1"
    disable_core_limit: bool = False
    core_policy: CorePolicy = "default"
    runtime_class: str = ""
    mig_allowances: tuple[MigAllowance, ...] = ()


class DeviceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All configured families, and what the reader wants said about the file."""

    vendors: tuple[VendorSettings, ...]
    warnings: tuple[str, ...] = ()

    def vendor(self, word: str) -> VendorSettings | None:
        return next((settings for settings in self.vendors if settings.vendor.word == word), None)

    @property
    def managed_resources(self) -> frozenset[str]:
        """Every resource name that makes a pod ours."""
        return frozenset(name for settings in self.vendors for name in settings.resources.all)


def default_config() -> DeviceConfig:
    """Every family of the catalogue with its defaults: what a cluster has that configures nothing."""
    return DeviceConfig(
        vendors=tuple(VendorSettings(vendor=found, resources=found.resources) for found in catalogue().values())
    )


def parse(text: str) -> DeviceConfig:
    """Reads a configuration file. Raises DeviceConfigError with all faults."""
    try:
        document = yaml.safe_load(text)
    except RecursionError as error:
        raise DeviceConfigError(["not YAML that can be read: it is nested too deeply"]) from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a time or number that there is not
        raise DeviceConfigError([f"not YAML: {error}"]) from error
    if not isinstance(document, Mapping):
        raise DeviceConfigError(["the file must hold a mapping of sections"])
    faults: list[str] = []
    warnings: list[str] = []
    vendors: list[VendorSettings] = []
    sections = {found.config_section: found for found in catalogue().values()}
    for name, raw in document.items():
        descriptor = sections.get(name)
        if descriptor is None:
            warnings.append(f"{name}: unknown section is ignored")
        elif not isinstance(raw, Mapping):
            faults.append(f"{name}: must be a mapping")
        else:
            settings = _settings(descriptor, str(name), raw, faults, warnings)
            if settings is not None:
                vendors.append(settings)
    if not vendors and not faults:
        faults.append("no section of a known accelerator family: nothing could be scheduled")
    if faults:
        raise DeviceConfigError(faults)
    return DeviceConfig(vendors=tuple(vendors), warnings=tuple(warnings))


def _settings(
    descriptor: VendorDescriptor, path: str, raw: Mapping[Any, Any], faults: list[str], warnings: list[str]
) -> VendorSettings | None:
    known = {field.encode_name for field in msgspec.structs.fields(_Section)}
    warnings.extend(f"{path}.{key}: unknown key is ignored" for key in raw if key not in known)
    try:
        section = msgspec.convert({key: value for key, value in raw.items() if key in known}, _Section)
    except msgspec.ValidationError as error:
        faults.append(f"{path}: {error}")
        return None
    before = len(faults)
    if section.gpu_core_policy not in ("", "default", "force", "disable"):
        faults.append(f"{path}.gpuCorePolicy: {section.gpu_core_policy!r}; use default, force or disable")
    if section.default_cores not in range(101):
        faults.append(f"{path}.defaultCores: {section.default_cores}; use 0 to 100")
    for key, value in (
        ("defaultMemory", section.default_memory),
        ("defaultGPUNum", section.default_gpu_num),
        ("preConfiguredDeviceMemory", section.pre_configured_device_memory),
        ("deviceSplitCount", section.device_split_count or 0),
        ("deviceMemoryScaling", section.device_memory_scaling or 0),
        ("deviceCoreScaling", section.device_core_scaling or 0),
    ):
        if value < 0:
            faults.append(f"{path}.{key}: {value}; must not be negative")
    if len(faults) > before:
        return None
    return VendorSettings(
        vendor=descriptor,
        resources=ResourceNames(
            count=section.resource_count_name,
            memory=section.resource_memory_name,
            memory_percentage=section.resource_memory_percentage_name,
            cores=section.resource_core_name,
            priority=section.resource_priority_name,
        ),
        overwrite_env=section.overwrite_env,
        default_memory_mib=section.default_memory,
        default_cores_percent=section.default_cores,
        default_count=section.default_gpu_num,
        memory_factor=max(section.memory_factor, 1),
        split_count=10 if section.device_split_count is None else section.device_split_count,
        memory_scaling=1.0 if section.device_memory_scaling is None else section.device_memory_scaling,
        core_scaling=1.0 if section.device_core_scaling is None else section.device_core_scaling,
        preconfigured_memory_mib=section.pre_configured_device_memory,
        numa_topology=section.enable_numa_topology,
        library_log_level="" if section.lib_cuda_log_level is None else str(section.lib_cuda_log_level),
        disable_core_limit=section.disable_core_limit,
        core_policy=section.gpu_core_policy or "default",  # type: ignore[arg-type]  # checked above
        runtime_class=section.runtime_class_name,
        mig_allowances=tuple(section.mig_profile_allowlist),
    )
