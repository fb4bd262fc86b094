"""The values of our own metrics, from a sample."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hami_model.metric_spec import MetricSpec

from hami_monitor.core import catalogue
from hami_monitor.core.card_users import KINDS
from hami_monitor.core.host import CLOCK_LIMITS, HostCard, HostInstance, HostProcess
from hami_monitor.core.sample import CardUse, Sample, SliceUse

Series = tuple[MetricSpec, tuple[str, ...], float]
"""Metric, label values in the order of its label names, value."""

FOLDER_STATES = ("read", "no-region", "unreadable", "unknown-pod", "ended")


def own_series(sample: Sample) -> Iterator[Series]:
    """What is not known has no series."""
    for use in sample.slices:
        yield from _slice(sample.node, use)
    for (pod, container, card_id, reason), count in sample.enforcement.counts().items():
        labels = (sample.node, pod.namespace, pod.name, container, card_id, reason)
        yield catalogue.SLICE_NOT_ENFORCED, labels, count
    for card in sample.cards:
        yield from _card(sample.node, card)
    for state in FOLDER_STATES:
        yield catalogue.FOLDERS, (state,), sample.folder_states.get(state, 0)
    yield catalogue.DRIVER_UP, (), 0 if sample.host_problem else 1
    yield catalogue.LAST_SAMPLE, (), sample.at_seconds


def _slice(node: str, use: SliceUse) -> Iterator[Series]:
    labels = (node, use.pod.namespace, use.pod.name, use.container, use.card_id)
    yield catalogue.SLICE_MEMORY_PROMISED, labels, use.memory_promised_bytes
    yield catalogue.SLICE_CORES_PROMISED, labels, use.cores_promised_percent / 100
    if use.enforced_by:
        yield catalogue.SLICE_INFO, (*labels, use.enforced_by), 1
    if use.memory_used_bytes is not None:
        yield catalogue.SLICE_MEMORY_USED, labels, use.memory_used_bytes
    if use.memory is not None:
        parts = {"context": use.memory.context, "module": use.memory.module, "data": use.memory.data}
        for part, used in parts.items():
            yield catalogue.SLICE_MEMORY_PARTS, (*labels, part), used
    if use.memory_limit_bytes is not None:
        yield catalogue.SLICE_MEMORY_LIMIT, labels, use.memory_limit_bytes
    if use.cores_used_percent is not None:
        yield catalogue.SLICE_CORES_USED, labels, use.cores_used_percent / 100
    if use.processes is not None:
        yield catalogue.SLICE_PROCESSES, labels, use.processes
    if use.last_launch_at_seconds is not None:
        yield catalogue.SLICE_LAST_LAUNCH, labels, use.last_launch_at_seconds


def _card(node: str, use: CardUse) -> Iterator[Series]:
    host = use.host
    labels = (node, host.id, str(host.index))
    yield catalogue.CARD_INFO, (*labels, host.model), 1
    yield catalogue.CARD_MEMORY_PROMISED, labels, use.memory_promised_bytes
    yield catalogue.CARD_CORES_PROMISED, labels, use.cores_promised_percent / 100
    yield catalogue.CARD_PODS, labels, len(use.pods)
    yield from _measured(labels, host)
    for xid, count in sorted(host.xids.items()):
        yield catalogue.CARD_XIDS, (*labels, str(xid)), count
    for limit in CLOCK_LIMITS.values() if host.clock_limits is not None else ():
        yield catalogue.CARD_CLOCK_LIMITED, (*labels, limit), float(limit in (host.clock_limits or ()))
    for instance in host.instances:
        yield from _instance(labels, instance)
    if host.processes is not None:
        yield from _processes(labels, use, host.processes)


def _measured(labels: tuple[str, ...], host: HostCard) -> Iterator[Series]:
    known: tuple[tuple[MetricSpec, tuple[str, ...], int | None, float], ...] = (
        (catalogue.CARD_MEMORY, (), host.memory_total_bytes, 1),
        (catalogue.CARD_MEMORY_USED, (), host.memory_used_bytes, 1),
        (catalogue.CARD_UTILISATION, (), host.utilisation_percent, 1 / 100),
        (catalogue.CARD_MEMORY_CONTROLLER, (), host.memory_controller_percent, 1 / 100),
        (catalogue.CARD_TEMPERATURE, (), host.temperature_celsius, 1),
        (catalogue.CARD_POWER, (), host.power_milliwatts, 1 / 1000),
        (catalogue.CARD_POWER_LIMIT, (), host.power_limit_milliwatts, 1 / 1000),
        (catalogue.CARD_CLOCK, ("sm",), host.sm_clock_megahertz, 1e6),
        (catalogue.CARD_CLOCK, ("memory",), host.memory_clock_megahertz, 1e6),
        (catalogue.CARD_ECC_ERRORS, ("corrected",), host.ecc_corrected, 1),
        (catalogue.CARD_ECC_ERRORS, ("uncorrected",), host.ecc_uncorrected, 1),
    )
    for spec, more, value, unit in known:
        if value is not None:
            yield spec, (*labels, *more), value * unit


def _instance(labels: tuple[str, ...], instance: HostInstance) -> Iterator[Series]:
    numbers = ("" if found is None else str(found) for found in (instance.gpu_instance, instance.compute_instance))
    yield catalogue.INSTANCE_INFO, (*labels, instance.id, instance.profile, *numbers), 1
    if instance.memory_total_bytes is not None:
        yield catalogue.INSTANCE_MEMORY, (*labels, instance.id), instance.memory_total_bytes
    if instance.memory_used_bytes is not None:
        yield catalogue.INSTANCE_MEMORY_USED, (*labels, instance.id), instance.memory_used_bytes
    for xid, count in sorted(instance.xids.items()):
        yield catalogue.INSTANCE_XIDS, (*labels, instance.id, str(xid)), count


def _processes(labels: tuple[str, ...], use: CardUse, processes: Iterable[HostProcess]) -> Iterator[Series]:
    processes = tuple(processes)
    for kind in KINDS:
        of_kind = [process for process in processes if use.users[process.pid].kind == kind]
        yield catalogue.CARD_PROCESSES, (*labels, kind), len(of_kind)
        known = [process.memory_used_bytes for process in of_kind if process.memory_used_bytes is not None]
        if len(known) == len(of_kind):
            yield catalogue.CARD_PROCESS_MEMORY, (*labels, kind), sum(known)
