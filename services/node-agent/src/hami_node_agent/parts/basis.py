"""What the operator wants, and what every part counts and tells the time by."""

from __future__ import annotations

from typing import NamedTuple

from hami_chassis.clock import SystemClock
from hami_chassis.errors import Permanent
from hami_chassis.log import get_logger
from hami_chassis.metrics import ChassisMetrics
from hami_model.device_config import VendorSettings
from prometheus_client import CollectorRegistry

from hami_node_agent.adapters.configuration import enforcement_of, nvidia_plugin_config, nvidia_settings, options_of
from hami_node_agent.config import NodeAgentSettings
from hami_node_agent.core.backends import EnforcementPolicy
from hami_node_agent.core.node_options import MIG, NodeOptions
from hami_node_agent.core.nvidia_config import NvidiaConfig
from hami_node_agent.metrics import NodeAgentMetrics

log = get_logger("parts")


class Basis(NamedTuple):
    """What the operator wants, and what every part counts and tells the time by."""

    settings: NodeAgentSettings
    nvidia: VendorSettings
    options: NodeOptions
    plugin_config: NvidiaConfig
    enforcement: EnforcementPolicy
    registry: CollectorRegistry
    chassis_metrics: ChassisMetrics
    metrics: NodeAgentMetrics
    clock: SystemClock

    @property
    def is_mig(self) -> bool:
        return self.options.operating_mode == MIG


def basis_of(settings: NodeAgentSettings) -> Basis:
    nvidia = nvidia_settings(settings)
    options = options_of(settings, nvidia)
    for warning in options.warnings:
        log.warning("per-node-configuration", problem=warning)
    plugin_config = nvidia_plugin_config(settings)
    for note in plugin_config.notes:
        log.warning("setting-without-effect", problem=note)
    strategy = settings.devices.mig_strategy
    if options.operating_mode == MIG and strategy != "none":
        raise Permanent(f"operatingmode mig makes MIG devices itself; set devices.mig_strategy to none, not {strategy}")
    registry = CollectorRegistry()
    return Basis(
        settings,
        nvidia,
        options,
        plugin_config,
        enforcement_of(settings.enforcement, nvidia, options),
        registry,
        ChassisMetrics(registry),
        NodeAgentMetrics(registry),
        SystemClock(),
    )
