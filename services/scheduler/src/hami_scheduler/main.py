"""`hami-scheduler`: serve, and ask a running scheduler. Builds the objects; decides nothing."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from hami_chassis.bus import Bus
from hami_chassis.clock import Clock, SystemClock
from hami_chassis.errors import Permanent
from hami_chassis.http import HttpServer, add_observation_routes, new_app
from hami_chassis.kube import EventRecorder, KubeClient, LeaderElector
from hami_chassis.kube.leader import Leadership as Won
from hami_chassis.log import configure_logging, get_logger
from hami_chassis.metrics import ChassisMetrics
from hami_chassis.run import RootTask, Stage, run_process
from hami_chassis.settings import load_settings, masked, settable_fields
from hami_chassis.tls import ReloadingTls
from hami_model import allocation_id, device_config, events
from hami_model.device_config import DeviceConfig
from hami_model.errors import HamiError
from hami_model.ids import AllocationId
from hami_model.requests import Policies
from prometheus_client import CollectorRegistry

from hami_scheduler import cli
from hami_scheduler.adapters.advisor import Advisor
from hami_scheduler.adapters.binder import Binder
from hami_scheduler.adapters.catch_up import CatchUp
from hami_scheduler.adapters.chores import ChoreList
from hami_scheduler.adapters.early_annotations import EarlyAnnotations
from hami_scheduler.adapters.event_streams import scheduler_streams
from hami_scheduler.adapters.http_extender import ExtenderEndpoint
from hami_scheduler.adapters.informers import Informers
from hami_scheduler.adapters.node_locks import NodeLocks
from hami_scheduler.adapters.node_news import NodeNews
from hami_scheduler.adapters.query_server import QueryServer
from hami_scheduler.adapters.roles import Roles
from hami_scheduler.adapters.term import SoleLeader, Term
from hami_scheduler.adapters.upkeep import Upkeep
from hami_scheduler.adapters.waker import Waker
from hami_scheduler.bookkeeper import Bookkeeper
from hami_scheduler.config import SchedulerSettings
from hami_scheduler.core.announcements import Announcements
from hami_scheduler.core.ledger import Ledger
from hami_scheduler.core.waking import RejectedPod
from hami_scheduler.garbage import collect_rarely, keep_out_of_collections
from hami_scheduler.metrics import SchedulerMetrics
from hami_scheduler.ports import Leadership
from hami_scheduler.state_metrics import HamiNamesCollector, LedgerCollector

WRONG_USE = 2

app = typer.Typer(
    help="Scheduler extender: places pods that ask for a slice of a card, and binds them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
SETTINGS_HELP = "\b\nSettings (file, HAMI_<GROUP>_<FIELD>, --set):\n" + "\n".join(
    f"  {leaf.path}" for leaf in settable_fields(SchedulerSettings)
)
log = get_logger("main")

ConfigFile = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="YAML or JSON file with settings.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="GROUP.FIELD=VALUE", help="One setting; may be repeated.")
]


app.command()(cli.explain)
app.command()(cli.state)
app.command(name="what-if")(cli.what_if)
app.command()(cli.snapshot)


@app.command(epilog=SETTINGS_HELP)
def serve(config: ConfigFile = None, sets: Sets = None) -> None:
    """Answer kube-scheduler until told to stop."""
    settings = _settings(config, sets)
    configure_logging(settings.log, service="scheduler")
    log.info("settings", **masked(settings))
    collect_rarely()
    try:
        # In flight Bindings end before the lease is given back: the grace covers the longest of them.
        raise typer.Exit(
            run_process(lambda stack: build(settings, stack), stage_grace_seconds=settings.bind.timeout_seconds + 4.0)
        )
    except (Permanent, HamiError) as error:
        _wrong_use(str(error))


async def build(settings: SchedulerSettings, stack: AsyncExitStack) -> Sequence[RootTask]:
    """All objects of the service, and its root tasks."""
    config = _read_device_config(settings)
    for warning in config.warnings:
        log.warning("device-configuration", problem=warning)
    registry, clock = CollectorRegistry(), SystemClock()
    chassis_metrics, metrics = ChassisMetrics(registry), SchedulerMetrics(registry)
    instance = settings.events.instance or socket.gethostname()
    prefix = settings.events.prefix
    client = await KubeClient.connect(settings.kube, metrics=chassis_metrics, clock=clock, user_agent="hami-scheduler")
    stack.push_async_callback(client.close)

    placement = settings.placement
    ledger = Ledger(
        config,
        Policies(node=placement.node_policy, card=placement.card_policy),
        node_selector=placement.node_selector,
    )
    rejected: dict[str, RejectedPod] = {}
    chores = ChoreList(client, config, metrics=metrics, clock=clock, is_leading=lambda: leadership.is_leader)
    waker = Waker(
        ledger.cluster,
        rejected,
        chores,
        metrics=metrics,
        clock=clock,
        wake_seconds=settings.upkeep.wake_seconds,
        in_charge=lambda: bookkeeper.in_charge,
    )
    bus = Bus(
        settings.bus,
        name="scheduler",
        metrics=chassis_metrics,
        streams=scheduler_streams(settings.events.streams, prefix=prefix),
        on_overflow=lambda _dropped: _asked(catch_up),
    )
    recorder = EventRecorder(
        client, component=settings.events.component, instance=instance, metrics=chassis_metrics, clock=clock
    )
    announcements = Announcements(events.source("scheduler", instance))
    advisor = Advisor(ledger.cluster, clock=clock)
    bookkeeper = Bookkeeper(
        ledger,
        rejected=rejected,
        announcements=announcements,
        sink=bus,
        prefix=prefix,
        board=recorder,
        alarm=waker,
        chores=chores,
        adviser=advisor,
        metrics=metrics,
        clock=clock,
        new_allocation_id=lambda: _new_allocation_id(clock),
        pod_of=lambda uid: informers.pods.get(uid),  # noqa: PLW0108  # the informers are built later
    )
    locks = NodeLocks(client, ledger, chores, clock=clock)
    informers = Informers(client, bookkeeper, locks, metrics=chassis_metrics, clock=clock)
    NodeNews(bookkeeper, locks).listen(bus, instance=instance, prefix=prefix)
    catch_up = CatchUp(bus, bookkeeper, announcements, pod_of=informers.pods.get, prefix=prefix, clock=clock)
    query_server = QueryServer(bookkeeper, settings=settings.bus, prefix=prefix, find_pod=informers.find_pod)
    term = Term(
        bookkeeper,
        informers,
        wait_seconds=settings.election.lease.lease_seconds + settings.bind.timeout_seconds,
        metrics=metrics,
        clock=clock,
        listeners=(
            Roles(client, settings.election, chores, is_leading=lambda: leadership.is_leader).term_changed,
            catch_up.term_changed,
            query_server.term_changed,
            lambda in_charge: keep_out_of_collections() if in_charge else None,
            lambda in_charge: ledger.cluster.record(placement.record_steps if in_charge else 0),
        ),
    )
    registry.register(
        LedgerCollector(
            ledger,
            lambda: len(rejected),
            listed=lambda: informers.synced,
            in_charge=lambda: bookkeeper.in_charge,
            per_card=settings.metrics.per_card,
        )
    )
    if settings.metrics.hami_names:
        registry.register(HamiNamesCollector(ledger, informers.pods.values, in_charge=lambda: bookkeeper.in_charge))
    election: list[RootTask] = []
    leadership: Leadership = SoleLeader()
    if settings.election.enabled:
        elector = LeaderElector(
            client,
            settings.election.lease,
            identity=f"{instance}-{uuid.uuid4()}",
            metrics=chassis_metrics,
            clock=clock,
            on_started=term.won,
            on_stopped=term.lost,
        )
        leadership = elector
        election.append(RootTask("election", elector.run, Stage.LEADERSHIP))
    else:
        term.won(Won(previous_holder="", was_released=True))
    binder = Binder(
        client,
        bookkeeper,
        locks,
        settings=settings.bind,
        leadership=leadership,
        metrics=metrics,
        clock=clock,
    )
    endpoint = ExtenderEndpoint(
        bookkeeper,
        binder,
        settings=settings.extender,
        early_annotations=EarlyAnnotations(client, chores) if placement.annotate_at == "filter" else None,
        metrics=metrics,
        clock=clock,
    )
    certificate = ReloadingTls(settings.extender.tls, clock=clock) if settings.extender.tls.enabled else None
    server = HttpServer(
        endpoint.app(),
        settings.extender.http,
        name="extender",
        tls=certificate.context if certificate is not None else None,
        shutdown_seconds=settings.bind.timeout_seconds,
    )
    upkeep = Upkeep(client, bookkeeper, informers, settings=settings.upkeep, metrics=metrics, clock=clock)
    observed = new_app()
    add_observation_routes(
        observed,
        registry=registry,
        ready={
            "pods": informers.pods.synced.is_set,
            "nodes": informers.nodes.synced.is_set,
            "quotas": informers.quotas.synced.is_set,
        },
    )
    observation = HttpServer(observed, settings.observation, name="observation")
    return [
        RootTask("extender", server.run, Stage.INTAKE),
        *([RootTask("certificate", certificate.run)] if certificate is not None else []),
        *election,
        RootTask("term", term.run),
        RootTask("binder", binder.run),
        RootTask("waker", waker.run),
        RootTask("advisor", advisor.run),
        RootTask("upkeep", upkeep.run),
        RootTask("chores", chores.run),
        RootTask("catch-up", catch_up.run),
        RootTask("queries", query_server.run),
        RootTask("pods", informers.pods.run, Stage.SOURCES),
        RootTask("nodes", informers.nodes.run, Stage.SOURCES),
        RootTask("quotas", informers.quotas.run, Stage.SOURCES),
        RootTask("kubernetes-events", recorder.run, Stage.OUTBOX),
        RootTask("bus", bus.run, Stage.OUTBOX),
        RootTask("observation", observation.run, Stage.OBSERVATION),
    ]


async def _asked(catch_up: CatchUp) -> None:
    catch_up.request()


def _new_allocation_id(clock: Clock) -> AllocationId:
    return allocation_id.uuid7(int(clock.now().timestamp() * 1000), os.urandom(allocation_id.RANDOM_BYTES))


def _settings(config: Path | None, sets: list[str] | None) -> SchedulerSettings:
    try:
        return load_settings(SchedulerSettings, file=config, sets=sets or ())
    except Permanent as error:
        _wrong_use(str(error))


def _read_device_config(settings: SchedulerSettings) -> DeviceConfig:
    """Raises Permanent or DeviceConfigError."""
    name = settings.placement.device_config_file
    if not name:
        return device_config.default_config(settings.placement.enabled_families)
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Permanent(f"placement.device_config_file {name}: {error}") from error
    return device_config.parse(text, settings.placement.enabled_families)


def _wrong_use(problem: str) -> NoReturn:
    typer.echo(f"hami-scheduler: {problem}", err=True)
    raise typer.Exit(WRONG_USE)


if __name__ == "__main__":
    app()
