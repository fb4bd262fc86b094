"""HAMi's device configuration file (YAML), as far as we use it.

Read tolerantly, as operators bring it from HAMi: an unknown key is a warning, a value of the wrong type an error that
names its path. Several families stand side by side, each in its own section.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Literal

import msgspec
import yaml

from hami_model.errors import HamiError
from hami_model.templates import CutSizes, Template, cut_sizes
from hami_model.vendors import Family, ResourceNames, VendorDescriptor, catalogue

_INT32_MAX: Final = 2**31 - 1
"""Nodes and pods carry these numbers, or what comes of them, as 32-bit integers."""

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


class _Template(msgspec.Struct, frozen=True, kw_only=True):
    """A size in which a card can be cut. What else stands there is for the node's plugin."""

    name: str
    memory: int


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
    memory_allocatable: int = 0
    memory_capacity: int = 0
    templates: list[_Template] = []
    super_pod: bool = False
    soft_split: bool = False


class _Notes(msgspec.Struct):
    """What is said about a file while it is read."""

    faults: list[str] = []
    warnings: list[str] = []


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
    cut_sizes: CutSizes | None = None
    """Sizes in which hardware cuts the cards; None: any amount of memory can be had."""
    count_multiple: int = 1
    """Cards are given in multiples of this: those of one module belong together."""
    soft_split_everywhere: bool = False
    """Every node shares its cards by software, unless its annotation says otherwise."""


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


def default_config(enabled: Collection[str] = (), families: Iterable[Family] | None = None) -> DeviceConfig:
    """Every family with its defaults: what a cluster has that configures nothing.

    Optional families are among them where `enabled` names them. Raises DeviceConfigError where it names another.
    """
    known = _known(families, enabled)
    vendors: list[VendorSettings] = []
    notes = _Notes()
    for family in known:
        if family.optional and family.name not in enabled:
            continue
        if family.config.entries_key:
            vendors.extend(_entries(family, {family.config.entries_key: _with_names(family)}, notes))
        else:
            vendors.append(_plain_settings(family.descriptor(family.words[0])))
    if notes.faults:
        raise DeviceConfigError(notes.faults)
    return DeviceConfig(vendors=tuple(vendors))


def parse(text: str, enabled: Collection[str] = (), families: Iterable[Family] | None = None) -> DeviceConfig:
    """Reads a configuration file. Raises DeviceConfigError with all faults.

    Sections of optional families count where `enabled` names them.
    """
    known = {family.config.section: family for family in _known(families, enabled)}
    try:
        document = yaml.safe_load(text)
    except RecursionError as error:
        raise DeviceConfigError(["not YAML that can be read: it is nested too deeply"]) from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a time or number that there is not
        raise DeviceConfigError([f"not YAML: {error}"]) from error
    if not isinstance(document, Mapping):
        raise DeviceConfigError(["the file must hold a mapping of sections"])
    notes = _Notes()
    faults, warnings = notes.faults, notes.warnings
    vendors: list[VendorSettings] = []
    for name, raw in document.items():
        family = known.get(name)
        if family is None:
            warnings.append(f"{name}: unknown section is ignored")
        elif family.optional and family.name not in enabled:
            warnings.append(f"{name}: the family {family.name} is not enabled, so its section is ignored")
        elif not isinstance(raw, Mapping):
            faults.append(f"{name}: must be a mapping")
        else:
            vendors.extend(_entries(family, raw, notes))
    words = [settings.vendor.word for settings in vendors]
    faults.extend(f"{word} is configured twice" for word in sorted({word for word in words if words.count(word) > 1}))
    if not vendors and not faults:
        faults.append("no section of a known accelerator family: nothing could be scheduled")
    if faults:
        raise DeviceConfigError(faults)
    return DeviceConfig(vendors=tuple(vendors), warnings=tuple(warnings))


def _known(families: Iterable[Family] | None, enabled: Collection[str]) -> tuple[Family, ...]:
    known = catalogue() if families is None else tuple(families)
    names = {family.name for family in known if family.optional}
    unknown = sorted(set(enabled) - names)
    if unknown:
        raise DeviceConfigError(
            [f"{name}: no optional accelerator family; there are: {', '.join(sorted(names))}" for name in unknown]
        )
    return known


def _plain_settings(descriptor: VendorDescriptor) -> VendorSettings:
    return VendorSettings(
        vendor=descriptor,
        resources=descriptor.resources,
        default_cores_percent=descriptor.request.cores_percent,
        default_count=1 if descriptor.request.share_brings_count else 0,
    )


def _with_names(family: Family) -> list[dict[str, Any]]:
    """The default entries with the resource names that the descriptor gives, as the file would write them."""
    written = {name: key for key, name in family.config.renamed.items()}
    entries = []
    for entry in family.defaults:
        names = family.descriptor(entry[family.config.word_key]).resources
        keys = {"resourceCountName": names.count, "resourceMemoryName": names.memory, "resourceCoreName": names.cores}
        entries.append({**{written.get(key, key): value for key, value in keys.items()}, **entry})
    return entries


def _entries(family: Family, raw: Mapping[Any, Any], notes: _Notes) -> Iterable[VendorSettings]:
    """The settings of each word of a family that its section speaks of."""
    rules = family.config
    if not rules.entries_key:
        found = _settings(family, family.descriptor(family.words[0]), rules.section, raw, notes)
        return [] if found is None else [found]
    shared = {name: raw[key] for key, name in rules.shared_keys.items() if key in raw}
    notes.warnings.extend(
        f"{rules.section}.{key}: unknown key is ignored"
        for key in raw
        if key != rules.entries_key and key not in rules.shared_keys
    )
    listed = raw.get(rules.entries_key) or []
    if not isinstance(listed, list):
        notes.faults.append(f"{rules.section}.{rules.entries_key}: must be a list")
        return []
    settings: list[VendorSettings] = []
    for position, entry in enumerate(listed):
        path = f"{rules.section}.{rules.entries_key}[{position}]"
        word = entry.get(rules.word_key) if isinstance(entry, Mapping) else None
        if not isinstance(word, str) or not word:
            notes.faults.append(f"{path}.{rules.word_key}: must name the chip")
            continue
        named = {key: value for key, value in entry.items() if key != rules.word_key}
        found = _settings(family, family.descriptor(word), path, {**named, **shared}, notes)
        settings.extend([] if found is None else [found])
    return settings


def _settings(
    family: Family,
    descriptor: VendorDescriptor,
    path: str,
    raw: Mapping[Any, Any],
    notes: _Notes,
) -> VendorSettings | None:
    rules, faults = family.config, notes.faults
    named = {rules.renamed.get(key, key): value for key, value in raw.items()}
    counted = {*rules.keys, *rules.shared_keys.values()}
    known = {*counted, *rules.node_side_keys}
    notes.warnings.extend(f"{path}.{key}: unknown key is ignored" for key in named if key not in known)
    try:
        section = msgspec.convert({key: value for key, value in named.items() if key in counted}, _Section)
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
        ("memoryAllocatable", section.memory_allocatable),
        ("memoryCapacity", section.memory_capacity),
    ):
        if value < 0:
            faults.append(f"{path}.{key}: {value}; must not be negative")
        elif not value <= _INT32_MAX:  # also refuses what is no number
            faults.append(f"{path}.{key}: {value}; must be {_INT32_MAX} at most")
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
        default_cores_percent=(
            section.default_cores if "defaultCores" in rules.keys else descriptor.request.cores_percent
        ),
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
        cut_sizes=(
            cut_sizes(
                [Template(name=found.name, memory_mib=found.memory) for found in section.templates],
                whole_card_mib=section.memory_allocatable,
                capacity_mib=section.memory_capacity,
            )
            if "templates" in rules.keys
            else None
        ),
        count_multiple=2 if section.super_pod else 1,
        soft_split_everywhere=section.soft_split,
    )
