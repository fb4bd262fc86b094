"""`hami-node-agent`: serve, or print what the driver says of this machine. Builds the objects; decides nothing."""

from __future__ import annotations

import asyncio
import functools
import os
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
import typer
from hami_chassis.bus import Bus
from hami_chassis.clock import SystemClock
from hami_chassis.errors import Permanent
from hami_chassis.http import HttpServer, add_observation_routes, new_app
from hami_chassis.kube import EventRecorder, KubeClient
from hami_chassis.log import configure_logging, get_logger
from hami_chassis.metrics import ChassisMetrics
from hami_chassis.run import RootTask, Stage, run_process
from hami_chassis.settings import masked, settable_fields
from hami_model import events, register
from hami_model.errors import HamiError
from prometheus_client import CollectorRegistry

from hami_node_agent.adapters import doctor_facts
from hami_node_agent.adapters.bus_events import AllocatingHints, allocating_subject, node_streams
from hami_node_agent.adapters.card_health import Cards
from hami_node_agent.adapters.collection import Collection
from hami_node_agent.adapters.configuration import (
    enforcement_of,
    nvidia_plugin_config,
    nvidia_settings,
    options_of,
    settings_of,
)
from hami_node_agent.adapters.device_plugin import DevicePlugin, KubeletRegistration, socket_name
from hami_node_agent.adapters.driver_files import CardSpecs, FoldersBelow, find_driver_files
from hami_node_agent.adapters.enforcing import Enforcing
from hami_node_agent.adapters.handoff_start import HandoffStart, Offers
from hami_node_agent.adapters.handover_files import HandoverFolders
from hami_node_agent.adapters.host_files import CdiFolder, CheckpointFile
from hami_node_agent.adapters.host_folder import HostFolder
from hami_node_agent.adapters.kubelet_files import KubeletCheckpointFile
from hami_node_agent.adapters.late_binding import LateBinding
from hami_node_agent.adapters.lock_api import KubeLockApi
from hami_node_agent.adapters.lock_handoff import LockHandoff
from hami_node_agent.adapters.machine_files import device_rules, driver_root, find_devices, host_roots
from hami_node_agent.adapters.mig_instances import MigInstances
from hami_node_agent.adapters.node import LockRelease, NodeRegistration, NodeWatch
from hami_node_agent.adapters.node_events import RecordedNodeEvents
from hami_node_agent.adapters.nvidia_remains import NvidiaRemains
from hami_node_agent.adapters.nvml_library import DriverError, find_library
from hami_node_agent.adapters.nvml_mig_driver import NvmlMigDriver
from hami_node_agent.adapters.outcomes import HandoverOutcomes
from hami_node_agent.adapters.overrides_watch import OverridesWatch
from hami_node_agent.adapters.page_refresh import PageRefresh
from hami_node_agent.adapters.placeholder_handoff import LateBindingHandoff
from hami_node_agent.adapters.pod_resources import PodResources
from hami_node_agent.adapters.pods import NodePods, PodPatches, PodSubscriber
from hami_node_agent.adapters.showing import Showing
from hami_node_agent.adapters.static_mig import MixedResources, StaticMigHandoff, StaticMigNvml
from hami_node_agent.config import NodeAgentSettings, serving_faults
from hami_node_agent.core import backends, doctor, hami_names
from hami_node_agent.core.driver_spec import beside_cards
from hami_node_agent.core.entitlement import holders_of
from hami_node_agent.core.grant import HostLayout, LimitPolicy
from hami_node_agent.core.health import HealthBook, health_policy
from hami_node_agent.core.inventory import Discovery, Inventory, mig_devices, take_inventory
from hami_node_agent.core.node_options import MIG, NodeOptions
from hami_node_agent.core.nvidia_remains import Ours
from hami_node_agent.core.outcome import Origin
from hami_node_agent.core.static_mig import StaticDevices
from hami_node_agent.metrics import NodeAgentMetrics

WRONG_USE = 2
NOT_WELL = 1
IDLE_REMEDY = "start the node-agent anew once the driver is there"

app = typer.Typer(
    help="Node agent: offers this machine's cards and hands slices of them to containers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
SETTINGS_HELP = "\b\nSettings (file, HAMI_<GROUP>_<FIELD>, --set):\n" + "\n".join(
    f"  {leaf.path}" for leaf in settable_fields(NodeAgentSettings)
)
log = get_logger("main")

ConfigFile = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="YAML or JSON file with settings.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="GROUP.FIELD=VALUE", help="One setting; may be repeated.")
]


@app.command(epilog=SETTINGS_HELP, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve(context: typer.Context, config: ConfigFile = None, sets: Sets = None) -> None:
    """Offer the cards and hand slices over until told to stop.

    Flags and environment names of HAMi's device plugin are taken too; settings of ours outweigh them.
    """
    given = hami_names.found_in(context.args, os.environ)
    settings = _settings(config, sets, given)
    faults = list(serving_faults(settings))
    if faults:
        _wrong_use("; ".join(faults))
    # gRPC's core writes lines of its own to stderr at every connection that ends, in the midst of ours.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    configure_logging(settings.log, service="node-agent", node=settings.node.name)
    log.info("settings", **masked(settings))
    for note in given.notes:
        log.warning("setting-without-effect", problem=note)
    try:
        raise typer.Exit(run_process(lambda stack: build(settings, stack)))
    except (Permanent, HamiError, OSError) as error:
        _wrong_use(str(error))


@app.command()
def inventory(config: ConfigFile = None, sets: Sets = None) -> None:
    """Print what this machine would offer, as the register annotation, and what keeps cards out of it."""
    settings = _settings(config, sets, hami_names.found_in((), os.environ))
    try:
        nvidia = nvidia_settings(settings)
        options = options_of(settings, nvidia)
        found = asyncio.run(_discovery(settings, options))
    except (Permanent, HamiError) as error:
        _wrong_use(str(error))
    taken = take_inventory(found.cards, options, unreadable=found.unreadable)
    print(register.encode(nvidia.vendor, taken.cards))
    for problem in (*options.warnings, *found.problems, *taken.problems):
        typer.echo(f"hami-node-agent: {problem}", err=True)


@app.command(name="doctor")
def examine_machine(
    config: ConfigFile = None,
    sets: Sets = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a finding.")] = False,
) -> None:
    """Say what would keep the node-agent from working here, and what to change. Exit status 1: something would."""
    settings = _settings(config, sets, hami_names.found_in((), os.environ))
    configure_logging(msgspec.structs.replace(settings.log, level="error"), service="node-agent")
    findings = doctor.examine(asyncio.run(doctor_facts.gather(settings)), doctor_facts.wishes(settings))
    for finding in findings:
        print(msgspec.json.encode(finding).decode() if as_json else doctor.line(finding))
    raise typer.Exit(0 if doctor.is_well(findings) else NOT_WELL)


async def _discovery(settings: NodeAgentSettings, options: NodeOptions) -> Discovery:
    nvml = _nvml(settings, options)
    await nvml.start()
    try:
        return await nvml.discover()
    finally:
        await nvml.close()


def _nvml(settings: NodeAgentSettings, options: NodeOptions) -> StaticMigNvml:
    return StaticMigNvml(
        lambda: find_library(settings.nvml.library_file, driver_root(settings.nvml)),
        with_mig=options.operating_mode == MIG,
        answer_seconds=settings.health.answer_seconds,
        strategy=settings.devices.mig_strategy,
        options=options,
    )


async def build(settings: NodeAgentSettings, stack: AsyncExitStack) -> Sequence[RootTask]:  # noqa: PLR0915  # a list
    """All objects of the service, and its root tasks."""
    nvidia = nvidia_settings(settings)
    options = options_of(settings, nvidia)
    is_mig = options.operating_mode == MIG
    for warning in options.warnings:
        log.warning("per-node-configuration", problem=warning)
    strategy, plugin_config = settings.devices.mig_strategy, nvidia_plugin_config(settings)
    for note in plugin_config.notes:
        log.warning("setting-without-effect", problem=note)
    if is_mig and strategy != "none":
        raise Permanent(f"operatingmode mig makes MIG devices itself; set devices.mig_strategy to none, not {strategy}")
    node_name, prefix = settings.node.name, settings.events.prefix
    registry, clock = CollectorRegistry(), SystemClock()
    chassis_metrics, metrics = ChassisMetrics(registry), NodeAgentMetrics(registry)

    # Files of the host. Nothing is touched while another agent is at work with them.
    own = CheckpointFile(Path(settings.files.state_dir) / "handed-out.json")
    await own.hold(stack, clock)
    layout = HostLayout(hook_path=settings.files.hook_path, lock_dir=settings.files.lock_dir.rstrip("/"))
    files = HostFolder(layout, settings.files.library_version)
    enforcement = enforcement_of(settings.enforcement, nvidia, options)
    version = files.install(settings.files.library_file, needed=enforcement.uses("preload"))
    log.info("library", version=version or "not versioned")
    cdi = CdiFolder(Path(settings.files.cdi_dir), [Path(folder) for folder in settings.files.nvidia_cdi_dirs])
    cdi.prepare()
    book = own.load()

    # Cards.
    nvml = _nvml(settings, options)
    try:
        await nvml.start()
    except DriverError as error:
        if settings.nvml.required:
            raise
        log.warning("idle-without-driver", reason=str(error), remedy=IDLE_REMEDY)
        return _idle(settings, registry)
    stack.push_async_callback(nvml.close)

    backends.refuse_unavailable(enforcement, await nvml.driver_version())
    for backend in backends.BACKENDS:
        metrics.slices.labels(backend).set_function(functools.partial(backends.count_slices, book, backend))

    # API server and bus.
    client = await KubeClient.connect(settings.kube, metrics=chassis_metrics, clock=clock, user_agent="hami-node-agent")
    stack.push_async_callback(client.close)
    recorder = EventRecorder(
        client, component="hami-node-agent", instance=node_name, metrics=chassis_metrics, clock=clock
    )
    node_events = RecordedNodeEvents(recorder, node_name)
    bus = Bus(
        settings.bus,
        name=f"node-agent-{node_name}",
        metrics=chassis_metrics,
        streams=node_streams(settings.events.streams, prefix=prefix),
    )
    origin = Origin(source=events.source("node-agent", node_name), node=node_name, prefix=prefix)
    subscriber = PodSubscriber()
    pods = NodePods(client, node_name, subscriber, metrics=chassis_metrics, clock=clock)
    bus.subscribe(allocating_subject(node_name, prefix=prefix), AllocatingHints(node_name, pods.hint).handle)
    patches = PodPatches(client, node_name, metrics=metrics, clock=clock)
    node = NodeWatch(client, node_name, nvidia.vendor, metrics=chassis_metrics, clock=clock)
    registration = NodeRegistration(
        client,
        node,
        nvidia.vendor,
        origin,
        sink=bus,
        used_by=lambda card_id: holders_of(card_id, pods.all_cached(), nvidia),
        heartbeat_seconds=settings.node.heartbeat_seconds,
        metrics=metrics,
        clock=clock,
    )
    release = LockRelease(client, node, node_name, pods=pods.all_cached, metrics=metrics, clock=clock)

    # Kubelet.
    plugin = DevicePlugin(metrics=metrics, clock=clock)
    health = health_policy(
        watches_events=settings.health.watch_xids,
        ignores_nothing=settings.health.ignore_no_xid,
        ignored=settings.health.ignored_xids,
        watched=settings.health.watched_xids,
        clean_probes=settings.health.clean_probes,
    )
    cards = Cards(
        nvml,
        options,
        HealthBook(health),
        with_topology=settings.node.topology_scores and strategy != "single",  # MIG devices have no links
        may_switch_mig_on=settings.node.switch_mig_on,
        probe_seconds=settings.health.probe_seconds,
        node_events=node_events,
        metrics=metrics,
        clock=clock,
    )
    checkpoint = KubeletCheckpointFile(Path(settings.kubelet.plugins_dir))
    ownership: PodResources | None = None
    if settings.kubelet.pod_resources_socket:
        ownership = PodResources(Path(settings.kubelet.pod_resources_socket))
        stack.push_async_callback(ownership.close)
    root = driver_root(settings.nvml)
    machine = find_devices(root)
    rules, roots = device_rules(settings.devices, settings.nvml, machine), host_roots(settings.devices, settings.nvml)
    if rules.uses_cdi and is_mig and settings.handoff.mode != "late-binding":
        raise Permanent(
            "operatingmode mig makes MIG devices that no specification of whole cards can name: with a cdi strategy in "
            f"devices.list_strategies handoff.mode must be late-binding, not {settings.handoff.mode}"
        )
    card_specs: CardSpecs | None = None
    if rules.uses_cdi:
        driver_files = find_driver_files(FoldersBelow(root), root)
        card_specs = CardSpecs(
            Path(settings.files.cdi_dir),
            rules,
            machine,
            driver_files,
            roots=roots,
            more=nvml.instances,
        )
        cards.on_change.append(card_specs.changed)
    outcomes = HandoverOutcomes(nvidia, origin, writer=patches, sink=bus, recorder=recorder, clock=clock)
    limits = LimitPolicy(
        oversubscribed=options.memory_scaling > 1,
        library_log_level=options.library_log_level,
        disable_core_limit=options.disable_core_limit,
    )
    enforcing = Enforcing(enforcement, layout, limits, nvidia, inventory=cards, outcomes=outcomes)
    handover_files = HandoverFolders(files, cdi, own)
    mig_driver = NvmlMigDriver(nvml) if is_mig else None
    mig = MigInstances(mig_driver, book, ledger=pods, is_hidden=cards.is_hidden) if mig_driver is not None else None
    showing = Showing(
        settings.handoff.shown_by if rules.uses_runtime else "cdi",
        frozenset(settings.handoff.runtime_classes),
        rules,
        beside_cards(rules, machine, roots),
        inventory=cards,
        mig_driver=mig_driver,
    )
    late_binding = LateBinding(
        node_name,
        nvidia,
        book,
        ledger=pods,
        checkpoint=checkpoint,
        ownership=ownership,
        files=handover_files,
        own=own,
        inventory=cards,
        outcomes=outcomes,
        metrics=metrics,
        new_region_name=lambda: f"{uuid.uuid4()}.cache",
        enforcing=enforcing,
        showing=showing,
        mig=mig,
    )
    lock = LockHandoff(
        node_name,
        rules,
        nvidia,
        book,
        api=KubeLockApi(client, node_name),
        files=handover_files,
        own=own,
        inventory=cards,
        outcomes=outcomes,
        metrics=metrics,
        clock=clock,
        new_region_name=lambda: f"{uuid.uuid4()}.cache",
        enforcing=enforcing,
        pre_start=late_binding,
        static=StaticDevices(
            devices=lambda: {device.uuid: device for device in mig_devices(cards.inventory)},
            one_at_most=plugin_config.one_at_most,
        ),
        checkpoint=checkpoint,
        mig=mig,
    )
    collection = Collection(
        book,
        ledger=pods,
        cdi=cdi,
        files=files,
        own=own,
        checkpoint=checkpoint,
        forget=late_binding.forget,
        pods_synced=pods.informer.synced,
        clock=clock,
        release_mig=None if mig is None else lambda uid: mig.release(uid, late_binding.save),
    )
    page_refresh = PageRefresh(late_binding.refresh, clock)
    subscriber.on_added += [late_binding.news.announce_again, page_refresh.pod_added]
    subscriber.on_seen += [release.pod_seen, collection.pod_seen]
    subscriber.on_gone += [late_binding.pod_gone, page_refresh.pod_gone, collection.pod_gone]
    offers = Offers(registration, plugin, options)
    cards.on_change.append(offers.changed)
    start = HandoffStart(
        settings.handoff,
        watch=node,
        checkpoint=checkpoint,
        registration=registration,
        plugin=plugin,
        handoffs={"late-binding": LateBindingHandoff(late_binding, lambda: uuid.uuid4().hex), "lock": lock},
        offers=offers,
        chosen=release.begin,
    )
    kubelet = KubeletRegistration(
        plugin,
        nvidia.resources.count,
        Path(settings.kubelet.plugins_dir),
        before_registering=start.prepare,
        metrics=metrics,
        clock=clock,
    )
    await cards.begin()
    _tell_of_unknown_cards(enforcement, cards.inventory, node_events)
    remains = NvidiaRemains(
        Path(settings.kubelet.plugins_dir),
        tuple(Path(folder) for folder in settings.files.nvidia_cdi_dirs),
        Ours(
            resources=frozenset({nvidia.resources.count, *nvml.offer.by_resource}),
            sockets=frozenset(map(socket_name, (nvidia.resources.count, *nvml.offer.by_resource))),
            writes_card_specs=rules.uses_cdi,
            mig_is_ours=is_mig,
        ),
        watch=node,
        recorder=recorder,
        node_name=node_name,
    )
    await remains.look()
    overrides = OverridesWatch(
        options,
        functools.partial(options_of, settings, nvidia),
        [nvml.use, offers.use, cards.use],
        recorder=recorder,
        node_name=node_name,
        clock=clock,
    )
    mixed = MixedResources(
        nvml,
        {resource: DevicePlugin(metrics=metrics, clock=clock) for resource in nvml.offer.by_resource},
        HealthBook(health),
        plugin_config.replicas,
        StaticMigHandoff(nvml.instances, rules, one_at_most=plugin_config.one_at_most),
        probe_seconds=settings.health.probe_seconds,
        node_events=node_events,
        clock=clock,
    )
    nvml.on_fault.append(mixed.fault)
    mixed_tasks = mixed.root_tasks(Path(settings.kubelet.plugins_dir), metrics)

    observed = new_app()
    ready = {
        "node": node.informer.synced.is_set,
        "pods": pods.informer.synced.is_set,
        "kubelet": kubelet.registered.is_set,
    }
    add_observation_routes(observed, registry=registry, ready=ready)
    observation = HttpServer(observed, settings.observation, name="observation")
    return [
        RootTask("kubelet", kubelet.run, Stage.INTAKE),
        RootTask("faults", cards.watch_faults),
        RootTask("probes", cards.probe),
        *mixed_tasks,
        RootTask("nvidia-remains", remains.tell),
        *([RootTask("per-node-file", overrides.run)] if settings.node.overrides_file else []),
        *([RootTask("card-specifications", functools.partial(card_specs.run, clock))] if card_specs else []),
        RootTask("collection", collection.run),
        RootTask("page-refresh", page_refresh.run),
        RootTask("lock-release", release.run),
        RootTask("node", node.informer.run, Stage.SOURCES),
        RootTask("pods", pods.informer.run, Stage.SOURCES),
        RootTask("registration", registration.run, Stage.SOURCES),
        RootTask("pod-patches", patches.run, Stage.SOURCES),
        RootTask("events", recorder.run, Stage.OUTBOX),
        RootTask("bus", bus.run, Stage.OUTBOX),
        RootTask("observation", observation.run, Stage.OBSERVATION),
    ]


def _idle(settings: NodeAgentSettings, registry: CollectorRegistry) -> list[RootTask]:
    """Nothing is offered: there is no driver, and none has to be."""
    observed = new_app()
    add_observation_routes(observed, registry=registry, ready={})
    observation = HttpServer(observed, settings.observation, name="observation")

    async def idle() -> None:
        await asyncio.Event().wait()

    return [RootTask("idle", idle), RootTask("observation", observation.run, Stage.OBSERVATION)]


def _settings(config: Path | None, sets: list[str] | None, given: hami_names.Found) -> NodeAgentSettings:
    try:
        return settings_of(config, sets or (), given)
    except (Permanent, HamiError) as error:
        _wrong_use(str(error))


def _tell_of_unknown_cards(
    enforcement: backends.EnforcementPolicy, inventory: Inventory, node_events: RecordedNodeEvents
) -> None:
    for problem in backends.names_of_no_card(enforcement, [card.id for card in inventory.cards]):
        node_events.warn("EnforcementNamesNoCard", problem)


def _wrong_use(problem: str) -> NoReturn:
    typer.echo(f"hami-node-agent: {problem}", err=True)
    raise typer.Exit(WRONG_USE)


if __name__ == "__main__":
    app()
