"""Both hand-offs, and what follows their pods."""

from __future__ import annotations

import uuid
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from hami_node_agent.adapters.collection import Collection
from hami_node_agent.adapters.enforcing import Enforcing
from hami_node_agent.adapters.handover_files import HandoverFolders
from hami_node_agent.adapters.kubelet_files import KubeletCheckpointFile
from hami_node_agent.adapters.late_binding import LateBinding
from hami_node_agent.adapters.lock_api import KubeLockApi
from hami_node_agent.adapters.lock_handoff import LockHandoff
from hami_node_agent.adapters.mig_instances import MigInstances
from hami_node_agent.adapters.nvml_mig_driver import NvmlMigDriver
from hami_node_agent.adapters.outcomes import HandoverOutcomes
from hami_node_agent.adapters.page_refresh import PageRefresh
from hami_node_agent.adapters.pod_resources import PodResources
from hami_node_agent.adapters.showing import Showing
from hami_node_agent.core.driver_spec import beside_cards
from hami_node_agent.core.grant import LimitPolicy
from hami_node_agent.core.inventory import mig_devices
from hami_node_agent.core.static_mig import StaticDevices
from hami_node_agent.parts.basis import Basis
from hami_node_agent.parts.cluster import Cluster
from hami_node_agent.parts.host import Host
from hami_node_agent.parts.machine import Machine


class Handovers(NamedTuple):
    late_binding: LateBinding
    lock: LockHandoff
    checkpoint: KubeletCheckpointFile
    collection: Collection
    page_refresh: PageRefresh


def handovers_of(basis: Basis, host: Host, cluster: Cluster, machine: Machine, stack: AsyncExitStack) -> Handovers:
    settings, nvidia, options = basis.settings, basis.nvidia, basis.options
    pods, cards, rules = cluster.pods, machine.cards, machine.rules
    checkpoint = KubeletCheckpointFile(Path(settings.kubelet.plugins_dir))
    ownership: PodResources | None = None
    if settings.kubelet.pod_resources_socket:
        ownership = PodResources(Path(settings.kubelet.pod_resources_socket))
        stack.push_async_callback(ownership.close)
    outcomes = HandoverOutcomes(
        nvidia, cluster.origin, writer=cluster.patches, sink=cluster.bus, recorder=cluster.recorder, clock=basis.clock
    )
    limits = LimitPolicy(
        oversubscribed=options.memory_scaling > 1,
        library_log_level=options.library_log_level,
        disable_core_limit=options.disable_core_limit,
    )
    enforcing = Enforcing(basis.enforcement, host.layout, limits, nvidia, inventory=cards, outcomes=outcomes)
    files = HandoverFolders(host.folder, host.cdi, host.own)
    mig_driver = NvmlMigDriver(machine.nvml) if basis.is_mig else None
    mig = None if mig_driver is None else MigInstances(mig_driver, host.book, ledger=pods, is_hidden=cards.is_hidden)
    showing = Showing(
        settings.handoff.shown_by if rules.uses_runtime else "cdi",
        frozenset(settings.handoff.runtime_classes),
        rules,
        beside_cards(rules, machine.devices, machine.roots),
        inventory=cards,
        mig_driver=mig_driver,
    )
    late_binding = LateBinding(
        settings.node.name,
        nvidia,
        host.book,
        ledger=pods,
        checkpoint=checkpoint,
        ownership=ownership,
        files=files,
        own=host.own,
        inventory=cards,
        outcomes=outcomes,
        metrics=basis.metrics,
        new_region_name=_new_region_name,
        enforcing=enforcing,
        showing=showing,
        mig=mig,
    )
    lock = LockHandoff(
        settings.node.name,
        rules,
        nvidia,
        host.book,
        api=KubeLockApi(cluster.client, settings.node.name),
        files=files,
        own=host.own,
        inventory=cards,
        outcomes=outcomes,
        metrics=basis.metrics,
        clock=basis.clock,
        new_region_name=_new_region_name,
        enforcing=enforcing,
        pre_start=late_binding,
        static=StaticDevices(
            devices=lambda: {device.uuid: device for device in mig_devices(cards.inventory)},
            one_at_most=basis.plugin_config.one_at_most,
        ),
        checkpoint=checkpoint,
        mig=mig,
    )
    collection = Collection(
        host.book,
        ledger=pods,
        cdi=host.cdi,
        files=host.folder,
        own=host.own,
        checkpoint=checkpoint,
        forget=late_binding.forget,
        pods_synced=pods.informer.synced,
        clock=basis.clock,
        release_mig=None if mig is None else lambda uid: mig.release(uid, late_binding.save),
    )
    page_refresh = PageRefresh(late_binding.refresh, basis.clock)
    subscriber = cluster.subscriber
    subscriber.on_added += [late_binding.news.announce_again, page_refresh.pod_added]
    subscriber.on_seen += [cluster.release.pod_seen, collection.pod_seen]
    subscriber.on_gone += [late_binding.pod_gone, page_refresh.pod_gone, collection.pod_gone]
    return Handovers(late_binding, lock, checkpoint, collection, page_refresh)


def _new_region_name() -> str:
    return f"{uuid.uuid4()}.cache"
