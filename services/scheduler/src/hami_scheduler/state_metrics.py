"""Gauges that are read from the ledger when they are scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from hami_model import cards, kube
from hami_model.metric_spec import MetricSpec, Names
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from hami_scheduler.core import holdings
from hami_scheduler.core.ledger import Ledger

_MIB: Final = 1 << 20
_CARD: Final = ("node", "card", "vendor", "model")
_NAMESPACE: Final = ("namespace", "vendor")
_ZONE: Final = "vGPU"


def _gauge(name: str, text: str, *labels: str, names: Names = "ours") -> MetricSpec:
    return MetricSpec(name=name, help=text, labels=labels, names=names)


def _hami(name: str, text: str, *labels: str) -> MetricSpec:
    return _gauge(name, text, *labels, names="hami")


NODES: Final = _gauge("hami_scheduler_nodes", "Nodes that have registered cards.")
BOUND_PODS: Final = _gauge("hami_scheduler_bound_pods", "Bound pods in the book.")
RESERVATIONS: Final = _gauge("hami_scheduler_reservations", "Reservations that wait for their bind.")
REJECTED_PODS: Final = _gauge("hami_scheduler_rejected_pods", "Pods that the last filter call found no node for.")
CARD_HEALTHY: Final = _gauge(
    "hami_scheduler_card_healthy", "1 while the card is healthy, not cordoned, and its entry can be read.", *_CARD
)
CARD_MEMORY: Final = _gauge("hami_scheduler_card_memory_bytes", "Memory that the card offers.", *_CARD)
CARD_MEMORY_USED: Final = _gauge(
    "hami_scheduler_card_memory_allocated_bytes", "Memory of the card that is promised.", *_CARD
)
CARD_CORES_USED: Final = _gauge(
    "hami_scheduler_card_cores_allocated_ratio", "Part of the card's cores that is promised, 0 to 1.", *_CARD
)
CARD_SLOTS: Final = _gauge("hami_scheduler_card_slots", "How many containers may share the card.", *_CARD)
CARD_SLOTS_USED: Final = _gauge("hami_scheduler_card_slots_allocated", "Slots of the card that are taken.", *_CARD)
QUOTA_MEMORY: Final = _gauge(
    "hami_scheduler_quota_memory_limit_bytes", "Least limit of the namespace's ResourceQuotas.", *_NAMESPACE
)
QUOTA_MEMORY_USED: Final = _gauge(
    "hami_scheduler_quota_memory_used_bytes", "Memory that the namespace's live pods hold.", *_NAMESPACE
)
QUOTA_CORES: Final = _gauge(
    "hami_scheduler_quota_cores_limit_cards", "Least limit of cores, in whole cards.", *_NAMESPACE
)
QUOTA_CORES_USED: Final = _gauge(
    "hami_scheduler_quota_cores_used_cards", "Cores that the namespace's live pods hold, in whole cards.", *_NAMESPACE
)

READ: Final = (
    NODES,
    BOUND_PODS,
    RESERVATIONS,
    REJECTED_PODS,
    CARD_HEALTHY,
    CARD_MEMORY,
    CARD_MEMORY_USED,
    CARD_CORES_USED,
    CARD_SLOTS,
    CARD_SLOTS_USED,
    QUOTA_MEMORY,
    QUOTA_MEMORY_USED,
    QUOTA_CORES,
    QUOTA_CORES_USED,
)

_HAMI_CARD: Final = ("zone", "node", "device_uuid", "device_index", "device_type")
_HAMI_CARD_CORES: Final = ("zone", "node", "device_uuid", "device_index", "device_cores", "device_type")
_HAMI_POD: Final = ("zone", "namespace", "node", "pod", "container_index", "device_uuid")
_HAMI_QUOTA: Final = ("zone", "namespace", "quota_name")
HAMI_MEMORY_LIMIT: Final = _hami("hami_gpu_memory_limit_bytes", "As HAMi: memory of the card.", *_HAMI_CARD)
HAMI_CORE_LIMIT: Final = _hami("hami_gpu_core_limit_ratio", "As HAMi: cores of the card, percent.", *_HAMI_CARD)
HAMI_MEMORY: Final = _hami("hami_gpu_memory_allocated_bytes", "As HAMi: memory promised.", *_HAMI_CARD_CORES)
HAMI_SHARED: Final = _hami("hami_gpu_shared_count", "As HAMi: slots taken.", *_HAMI_CARD)
HAMI_CORES: Final = _hami("hami_gpu_core_allocated_ratio", "As HAMi: cores promised, percent.", *_HAMI_CARD)
HAMI_OVERVIEW: Final = _hami(
    "hami_node_gpu_overview",
    "As HAMi: memory promised; the label device_memory_limit is MiB.",
    "zone",
    "node",
    "device_uuid",
    "device_index",
    "device_cores",
    "device_memory_limit",
    "device_type",
)
HAMI_MEMORY_RATIO: Final = _hami(
    "hami_node_gpu_memory_allocated_ratio", "As HAMi: part of the memory promised, 0 to 1.", *_HAMI_CARD
)
HAMI_QUOTA_USED: Final = _hami("hami_resource_quota_used", "As HAMi: used, in units.", *_HAMI_QUOTA, "limit")
HAMI_QUOTA_LIMIT: Final = _hami("hami_resource_quota_limit", "As HAMi: limit, in units.", *_HAMI_QUOTA)
HAMI_POD_MEMORY: Final = _hami("hami_vgpu_memory_allocated_bytes", "As HAMi: memory of a container.", *_HAMI_POD)
HAMI_POD_CORES: Final = _hami("hami_vgpu_core_allocated_ratio", "As HAMi: cores of a container, percent.", *_HAMI_POD)

HAMI_READ: Final = (
    HAMI_MEMORY_LIMIT,
    HAMI_CORE_LIMIT,
    HAMI_MEMORY,
    HAMI_SHARED,
    HAMI_CORES,
    HAMI_OVERVIEW,
    HAMI_MEMORY_RATIO,
    HAMI_QUOTA_USED,
    HAMI_QUOTA_LIMIT,
    HAMI_POD_MEMORY,
    HAMI_POD_CORES,
)


class _Families:
    """The families of one scrape, by their specification."""

    def __init__(self, specs: Iterable[MetricSpec]) -> None:
        self._by_name = {spec.name: GaugeMetricFamily(spec.name, spec.help, labels=spec.labels) for spec in specs}

    def add(self, spec: MetricSpec, labels: Iterable[object], value: float) -> None:
        self._by_name[spec.name].add_metric([str(label) for label in labels], value)

    def all(self) -> Iterator[GaugeMetricFamily]:
        return iter(self._by_name.values())


def _always() -> bool:
    """Of a process that is the only replica."""
    return True


class LedgerCollector(Collector):
    """Our names; nothing before the cluster was listed. With `per_card` false only sums: a series for each of 40,000
    cards takes seconds.

    Series of cards and namespaces come from the replica in charge alone: from two, sums over replicas count twice.
    """

    def __init__(
        self,
        ledger: Ledger,
        rejected: Callable[[], int],
        *,
        listed: Callable[[], bool] = _always,
        in_charge: Callable[[], bool] = _always,
        per_card: bool,
    ) -> None:
        self._ledger = ledger
        self._rejected = rejected
        self._listed = listed
        self._in_charge = in_charge
        self._per_card = per_card

    def collect(self) -> Iterator[GaugeMetricFamily]:
        ledger, found = self._ledger, _Families(READ)
        if not self._listed():
            return found.all()
        nodes = ledger.cluster.nodes()
        found.add(NODES, (), len(nodes))
        found.add(BOUND_PODS, (), len(ledger.bound_pods))
        found.add(RESERVATIONS, (), len(ledger.reservations))
        found.add(REJECTED_PODS, (), self._rejected())
        if not self._in_charge():
            return found.all()
        for node in sorted(nodes) if self._per_card else ():
            for card in ledger.cluster.node_cards(node):
                at = (node, card.card_id, card.vendor, card.model)
                found.add(CARD_HEALTHY, at, float(card.healthy and not (card.cordoned or card.blocked)))
                found.add(CARD_MEMORY, at, card.memory_mib * _MIB)
                found.add(CARD_MEMORY_USED, at, card.used_memory_mib * _MIB)
                found.add(CARD_CORES_USED, at, card.used_cores_percent / 100)
                found.add(CARD_SLOTS, at, card.slots)
                found.add(CARD_SLOTS_USED, at, card.used_slots)
        for namespace, by_vendor in sorted(ledger.quota_limits().items()):
            for vendor, limit in sorted(by_vendor.items()):
                memory, cores = ledger.cluster.quota_used(namespace, vendor)
                found.add(QUOTA_MEMORY_USED, (namespace, vendor), memory * _MIB)
                found.add(QUOTA_CORES_USED, (namespace, vendor), cores / 100)
                if limit.memory_mib is not None:
                    found.add(QUOTA_MEMORY, (namespace, vendor), limit.memory_mib * _MIB)
                if limit.cores_percent is not None:
                    found.add(QUOTA_CORES, (namespace, vendor), limit.cores_percent / 100)
        return found.all()


class HamiNamesCollector(Collector):
    """The same state under HAMi's names, with its units and labels; from the replica in charge alone."""

    def __init__(
        self, ledger: Ledger, pods: Callable[[], Iterable[kube.Pod]], *, in_charge: Callable[[], bool] = _always
    ) -> None:
        self._ledger = ledger
        self._pods = pods
        self._in_charge = in_charge

    def collect(self) -> Iterator[GaugeMetricFamily]:
        found = _Families(HAMI_READ)
        if not self._in_charge():
            return found.all()
        for node in sorted(self._ledger.cluster.nodes()):
            self._cards(found, node)
        self._quotas(found)
        for pod in self._pods():
            if pod.assigned_node:
                _holdings(found, pod, holdings.read(pod, self._ledger.config).slots)
        return found.all()

    def _cards(self, found: _Families, node: str) -> None:
        for card in self._ledger.cluster.node_cards(node):
            at = (_ZONE, node, card.card_id, card.index, card.model)
            cores_at = (_ZONE, node, card.card_id, card.index, card.cores_percent, card.model)
            used_bytes = card.used_memory_mib * _MIB
            found.add(HAMI_MEMORY_LIMIT, at, card.memory_mib * _MIB)
            found.add(HAMI_CORE_LIMIT, at, card.cores_percent)
            found.add(HAMI_MEMORY, cores_at, used_bytes)
            found.add(HAMI_SHARED, at, card.used_slots)
            found.add(HAMI_CORES, at, card.used_cores_percent)
            overview = (_ZONE, node, card.card_id, card.index, card.cores_percent, card.memory_mib, card.model)
            found.add(HAMI_OVERVIEW, overview, used_bytes)
            if card.memory_mib > 0:
                found.add(HAMI_MEMORY_RATIO, at, card.used_memory_mib / card.memory_mib)

    def _quotas(self, found: _Families) -> None:
        for namespace, by_vendor in sorted(self._ledger.quota_limits().items()):
            for settings in self._ledger.config.vendors:
                limit = by_vendor.get(settings.vendor.word)
                if limit is None:
                    continue
                memory, cores = self._ledger.cluster.quota_used(namespace, settings.vendor.word)
                for name, used, most in (
                    (settings.resources.memory, memory, limit.memory_mib),
                    (settings.resources.cores, cores, limit.cores_percent),
                ):
                    found.add(HAMI_QUOTA_USED, (_ZONE, namespace, name, most or 0), used)
                    if most is not None:
                        found.add(HAMI_QUOTA_LIMIT, (_ZONE, namespace, name), most)


def _holdings(found: _Families, pod: kube.Pod, slots: cards.Slots) -> None:
    for position, slot in enumerate(slots):
        for held in slot:
            at = (
                _ZONE,
                pod.metadata.namespace,
                pod.assigned_node,
                pod.metadata.name,
                position,
                held.card_id,
            )
            found.add(HAMI_POD_MEMORY, at, held.memory_mib * _MIB)
            found.add(HAMI_POD_CORES, at, held.cores_percent)
