"""`hami-monitor`: serve, print a region. Builds the objects; decides nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from hami_chassis.bus import Bus
from hami_chassis.clock import SystemClock
from hami_chassis.errors import Permanent
from hami_chassis.http import HttpServer, add_observation_routes, new_app
from hami_chassis.kube import KubeClient
from hami_chassis.log import configure_logging, get_logger
from hami_chassis.metrics import ChassisMetrics
from hami_chassis.run import RootTask, Stage, run_process
from hami_chassis.settings import load_settings, masked, settable_fields
from hami_model import device_config, events
from hami_model.device_config import DeviceConfig
from hami_model.errors import HamiError
from prometheus_client import CollectorRegistry

from hami_monitor.adapters.container_folders import ContainerFolders
from hami_monitor.adapters.event_streams import usage_streams
from hami_monitor.adapters.exposition import SampleCollector, SeriesCollector
from hami_monitor.adapters.limits_pages import LimitsPages
from hami_monitor.adapters.nvml import NvmlHost
from hami_monitor.adapters.pods import NodePodList, node_pods
from hami_monitor.adapters.proc import ProcProcesses
from hami_monitor.adapters.region_files import RegionFiles, read_file
from hami_monitor.adapters.region_writing import RegionWriting
from hami_monitor.config import MonitorSettings, serving_faults
from hami_monitor.core.feedback_series import feedback_series
from hami_monitor.core.region_layouts import UnreadableRegionError
from hami_monitor.core.region_report import report
from hami_monitor.feeding_back import FeedbackLoop
from hami_monitor.folder_removal import FolderRemoval
from hami_monitor.host_pid_watch import HostPidWatch
from hami_monitor.metrics import MonitorMetrics
from hami_monitor.watching import HostWatch, Sampler

WRONG_USE = 2
UNREADABLE = 1

app = typer.Typer(
    help="Monitor: reads the region files of a node's containers and tells promised against used.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
SETTINGS_HELP = "\b\nSettings (file, HAMI_<GROUP>_<FIELD>, --set):\n" + "\n".join(
    f"  {leaf.path}" for leaf in settable_fields(MonitorSettings)
)
log = get_logger("main")

ConfigFile = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="YAML or JSON file with settings.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="GROUP.FIELD=VALUE", help="One setting; may be repeated.")
]


@app.command(epilog=SETTINGS_HELP)
def serve(config: ConfigFile = None, sets: Sets = None) -> None:
    """Watch one node until told to stop."""
    try:
        settings = load_settings(MonitorSettings, file=config, sets=sets or ())
    except Permanent as error:
        _wrong_use(str(error))
    faults = list(serving_faults(settings))
    if faults:
        _wrong_use("; ".join(faults))
    configure_logging(settings.log, service="monitor", node=settings.node.name)
    log.info("settings", **masked(settings))
    try:
        raise typer.Exit(run_process(lambda stack: build(settings, stack)))
    except (Permanent, HamiError) as error:
        _wrong_use(str(error))


@app.command()
def region(
    file: Annotated[Path, typer.Argument(help="Region file of a container.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print what the monitor reads from a region file. Exit status 1: it cannot be read."""
    try:
        found = report(read_file(file))
    except UnreadableRegionError as error:
        _unreadable(f"{file}: {error}", as_json=as_json)
    except OSError as error:
        _unreadable(f"{file}: {error.strerror}", as_json=as_json)
    print(json.dumps(found, indent=2) if as_json else _table(found))


async def build(settings: MonitorSettings, stack: AsyncExitStack) -> Sequence[RootTask]:
    """All objects of the service, and its root tasks."""
    config = _device_config(settings.node.device_config_file)
    for warning in config.warnings:
        log.warning("device-configuration", problem=warning)
    node, period_seconds = settings.node.name, settings.sampling.period_seconds
    registry, clock = CollectorRegistry(), SystemClock()
    chassis_metrics, metrics = ChassisMetrics(registry), MonitorMetrics(registry)
    client = await KubeClient.connect(settings.kube, metrics=chassis_metrics, clock=clock, user_agent="hami-monitor")
    stack.push_async_callback(client.close)
    pods = node_pods(client, node=node, config=config, metrics=chassis_metrics, clock=clock)
    host = HostWatch(
        NvmlHost(settings.node.driver_library_folder), period_seconds=period_seconds, metrics=metrics, clock=clock
    )
    bus = Bus(
        settings.bus,
        name="monitor",
        metrics=chassis_metrics,
        streams=usage_streams(settings.events.streams, prefix=settings.events.prefix),
    )
    vgpu = Path(settings.node.hook_path) / "vgpu"
    regions = RegionFiles(vgpu / "containers")
    sampler = Sampler(
        node=node,
        period_seconds=period_seconds,
        regions=regions,
        owners=ProcProcesses(),
        pages=LimitsPages(vgpu / "limits"),
        pods=pods,
        pods_known=pods.synced,
        host=host,
        sink=bus if settings.events.enabled else None,
        source=events.source("monitor", node),
        prefix=settings.events.prefix,
        metrics=metrics,
        clock=clock,
    )
    feedback = FeedbackLoop(
        period_seconds=settings.feedback.period_seconds,
        hold_ticks=settings.feedback.hold_ticks,
        regions=regions,
        sink=RegionWriting(vgpu / "containers"),
        pages=LimitsPages(vgpu / "limits"),
        pods=pods,
        pods_known=pods.synced,
        metrics=metrics,
        clock=clock,
    )
    host_pids = HostPidWatch(
        period_seconds=settings.host_pids.period_seconds,
        regions=regions,
        sink=RegionWriting(vgpu / "containers"),
        processes=ProcProcesses(),
        pods=pods,
        pods_known=pods.synced,
        metrics=metrics,
        clock=clock,
    )
    removal = FolderRemoval(
        keep_seconds=settings.folders.remove_after_seconds,
        folders=ContainerFolders(vgpu / "containers"),
        users=ProcProcesses(),
        pods=pods,
        pods_known=pods.synced,
        pod_list=NodePodList(client, node=node),
        clock=clock,
    )
    if settings.feedback.enabled:
        registry.register(SeriesCollector(lambda: feedback_series(node, feedback.pods, feedback.last)))
    registry.register(
        SampleCollector(
            lambda: sampler.last,
            hami_names=settings.metrics.hami_names,
            hami_legacy_names=settings.metrics.hami_legacy_names,
            version=version("hami-monitor"),
        )
    )
    observed = new_app()
    ready = {"pods": pods.synced.is_set, "sample": lambda: sampler.last is not None}
    add_observation_routes(observed, registry=registry, ready=ready)
    return [
        RootTask("cards", host.run),
        RootTask("sampler", sampler.run),
        *([RootTask("feedback", feedback.run)] if settings.feedback.enabled else []),
        *([RootTask("host-pids", host_pids.run)] if settings.host_pids.enabled else []),
        *([RootTask("folders", removal.run)] if settings.folders.remove_after_seconds else []),
        RootTask("pods", pods.run, Stage.SOURCES),
        RootTask("bus", bus.run, Stage.OUTBOX),
        RootTask("observation", HttpServer(observed, settings.observation, name="observation").run, Stage.OBSERVATION),
    ]


def _device_config(name: str) -> DeviceConfig:
    """Raises Permanent or DeviceConfigError."""
    if not name:
        return device_config.default_config()
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Permanent(f"node.device_config_file {name}: {error}") from error
    return device_config.parse(text)


def _table(found: dict[str, Any]) -> str:
    read = found["read"]
    version_text = "none" if found["version"] is None else ".".join(str(part) for part in found["version"])
    lines = [
        f"layout {found['layout']} (version {version_text}), {read['device_num']} cards",
        f"priority {read['priority']}, recent kernel {read['recent_kernel']}",
        f"utilisation switch {read['utilization_switch']}, last kernel at {read['last_kernel_time']}",
        f"{'card':>4}  {'id':42}{'limit':>16}{'used':>16}{'cores':>7}{'busy':>6}",
    ]
    for device, cores in zip(read["devices"], found["sm_limit"], strict=True):
        # Written by the container, shown on a terminal.
        written = device.get("uuid_label", device.get("uuid_label_hex", "")).split("\0")[0]
        name = "".join(letter if letter.isprintable() else "?" for letter in written)
        if name or device["limit"] or device["total"]:
            lines.append(
                f"{device['index']:4}  {name:42}{device['limit']:16}{device['total']:16}{cores:7}{device['sm_util']:6}"
            )
    for process in found["processes"]:
        used = ", ".join(f"card {card}: {used}" for card, used in process["used"].items()) or "nothing"
        lines.append(f"process {process['pid']} (host {process['hostpid'] or 'unknown'}): {used}")
    return "\n".join(lines)


def _unreadable(problem: str, *, as_json: bool) -> NoReturn:
    if as_json:
        print(json.dumps({"error": problem}))
    else:
        typer.echo(f"hami-monitor: {problem}", err=True)
    raise typer.Exit(UNREADABLE)


def _wrong_use(problem: str) -> NoReturn:
    typer.echo(f"hami-monitor: {problem}", err=True)
    raise typer.Exit(WRONG_USE)


if __name__ == "__main__":
    app()
