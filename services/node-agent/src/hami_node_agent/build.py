"""The service's objects, from what is outside inwards, and its root tasks. Decides nothing."""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from hami_chassis.http import HttpServer, add_observation_routes, new_app
from hami_chassis.log import get_logger
from hami_chassis.run import RootTask, Stage

from hami_node_agent.adapters.configuration import options_of
from hami_node_agent.adapters.device_plugin import DevicePlugin, KubeletRegistration, socket_name
from hami_node_agent.adapters.handoff_start import HandoffStart, Offers
from hami_node_agent.adapters.nvidia_remains import NvidiaRemains
from hami_node_agent.adapters.nvml_library import DriverError
from hami_node_agent.adapters.overrides_watch import OverridesWatch
from hami_node_agent.adapters.placeholder_handoff import LateBindingHandoff
from hami_node_agent.adapters.static_mig import MixedResources, StaticMigHandoff
from hami_node_agent.config import NodeAgentSettings
from hami_node_agent.core import backends
from hami_node_agent.core.health import HealthBook
from hami_node_agent.core.nvidia_remains import Ours
from hami_node_agent.parts.basis import Basis, basis_of
from hami_node_agent.parts.cluster import Cluster, cluster_of
from hami_node_agent.parts.handovers import Handovers, handovers_of
from hami_node_agent.parts.host import host_of
from hami_node_agent.parts.machine import Machine, machine_of, nvml_of

IDLE_REMEDY = "start the node-agent anew once the driver is there"

log = get_logger("build")


async def build(settings: NodeAgentSettings, stack: AsyncExitStack) -> Sequence[RootTask]:
    """All objects of the service, and its root tasks."""
    basis = basis_of(settings)
    host = await host_of(basis, stack)
    nvml = nvml_of(settings, basis.options)
    try:
        await nvml.start()
    except DriverError as error:
        if settings.nvml.required:
            raise
        log.warning("idle-without-driver", reason=str(error), remedy=IDLE_REMEDY)
        return _idle(basis)
    stack.push_async_callback(nvml.close)
    backends.refuse_unavailable(basis.enforcement, await nvml.driver_version())
    for backend in backends.BACKENDS:
        count = functools.partial(backends.count_slices, host.book, backend)
        basis.metrics.slices.labels(backend).set_function(count)
    cluster = await cluster_of(basis, host.book, stack)
    machine = machine_of(basis, nvml, cluster)
    handovers = handovers_of(basis, host, cluster, machine, stack)
    return await _root_tasks(basis, cluster, machine, handovers)


async def _root_tasks(basis: Basis, cluster: Cluster, machine: Machine, handovers: Handovers) -> Sequence[RootTask]:
    """What faces kubelet, which is served last and ends first; and all that runs."""
    settings, nvidia, clock = basis.settings, basis.nvidia, basis.clock
    nvml, cards, node_name = machine.nvml, machine.cards, settings.node.name
    plugins_dir = Path(settings.kubelet.plugins_dir)
    plugin = DevicePlugin(metrics=basis.metrics, clock=clock)
    offers = Offers(cluster.registration, plugin, basis.options)
    cards.on_change.append(offers.changed)
    start = HandoffStart(
        settings.handoff,
        watch=cluster.node,
        checkpoint=handovers.checkpoint,
        registration=cluster.registration,
        plugin=plugin,
        handoffs={
            "late-binding": LateBindingHandoff(handovers.late_binding, lambda: uuid.uuid4().hex),
            "lock": handovers.lock,
        },
        offers=offers,
        chosen=cluster.release.begin,
    )
    kubelet = KubeletRegistration(
        plugin,
        nvidia.resources.count,
        plugins_dir,
        before_registering=start.prepare,
        metrics=basis.metrics,
        clock=clock,
    )
    await cards.begin()
    for problem in backends.names_of_no_card(basis.enforcement, [card.id for card in cards.inventory.cards]):
        cluster.node_events.warn("EnforcementNamesNoCard", problem)
    resources = frozenset({nvidia.resources.count, *nvml.offer.by_resource})
    remains = NvidiaRemains(
        plugins_dir,
        tuple(Path(folder) for folder in settings.files.nvidia_cdi_dirs),
        Ours(
            resources=resources,
            sockets=frozenset(map(socket_name, resources)),
            writes_card_specs=machine.rules.uses_cdi,
            mig_is_ours=basis.is_mig,
        ),
        watch=cluster.node,
        recorder=cluster.recorder,
        node_name=node_name,
    )
    await remains.look()
    overrides = OverridesWatch(
        basis.options,
        functools.partial(options_of, settings, nvidia),
        [nvml.use, offers.use, cards.use],
        recorder=cluster.recorder,
        node_name=node_name,
        clock=clock,
    )
    one_at_most = basis.plugin_config.one_at_most
    mixed = MixedResources(
        nvml,
        {resource: DevicePlugin(metrics=basis.metrics, clock=clock) for resource in nvml.offer.by_resource},
        HealthBook(machine.health),
        basis.plugin_config.replicas,
        StaticMigHandoff(nvml.instances, machine.rules, one_at_most=one_at_most),
        probe_seconds=settings.health.probe_seconds,
        node_events=cluster.node_events,
        clock=clock,
    )
    nvml.on_fault.append(mixed.fault)
    ready = {
        "node": cluster.node.informer.synced.is_set,
        "pods": cluster.pods.informer.synced.is_set,
        "kubelet": kubelet.is_known,
    }
    observed = new_app()
    add_observation_routes(observed, registry=basis.registry, ready=ready)
    observation = HttpServer(observed, settings.observation, name="observation")
    specs = machine.card_specs
    return [
        RootTask("kubelet", kubelet.run, Stage.INTAKE),
        RootTask("faults", cards.watch_faults),
        RootTask("probes", cards.probe),
        *mixed.root_tasks(plugins_dir, basis.metrics),
        RootTask("nvidia-remains", remains.tell),
        *([RootTask("per-node-file", overrides.run)] if settings.node.overrides_file else []),
        *([RootTask("card-specifications", functools.partial(specs.run, clock))] if specs else []),
        RootTask("collection", handovers.collection.run),
        RootTask("page-refresh", handovers.page_refresh.run),
        RootTask("lock-release", cluster.release.run),
        RootTask("node", cluster.node.informer.run, Stage.SOURCES),
        RootTask("pods", cluster.pods.informer.run, Stage.SOURCES),
        RootTask("registration", cluster.registration.run, Stage.SOURCES),
        RootTask("pod-patches", cluster.patches.run, Stage.SOURCES),
        RootTask("events", cluster.recorder.run, Stage.OUTBOX),
        RootTask("bus", cluster.bus.run, Stage.OUTBOX),
        RootTask("observation", observation.run, Stage.OBSERVATION),
    ]


def _idle(basis: Basis) -> list[RootTask]:
    """Nothing is offered: there is no driver, and none has to be."""
    observed = new_app()
    add_observation_routes(observed, registry=basis.registry, ready={})
    observation = HttpServer(observed, basis.settings.observation, name="observation")

    async def idle() -> None:
        await asyncio.Event().wait()

    return [RootTask("idle", idle), RootTask("observation", observation.run, Stage.OBSERVATION)]
