"""Filter calls that carry whole Node objects: would this pod fit on nodes like these, were they empty?

Asked by programs that try out nodes which need not exist, such as the Cluster Autoscaler. The decision is made on a
cluster built of the request's nodes alone and thrown away: nothing is booked, written or announced. Of the kept state
only the quota of the pod's namespace counts, with what its pods use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

import hami_engine as engine
import msgspec
from hami_model import keys, kube, pair_scores, quota, register, requests
from hami_model.cards import Card
from hami_model.device_config import DeviceConfig
from hami_model.errors import InvalidRequestError, MalformedAnnotation
from hami_model.requests import PodRequest
from hami_model.vendors import VendorDescriptor

from hami_scheduler.core import engine_values, inventory
from hami_scheduler.core.ledger import Ledger
from hami_scheduler.core.records import Reservation

_REMEMBERED_MAX: Final = 8192
"""Annotations: some 10 MB where a node has eight cards."""
_ELSEWHERE: Final = "\n"
"""Holds what counts against the quota. No Kubernetes node can have this name."""
_OTHERS: Final = "\n"
"""UID under which the use of all other pods is booked."""


class SimulationAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a simulated filter call decided."""

    fitting: list[str] = []
    """Every node that would take the pod, in the order of the request; all of them when the pod asks for no card."""
    failed_nodes: dict[str, str] = {}
    """By node: why not now."""
    unresolvable_nodes: dict[str, str] = {}
    """By node: why never."""
    error: str | None = None
    """The call as a whole failed."""


class _Quota(msgspec.Struct, frozen=True):
    limits: Mapping[str, quota.QuotaLimits]
    used: Mapping[str, tuple[int, int]]
    """By vendor: memory in MiB and cores in percent, the pod's own reservation included."""
    reservation: Reservation | None


class _Offer(msgspec.Struct, frozen=True):
    """Cards of one annotation, as read and as the engine takes them."""

    cards: tuple[Card, ...] = ()
    engine_cards: tuple[engine.Card, ...] = ()


class ClusterMaker:
    """Makes clusters of Node objects alone, each to be decided on once.

    The same annotations come with every call: what was read of them is remembered. Safe from any thread.
    """

    def __init__(self, config: DeviceConfig, node_selector: Mapping[str, str]) -> None:
        self._config = config
        self._families = engine_values.families(config)
        self._node_selector = node_selector
        self._read = lru_cache(maxsize=_REMEMBERED_MAX)(self._decoded)
        self._read_scores = lru_cache(maxsize=_REMEMBERED_MAX)(self._decoded_scores)

    def cluster(self, nodes: Iterable[kube.Node]) -> engine.Cluster:
        """A node that names no card that can be read, or that is not selected, counts as unregistered."""
        cluster = engine.Cluster(families=self._families)
        for node in nodes:
            if any(node.labels.get(key) != value for key, value in self._node_selector.items()):
                continue
            cards = self._cards(node)
            if cards:
                cluster.set_node(node.name, cards, pair_scores=self._pair_scores(node))
        return cluster

    def _cards(self, node: kube.Node) -> list[engine.Card]:
        cordoned = inventory.cordoned(node.annotations.get(keys.CARD_CORDON))
        found: list[tuple[VendorDescriptor, _Offer]] = []
        for position, settings in enumerate(self._config.vendors):
            text = node.annotations.get(settings.vendor.register_key)
            if text is not None:
                offer = self._read(position, text, cordoned, inventory.shared_mode(node, settings))
                found.append((settings.vendor, offer))
        if len(found) > 1:
            offered = [(descriptor, card) for descriptor, offer in found for card in offer.cards]
            unique, shared = inventory.without_shared_ids(offered)
            if shared:
                return [engine_values.card(family, card, cordoned=card.id in cordoned) for family, card in unique]
        return [card for _, offer in found for card in offer.engine_cards]

    def _decoded(self, vendor: int, text: str, cordoned: frozenset[str], mode: str | None) -> _Offer:
        descriptor = self._config.vendors[vendor].vendor
        try:
            found = register.decode(descriptor, text)
        except MalformedAnnotation:
            return _Offer()
        in_mode = inventory.in_mode(found, mode)
        ready = tuple(engine_values.card(descriptor, card, cordoned=card.id in cordoned) for card in in_mode)
        return _Offer(in_mode, ready)

    def _pair_scores(self, node: kube.Node) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for position, settings in enumerate(self._config.vendors):
            text = node.annotations.get(settings.vendor.pair_scores_key)
            if text is not None:
                found |= {str(card_id): peers for card_id, peers in self._read_scores(position, text).items()}
        return found

    def _decoded_scores(self, vendor: int, text: str) -> dict[str, dict[str, int]]:
        descriptor = self._config.vendors[vendor].vendor
        scores, _ = pair_scores.read(descriptor, {descriptor.pair_scores_key: text})
        return {str(card_id): peers for card_id, peers in scores.items()}


class Simulation(msgspec.Struct, frozen=True):
    """A pod with what the decision reads of the kept state: `answer` may run beside changes of it."""

    pod: kube.Pod
    request: PodRequest | None
    problem: InvalidRequestError | MalformedAnnotation | None
    quota: _Quota
    maker: ClusterMaker

    def answer(self, nodes: Iterable[kube.Node]) -> SimulationAnswer:
        """Decides on these nodes. Health is what each card says of itself; handshakes are not looked at."""
        names = list(dict.fromkeys(node.name for node in nodes))
        if isinstance(self.problem, InvalidRequestError):
            return SimulationAnswer(unresolvable_nodes=dict.fromkeys(names, f"InvalidRequest: {self.problem}"))
        if self.request is None:
            return SimulationAnswer(error=str(self.problem))
        if not self.request.asks_for_cards:
            return SimulationAnswer(fitting=names)
        cluster = self.maker.cluster(nodes)
        self._set_quota(cluster)
        found = cluster.what_if(engine_values.pod_ask(self.request), names)
        if isinstance(found, engine.Rejection):
            return SimulationAnswer(failed_nodes=found.not_now(), unresolvable_nodes=found.never())
        scores = found.node_scores()
        return SimulationAnswer(fitting=[name for name in names if name in scores], failed_nodes=found.failed_nodes())

    def _set_quota(self, cluster: engine.Cluster) -> None:
        namespace = self.pod.metadata.namespace
        own = self.quota.reservation
        if own is not None:
            containers = engine_values.container_slices(own.shapes, own.slots)
            cluster.charge(uid=own.uid, namespace=namespace, node=_ELSEWHERE, containers=containers)
        others: list[engine.Slice] = []
        for vendor, (memory_mib, cores_percent) in self.quota.used.items():
            own_memory, own_cores = cluster.quota_used(namespace, vendor)
            others += _slices(vendor, memory_mib - own_memory, cores_percent - own_cores)
        cluster.charge(
            uid=_OTHERS,
            namespace=namespace,
            node=_ELSEWHERE,
            containers=[engine.ContainerSlices(kind="app", slices=others)],
        )
        for vendor, limits in self.quota.limits.items():
            cluster.set_quota(namespace, vendor, memory_mib=limits.memory_mib, cores_percent=limits.cores_percent)


def begin(ledger: Ledger, maker: ClusterMaker, pod: kube.Pod) -> Simulation:
    """Takes from the ledger what the decision needs."""
    request, problem = None, None
    try:
        request = requests.pod_request(pod, ledger.config, ledger.policies)
    except (InvalidRequestError, MalformedAnnotation) as error:
        problem = error
    namespace = pod.metadata.namespace
    limits = ledger.quota_limits().get(namespace, {})
    used = {vendor: ledger.cluster.quota_used(namespace, vendor) for vendor in limits}
    own = ledger.reservations.get(pod.uid)
    return Simulation(pod, request, problem, _Quota(limits, used, own), maker)


def _slices(vendor: str, memory_mib: int, cores_percent: int) -> Iterable[engine.Slice]:
    """As few as hold the amounts: one slice holds what one annotation can say, a sum may be more."""
    while True:
        memory, cores = min(memory_mib, requests.INT32_MAX), min(cores_percent, requests.INT32_MAX)
        yield engine.Slice(card_id=vendor, vendor=vendor, memory_mib=memory, cores_percent=cores)
        memory_mib, cores_percent = memory_mib - memory, cores_percent - cores
        if memory_mib <= 0 and cores_percent <= 0:
            return
