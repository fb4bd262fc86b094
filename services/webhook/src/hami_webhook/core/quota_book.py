"""The running account of every namespace: limits of its quotas, effective usage of its live pods.

Fed by informers in any order, with repetitions and gaps; what a pod or quota counts for is remembered, so that taking
it away takes away exactly that.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from hami_model import allocations, kube, quota, usage
from hami_model.cards import shapes
from hami_model.device_config import DeviceConfig

from hami_webhook.core.quota import Amount, NamespaceQuota


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """What one live pod uses, by vendor word: all that is kept of a pod."""

    uid: str
    namespace: str
    used: dict[str, Amount]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """All that is kept of a ResourceQuota."""

    namespace: str
    name: str
    hard: dict[str, str]


def holding(pod: kube.Pod, config: DeviceConfig) -> Holding | None:
    """What the pod counts for; None when it holds nothing: not bound, ended, or without cards."""
    if not pod.assigned_node or pod.is_finished:
        return None
    used: dict[str, Amount] = {}
    for settings in config.vendors:
        slots = allocations.read(pod, settings).slots
        by_card = usage.effective(slots, shapes(pod), init_done=pod.one_shot_init_done)
        if by_card:
            used[settings.vendor.word] = Amount(
                memory_mib=sum(card.memory_mib for card in by_card.values()),
                cores_percent=sum(card.cores_percent for card in by_card.values()),
            )
    return Holding(uid=pod.uid, namespace=pod.metadata.namespace, used=used) if used else None


def limits(found: kube.ResourceQuota, config: DeviceConfig) -> Limits | None:
    """The limits on cards in a quota; None when it has none."""
    tracked = {f"limits.{name}" for name in config.managed_resources}
    hard = {key: value for key, value in found.hard.items() if key in tracked}
    if not hard:
        return None
    return Limits(namespace=found.metadata.namespace, name=found.metadata.name, hard=hard)


class QuotaBook:
    """Accounts of all namespaces. Not safe for several threads."""

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        self._holdings: dict[str, Holding] = {}
        self._used: dict[str, dict[str, Amount]] = {}
        self._limits: dict[str, dict[str, Limits]] = {}

    def put_holding(self, new: Holding) -> None:
        """Counts a pod, in place of what it counted for before."""
        self.drop_holding(new.uid)
        self._holdings[new.uid] = new
        account = self._used.setdefault(new.namespace, {})
        for word, amount in new.used.items():
            account[word] = account.get(word, Amount()) + amount

    def drop_holding(self, uid: str) -> None:
        """The pod counts for nothing any more; a pod that is not known changes nothing."""
        last = self._holdings.pop(uid, None)
        if last is None:
            return
        account = self._used[last.namespace]
        for word, amount in last.used.items():
            account[word] = account[word] - amount
        if all(amount == Amount() for amount in account.values()):
            del self._used[last.namespace]

    def put_limits(self, new: Limits) -> None:
        """Sets the limits of one quota object, in place of its earlier ones."""
        self._limits.setdefault(new.namespace, {})[new.name] = new

    def drop_limits(self, last: Limits) -> None:
        """The quota object is gone."""
        of_namespace = self._limits.get(last.namespace, {})
        of_namespace.pop(last.name, None)
        if not of_namespace:
            self._limits.pop(last.namespace, None)

    def view(self, namespace: str) -> NamespaceQuota:
        """The account of a namespace now."""
        objects = self._limits.get(namespace)
        if not objects:
            return NamespaceQuota()
        return NamespaceQuota(
            limits=quota.limits(
                (kube.ResourceQuota(spec=kube.QuotaSpec(hard=dict(found.hard))) for found in objects.values()),
                self._config,
            ),
            used=dict(self._used.get(namespace, {})),
        )


def book_of(
    config: DeviceConfig, *, pods: Iterable[kube.Pod] = (), quotas: Iterable[kube.ResourceQuota] = ()
) -> QuotaBook:
    """The book after exactly these objects were seen."""
    book = QuotaBook(config)
    for pod in pods:
        held = holding(pod, config)
        if held is not None:
            book.put_holding(held)
    for found in quotas:
        kept = limits(found, config)
        if kept is not None:
            book.put_limits(kept)
    return book
