"""Reads everything that configures a node: our settings, HAMi's names, and the files that the settings name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from hami_chassis.errors import Permanent
from hami_chassis.log import get_logger
from hami_chassis.settings import Fault, SettingsError, load_settings
from hami_model import device_config, vendors
from hami_model.device_config import VendorSettings

from hami_node_agent.config import EnforcementSettings, NodeAgentSettings
from hami_node_agent.core import backends, hami_names, nvidia_config
from hami_node_agent.core.node_options import NodeOptions, node_options
from hami_node_agent.core.nvidia_config import NvidiaConfig

log = get_logger("configuration")

_RESOURCE: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?", re.ASCII)


def settings_of(config: Path | None, sets: Iterable[str], given: hami_names.Found) -> NodeAgentSettings:
    """Later ones win: NVIDIA's flags in the device configuration, HAMi's names, then ours. Raises SettingsError,
    Permanent or NvidiaConfigError.
    """
    if given.faults:
        raise SettingsError([Fault("", source, problem) for source, problem in given.faults])
    found = load_settings(NodeAgentSettings, file=config, others=given.values, sets=sets)
    nvidia = nvidia_plugin_config(found)
    if not nvidia.values:
        return found
    return load_settings(NodeAgentSettings, file=config, others=[*nvidia.values, *given.values], sets=sets)


def nvidia_plugin_config(settings: NodeAgentSettings) -> NvidiaConfig:
    """What the device configuration says to NVIDIA's device plugin. Raises Permanent or NvidiaConfigError."""
    name = settings.node.device_config_file
    return nvidia_config.parse(text_of("node.device_config_file", name)) if name else NvidiaConfig()


def nvidia_settings(settings: NodeAgentSettings) -> VendorSettings:
    """Raises Permanent or DeviceConfigError."""
    name = settings.node.device_config_file
    text = text_of("node.device_config_file", name) if name else ""
    found = device_config.parse(text) if name else device_config.default_config()
    for warning in found.warnings:
        if warning.partition(":")[0] not in nvidia_config.KEYS:
            log.warning("device-configuration", problem=warning)
    nvidia = found.vendor(vendors.NVIDIA)
    if nvidia is None:
        raise Permanent(f"node.device_config_file {name}: has no section nvidia, and this agent serves no other cards")
    if not _RESOURCE.fullmatch(nvidia.resources.count):
        raise Permanent(
            f"node.device_config_file {name}: nvidia.resourceCountName {nvidia.resources.count!r} is no name of a "
            "resource that kubelet can offer; write one such as nvidia.com/gpu"
        )
    return nvidia


def options_of(settings: NodeAgentSettings, nvidia: VendorSettings) -> NodeOptions:
    """Raises Permanent or NodeOptionsError."""
    name = settings.node.overrides_file
    text = text_of("node.overrides_file", name) if name else None
    return node_options(nvidia, text, settings.node.name)


def text_of(setting: str, name: str) -> str:
    """Raises Permanent."""
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Permanent(f"{setting} {name}: {error}") from error


def enforcement_of(
    settings: EnforcementSettings, nvidia: VendorSettings, options: NodeOptions
) -> backends.EnforcementPolicy:
    """What the operator wants held, and by what."""
    return backends.EnforcementPolicy(
        cards=settings.cards,
        by_card=settings.by_card,
        may_opt_out=settings.opt_out == "allowed",
        compute=backends.compute_policy(
            nvidia.core_policy,
            disabled=options.disable_core_limit,
            contended_only=settings.compute == "contended",
        ),
        context_bytes=settings.context_mib << 20,
    )
