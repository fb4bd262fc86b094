"""`python -m hami_sim.leader_forwarder.main --config FILE`: forwards TCP connections to the holder of a Lease."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack

import msgspec
from hami_chassis.clock import SystemClock
from hami_chassis.command_line import settings_from_command_line
from hami_chassis.http import HttpServer, HttpSettings, add_observation_routes, new_app
from hami_chassis.kube import KubeClient, KubeSettings
from hami_chassis.log import LogSettings, configure_logging
from hami_chassis.metrics import ChassisMetrics
from hami_chassis.run import RootTask, Stage, run_process
from prometheus_client import CollectorRegistry

from hami_sim.leader_forwarder.forwarder import Forwarder
from hami_sim.leader_forwarder.lease_holder import LeaseHolder


class LeaseSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whom to follow."""

    namespace: str = "hami-system"
    name: str = "hami-scheduler"
    look_seconds: float = 0.5
    """How often the Lease is read."""


class ForwarderSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the process."""

    log: LogSettings = LogSettings()
    kube: KubeSettings = KubeSettings()
    lease: LeaseSettings = LeaseSettings()
    listen: HttpSettings = HttpSettings(port=9397)
    """Where connections are taken."""
    observation: HttpSettings = HttpSettings(port=9400)
    """Where /healthz, /readyz and /metrics are. Ready: a leader is known."""
    addresses: dict[str, str] = {}
    """`host:port` by the name of the replica, which is the holder's identity without its uuid."""

    def faults(self) -> Iterator[tuple[str, str]]:
        """What is wrong across groups."""
        if not self.addresses:
            yield "addresses", "name at least one replica"
        for name, address in self.addresses.items():
            if not address.rpartition(":")[2].isdigit():
                yield "addresses", f"{name}: {address!r} is not host:port"
        if self.lease.look_seconds <= 0:
            yield "lease.look_seconds", "must be positive"


async def build(settings: ForwarderSettings, stack: AsyncExitStack) -> Sequence[RootTask]:
    """All objects of the process."""
    registry, clock = CollectorRegistry(), SystemClock()
    client = await KubeClient.connect(
        settings.kube, metrics=ChassisMetrics(registry), clock=clock, user_agent="leader-forwarder"
    )
    stack.push_async_callback(client.close)
    holder = LeaseHolder(
        client,
        namespace=settings.lease.namespace,
        name=settings.lease.name,
        addresses=settings.addresses,
        look_seconds=settings.lease.look_seconds,
        clock=clock,
    )
    forwarder = Forwarder(leader=lambda: holder.address, leader_known=holder.known)
    holder.on_change = forwarder.close_connections
    observed = new_app()
    add_observation_routes(
        observed, registry=registry, ready={"listening": forwarder.listening.is_set, "leader": holder.known.is_set}
    )
    observation = HttpServer(observed, settings.observation, name="observation")
    listen = settings.listen
    return [
        RootTask("connections", lambda: forwarder.run(listen.host, listen.port), Stage.INTAKE),
        RootTask("lease", holder.run, Stage.SOURCES),
        RootTask("observation", observation.run, Stage.OBSERVATION),
    ]


def main() -> None:
    """Entry point."""
    settings = settings_from_command_line(ForwarderSettings, program="leader-forwarder")
    configure_logging(settings.log, service="leader-forwarder")
    raise SystemExit(run_process(lambda stack: build(settings, stack)))


if __name__ == "__main__":
    main()
