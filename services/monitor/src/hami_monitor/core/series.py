"""The values of our own metrics, from a sample."""

from __future__ import annotations

from collections.abc import Iterator

from hami_model.metric_spec import MetricSpec

from hami_monitor.core import catalogue
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
    if use.memory is not None:
        yield catalogue.SLICE_MEMORY_USED, labels, use.memory.total
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
    known = (
        (catalogue.CARD_MEMORY, host.memory_total_bytes, 1),
        (catalogue.CARD_MEMORY_USED, host.memory_used_bytes, 1),
        (catalogue.CARD_UTILISATION, host.utilisation_percent, 100),
        (catalogue.CARD_MEMORY_CONTROLLER, host.memory_controller_percent, 100),
        (catalogue.CARD_TEMPERATURE, host.temperature_celsius, 1),
        (catalogue.CARD_POWER, host.power_milliwatts, 1000),
    )
    for spec, value, divisor in known:
        if value is not None:
            yield spec, labels, value / divisor
    if host.processes is not None:
        yield catalogue.CARD_PROCESSES, (*labels, "pod"), len(use.users)
        yield catalogue.CARD_PROCESSES, (*labels, "other"), len(host.processes) - len(use.users)
