"""Brings a local cluster up, step by step, each with a line of progress."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from pathlib import Path

import msgspec

from hami_sim.binaries import Binaries, obtain_binaries
from hami_sim.cluster.artefacts import KUBERNETES_OBJECTS, find_artefacts
from hami_sim.cluster.cards_arrived import wait_for_cards
from hami_sim.cluster.driver_description import description
from hami_sim.cluster.errors import ClusterError
from hami_sim.cluster.layout import ClusterLayout
from hami_sim.cluster.local_cluster import LocalCluster, Progress, say_nothing
from hami_sim.cluster.objects import apply_objects, identities
from hami_sim.cluster.profile import ClusterProfile
from hami_sim.cluster.record import SimRecord, choose_ports, load_sim_record, new_record, store_sim_record
from hami_sim.cluster.registration import registration_objects
from hami_sim.cluster.roles import wait_until_roles_count
from hami_sim.cluster.service_runner import ServiceRunner
from hami_sim.cluster.service_spec import ServiceSpec
from hami_sim.cluster.services import NAMESPACE, extender_url, kubeconfig_of, webhook_url
from hami_sim.controlplane import ControlPlane, ControlPlaneSettings
from hami_sim.controlplane.layout import write_private
from hami_sim.loopback_ports import LOOPBACK, are_free

ACCOUNTS = ("hami-scheduler", "hami-webhook", "hami-node-agent", "hami-monitor")
CONTROL_PLANE_PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
CARDS_TIMEOUT_SECONDS = 300.0
LOG_LINES_SHOWN = 6
# More would only make each other late on a laptop.
STARTED_AT_ONCE = 8


async def start_cluster(
    state_directory: Path, profile: ClusterProfile, *, progress: Progress = say_nothing
) -> LocalCluster:
    """Starts what does not run yet and returns when every card can be asked for.

    A directory of an earlier cluster of the same profile goes on with its data. Where nothing ran before, an error ends
    what was started; logs stay. Raises ClusterError, BinariesUnavailableError, ControlPlaneError, ProcessError,
    NatsServerUnavailableError.
    """
    artefacts = find_artefacts()
    binaries = obtain_binaries(progress)
    layout = ClusterLayout(state_directory)
    layout.create_directories()
    record = _record(layout, profile)
    store_sim_record(layout, record)
    cluster = LocalCluster(layout, record, artefacts)
    ran_before = bool(cluster.programs())
    try:
        await _bring_up(cluster, binaries, progress)
    except BaseException:
        if not ran_before:
            await cluster.end_programs()
        raise
    return cluster


async def _bring_up(cluster: LocalCluster, binaries: Binaries, progress: Progress) -> None:
    stages = [list(specs) for _, specs in itertools.groupby(cluster.specs.values(), key=lambda spec: spec.stage)]
    await _start_control_plane(cluster, binaries, progress)
    await _prepare(cluster, progress)
    for specs in stages:
        await _start_stage(cluster, specs, progress)
        if any(spec.name == "webhook" for spec in specs):
            await _register_webhook(cluster, progress)
    progress("waiting until all cards can be asked for")
    async with cluster.client() as client:
        missing = await wait_for_cards(client, cluster.nats_url, cluster.plans, timeout_seconds=CARDS_TIMEOUT_SECONDS)
    if missing is not None:
        raise ClusterError(f"after {CARDS_TIMEOUT_SECONDS:.0f} s {missing}.\n{_log_tails(cluster)}")


def _record(layout: ClusterLayout, profile: ClusterProfile) -> SimRecord:
    """What the directory remembers, or a new cluster. Raises ClusterError when it holds one of another profile."""
    known = load_sim_record(layout)
    if known is None:
        return new_record(layout, profile)
    if known.profile != profile:
        raise ClusterError(
            f"{layout.root} holds a cluster of another profile. `hami-sim down --state {layout.root}` ends it; "
            "--state puts another one beside it"
        )
    runner = ServiceRunner(layout)
    if any(runner.is_alive(file.stem) for file in layout.run.glob("*.json")) or are_free(list(known.ports.values())):
        return known
    return msgspec.structs.replace(known, ports=choose_ports(profile))


async def _start_control_plane(cluster: LocalCluster, binaries: Binaries, progress: Progress) -> None:
    layout, controllers = cluster.layout, cluster.record.profile.controllers
    running = cluster.control_plane.programs() if layout.record_file.exists() else {}
    if not running:
        settings = ControlPlaneSettings(extender_url=extender_url(cluster.record), controllers=controllers)
        await ControlPlane.start(layout.root, binaries, settings, progress=progress)
        return
    for name in CONTROL_PLANE_PROGRAMS:
        if name not in running and (controllers or name != "kube-controller-manager"):
            progress(f"starting {name}")
            await cluster.control_plane.restart(name)


async def _prepare(cluster: LocalCluster, progress: Progress) -> None:
    """Accounts, roles, kubeconfigs, certificates, the nodes' folders."""
    progress("applying accounts and roles, making certificates")
    control_plane = cluster.control_plane
    await control_plane.create_namespace(NAMESPACE)
    async with control_plane.client() as client:
        accounts_and_roles = identities(KUBERNETES_OBJECTS)
        await apply_objects(client, accounts_and_roles)
        await wait_until_roles_count(client, accounts_and_roles)
    for account in ACCOUNTS:
        path = kubeconfig_of(cluster.layout, account)
        await control_plane.write_service_account_kubeconfig(path, NAMESPACE, account)
    for name in ("webhook", "kubelet"):
        control_plane.issue_serving_certificate(name, (LOOPBACK, "localhost"))
    for plan in cluster.plans:
        place = cluster.node_layout(plan.name)
        place.create_directories()
        write_private(place.driver, msgspec.json.format(msgspec.json.encode(description(plan))))


async def _start_stage(cluster: LocalCluster, specs: Iterable[ServiceSpec], progress: Progress) -> None:
    waiting: list[ServiceSpec] = []
    for spec in specs:
        if not cluster.runner.is_alive(spec.name):
            waiting.append(spec)
        elif edited := cluster.runner.edited_while_running(spec):
            progress(edited)
    if not waiting:
        return
    progress(f"starting {', '.join(spec.name for spec in waiting)}")
    async with cluster.client() as client:
        for first in range(0, len(waiting), STARTED_AT_ONCE):
            started = waiting[first : first + STARTED_AT_ONCE]
            for spec in started:
                cluster.runner.launch(spec, progress)
            results = await asyncio.gather(
                *(cluster.runner.wait_ready(spec, client) for spec in started), return_exceptions=True
            )
            for result in results:
                if isinstance(result, BaseException):
                    raise result


async def _register_webhook(cluster: LocalCluster, progress: Progress) -> None:
    progress("registering the webhook")
    documents = await registration_objects(
        url=webhook_url(cluster.record), ca=cluster.control_plane.ca_certificate, namespace=NAMESPACE
    )
    async with cluster.client() as client:
        await apply_objects(client, documents)


def _log_tails(cluster: LocalCluster) -> str:
    suspects = [name for name, spec in cluster.specs.items() if spec.node or name.startswith("scheduler")]
    programs = [program for name in suspects if (program := cluster.runner.program(name)) is not None]
    return "\n".join(f"The end of {program.log_path}:\n{program.log_tail(LOG_LINES_SHOWN)}" for program in programs)
