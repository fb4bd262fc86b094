"""Cards, and how containers are shown them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

from hami_chassis.errors import Permanent

from hami_node_agent.adapters.card_health import Cards
from hami_node_agent.adapters.driver_files import CardSpecs, FoldersBelow, find_driver_files
from hami_node_agent.adapters.machine_files import device_rules, driver_root, find_devices, host_roots
from hami_node_agent.adapters.nvml_library import find_library
from hami_node_agent.adapters.static_mig import StaticMigNvml
from hami_node_agent.config import NodeAgentSettings
from hami_node_agent.core.device_lists import DeviceRules
from hami_node_agent.core.driver_spec import HostRoots
from hami_node_agent.core.health import HealthBook, HealthPolicy, health_policy
from hami_node_agent.core.machine_devices import MachineDevices
from hami_node_agent.core.node_options import MIG, NodeOptions
from hami_node_agent.parts.basis import Basis
from hami_node_agent.parts.cluster import Cluster


class Machine(NamedTuple):
    """Cards, and how containers are shown them."""

    nvml: StaticMigNvml
    health: HealthPolicy
    cards: Cards
    rules: DeviceRules
    devices: MachineDevices
    roots: HostRoots
    card_specs: CardSpecs | None


def nvml_of(settings: NodeAgentSettings, options: NodeOptions) -> StaticMigNvml:
    """The driver's library, not started."""
    return StaticMigNvml(
        lambda: find_library(settings.nvml.library_file, driver_root(settings.nvml)),
        with_mig=options.operating_mode == MIG,
        answer_seconds=settings.health.answer_seconds,
        strategy=settings.devices.mig_strategy,
        options=options,
    )


def machine_of(basis: Basis, nvml: StaticMigNvml, cluster: Cluster) -> Machine:
    settings = basis.settings
    health = health_policy(
        watches_events=settings.health.watch_xids,
        ignores_nothing=settings.health.ignore_no_xid,
        ignored=settings.health.ignored_xids,
        watched=settings.health.watched_xids,
        clean_probes=settings.health.clean_probes,
    )
    cards = Cards(
        nvml,
        basis.options,
        HealthBook(health),
        # MIG devices have no links.
        with_topology=settings.node.topology_scores and settings.devices.mig_strategy != "single",
        may_switch_mig_on=settings.node.switch_mig_on,
        probe_seconds=settings.health.probe_seconds,
        node_events=cluster.node_events,
        metrics=basis.metrics,
        clock=basis.clock,
    )
    root = driver_root(settings.nvml)
    devices = find_devices(root)
    rules = device_rules(settings.devices, settings.nvml, devices)
    roots = host_roots(settings.devices, settings.nvml)
    if rules.uses_cdi and basis.is_mig and settings.handoff.mode != "late-binding":
        raise Permanent(
            "operatingmode mig makes MIG devices that no specification of whole cards can name: with a cdi strategy in "
            f"devices.list_strategies handoff.mode must be late-binding, not {settings.handoff.mode}"
        )
    card_specs: CardSpecs | None = None
    if rules.uses_cdi:
        find = functools.partial(find_driver_files, FoldersBelow(root), root)
        card_specs = CardSpecs(Path(settings.files.cdi_dir), rules, devices, find, roots=roots, more=nvml.instances)
        cards.on_change.append(card_specs.changed)
    return Machine(nvml, health, cards, rules, devices, roots, card_specs)
