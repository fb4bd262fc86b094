"""The values under HAMi's metric names, as HAMi's monitor computes them: percentages, sums over processes, no bounds.

Two things are ours: init containers have series like all others, and pods that have finished have none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from hami_model import keys

from hami_monitor.core import catalogue
from hami_monitor.core.container_folder import FolderOwner
from hami_monitor.core.host import HostCard
from hami_monitor.core.mig import allocations_by_container
from hami_monitor.core.pods import MonitoredPod
from hami_monitor.core.region import Region, RegionCard
from hami_monitor.core.region_layouts import CARD_MAX
from hami_monitor.core.sample import Sample
from hami_monitor.core.series import Series

ZONE: Final = "vGPU"
_LABEL_BYTES: Final = 40
_CARD_ID: Final = re.compile(rb"(GPU|MIG)-[0-9A-Za-z-]+\0*")
"""With the zeros that HAMi's label has at the end of a short one."""
_UINT64: Final = (1 << 64) - 1


def hami_series(sample: Sample, *, version: str, legacy: bool) -> Iterator[Series]:
    """With `legacy` also the names that HAMi serves behind a flag of its own."""
    yield catalogue.HAMI_BUILD, (version, "", "", "", "", ""), 1
    for card in sample.cards:
        yield from _host(sample.node, card.host, legacy=legacy)
    regions = {folder.owner: folder.region for folder in sample.folders}
    for pod in sample.pods:
        if pod.is_finished or pod.labels.get(keys.ASSIGNED_NODE) != sample.node:
            continue
        for container in pod.containers:
            region = regions.get(FolderOwner(pod_uid=pod.kubelet_uid, container=container.name))
            if region is not None and not container.has_ended:
                yield from _container(pod, container.name, region, sample.at_seconds, legacy=legacy)
        yield from _mig(pod, legacy=legacy)


def _host(node: str, card: HostCard, *, legacy: bool) -> Iterator[Series]:
    labels = (node, str(card.index), card.id, f"NVIDIA-{card.model}", ZONE)
    legacy_labels = (node, str(card.index), card.id, f"NVIDIA-{card.model}", ZONE)
    if card.memory_used_bytes is not None:
        yield catalogue.HAMI_HOST_MEMORY_USED, labels, card.memory_used_bytes
        if legacy:
            yield catalogue.LEGACY_HOST_MEMORY, legacy_labels, card.memory_used_bytes
    if card.utilisation_percent is not None:
        yield catalogue.HAMI_HOST_UTILISATION, labels, card.utilisation_percent
        if legacy:
            yield catalogue.LEGACY_HOST_UTILISATION, legacy_labels, card.utilisation_percent
    if card.memory_controller_percent is not None:
        yield catalogue.HAMI_HOST_MEMORY_CONTROLLER, labels[1:], card.memory_controller_percent


def _container(
    pod: MonitoredPod, container: str, region: Region, at_seconds: float, *, legacy: bool
) -> Iterator[Series]:
    for card in region.cards[: min(region.device_count, CARD_MAX)]:
        if not card.is_named:
            continue
        raw = card.uuid[:_LABEL_BYTES]
        if not _CARD_ID.fullmatch(raw):
            continue  # a container may write any text there
        uuid = raw.decode()
        labels = (pod.ref.namespace, pod.ref.name, container, str(card.index), uuid, ZONE)
        used = card.used
        yield catalogue.HAMI_MEMORY_USED, labels, used.total
        yield catalogue.HAMI_MEMORY_LIMIT, labels, card.memory_limit_bytes
        yield catalogue.HAMI_MEMORY, labels, used.total
        yield catalogue.HAMI_UTILISATION, labels, card.utilisation_percent
        yield catalogue.HAMI_CONTEXT, labels, used.context
        yield catalogue.HAMI_MODULE, labels, used.module
        yield catalogue.HAMI_BUFFER, labels, used.data
        elapsed = max(at_seconds - region.last_kernel_time_seconds, 0.0)
        has_launched = region.last_kernel_time_seconds > 0
        if has_launched:
            yield catalogue.HAMI_LAST_KERNEL, labels, elapsed
        if legacy:
            yield from _legacy_container(labels, card, elapsed if has_launched else None)


def _legacy_container(labels: tuple[str, ...], card: RegionCard, elapsed: float | None) -> Iterator[Series]:
    used = card.used
    rest = (used.total - used.context - used.module - used.data) & _UINT64
    parts = tuple(str(part) for part in (used.context, used.module, used.data, rest))
    yield catalogue.LEGACY_MEMORY_USED, labels, used.total
    yield catalogue.LEGACY_MEMORY_LIMIT, labels, card.memory_limit_bytes
    yield catalogue.LEGACY_MEMORY, (*labels[:5], *parts, ZONE), used.total
    yield catalogue.LEGACY_UTILISATION, labels, card.utilisation_percent
    if elapsed is not None:
        yield catalogue.LEGACY_LAST_KERNEL, labels, elapsed


def _mig(pod: MonitoredPod, *, legacy: bool) -> Iterator[Series]:
    for container, allocation in allocations_by_container(pod):
        instance = allocation.instance
        if instance is None:
            continue
        labels = (pod.ref.namespace, pod.ref.name, container.name, str(allocation.position), str(allocation.card_id))
        details = (instance.uuid, allocation.profile, str(instance.gpu_instance), str(instance.compute_instance))
        yield catalogue.HAMI_MIG, (*labels, *details, ZONE), 1
        if legacy:
            yield catalogue.LEGACY_MIG, (*labels, str(instance.gpu_instance), ZONE), 1
