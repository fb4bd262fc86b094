"""Kubelet stand-ins of one or many nodes in one process: `python -m hami_sim.kubelet.main --config FILE`.

Containers outlive the process; the next one on the same root folders takes them over. `hami_sim.kubelet.end_containers`
ends those of a root folder.
"""

import resource
from collections.abc import Sequence
from contextlib import AsyncExitStack

import msgspec
from hami_chassis.clock import SystemClock
from hami_chassis.command_line import settings_from_command_line
from hami_chassis.kube.client import KubeClient, KubeSettings
from hami_chassis.kube.events import EventRecorder
from hami_chassis.log import LogSettings, configure_logging
from hami_chassis.metrics import ChassisMetrics
from hami_chassis.run import RootTask, Stage, run_process
from prometheus_client import CollectorRegistry

from hami_sim.kubelet.kube_api import KubeletKube, RecordedEvents
from hami_sim.kubelet.log_server import LogServer
from hami_sim.kubelet.settings import KubeletSettings, LogServerSettings
from hami_sim.kubelet.shim_server import ShimServer
from hami_sim.kubelet.stand_in import KubeletStandIn


class RunnerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the process."""

    kube: KubeSettings = KubeSettings()
    log: LogSettings = LogSettings()
    logs: LogServerSettings = LogServerSettings()
    """Container logs for the API server."""
    nodes: tuple[KubeletSettings, ...] = ()
    """One stand-in each; root folders must differ."""


async def build(settings: RunnerSettings, stack: AsyncExitStack) -> Sequence[RootTask]:
    """All objects of the process. Raises ModeUnavailableError."""
    metrics, clock = ChassisMetrics(CollectorRegistry()), SystemClock()
    client = await KubeClient.connect(settings.kube, metrics=metrics, clock=clock, user_agent="kubelet-stand-in")
    stack.push_async_callback(client.close)
    recorder = EventRecorder(client, component="kubelet", instance="stand-in", metrics=metrics, clock=clock)
    log_server = await stack.enter_async_context(LogServer(settings.logs).serving())
    kube, events = KubeletKube(client, metrics=metrics, clock=clock), RecordedEvents(recorder)
    shims = ShimServer()
    stand_ins = [
        await KubeletStandIn.create(node, kube, events=events, log_server=log_server, shims=shims)
        for node in settings.nodes
    ]
    return [
        *(RootTask(f"kubelet {stand_in.settings.node_name}", stand_in.run) for stand_in in stand_ins),
        RootTask("events", recorder.run, Stage.OUTBOX),
    ]


def main() -> None:
    """Entry point."""
    # Each container costs a descriptor; the soft limit is often 1,024.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    settings = settings_from_command_line(RunnerSettings, program="kubelet-stand-in")
    configure_logging(settings.log, service="kubelet-stand-in")
    raise SystemExit(run_process(lambda stack: build(settings, stack)))


if __name__ == "__main__":
    main()
