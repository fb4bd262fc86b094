"""Watches pods and ResourceQuotas, reduced at once to what the quota check needs."""

from __future__ import annotations

import asyncio

from hami_chassis.clock import Clock
from hami_chassis.errors import Permanent, Transient
from hami_chassis.kube import Informer, KubeClient
from hami_chassis.kube.resources import PODS, RESOURCE_QUOTAS
from hami_chassis.log import get_logger
from hami_chassis.metrics import ChassisMetrics
from hami_model import kube
from hami_model.device_config import DeviceConfig

from hami_webhook.core.quota import NamespaceQuota
from hami_webhook.core.quota_book import Holding, Limits, QuotaBook, book_of, holding, limits

log = get_logger("quota")

LIVE_BOUND_PODS = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""Field selector: other pods hold nothing. A pod that leaves the selection is delivered as deleted."""
_LOOK_SECONDS = 3.0
"""The API server waits for the review, 5 seconds at least."""
_LOOKS_AT_ONCE = 4


class QuotaInformers:
    """A QuotaSource. `pods` and `quotas` are to be run as root tasks."""

    def __init__(self, client: KubeClient, config: DeviceConfig, *, metrics: ChassisMetrics, clock: Clock) -> None:
        self._client = client
        self._config = config
        self._book = QuotaBook(config)
        self._looks = asyncio.Semaphore(_LOOKS_AT_ONCE)
        self.pods: Informer[kube.Pod, Holding] = Informer(
            client,
            PODS,
            into=kube.Pod,
            project=lambda pod: holding(pod, config),
            handler=_Holdings(self._book),
            metrics=metrics,
            clock=clock,
            field_selector=LIVE_BOUND_PODS,
        )
        self.quotas: Informer[kube.ResourceQuota, Limits] = Informer(
            client,
            RESOURCE_QUOTAS,
            into=kube.ResourceQuota,
            project=lambda found: limits(found, config),
            handler=_Limits(self._book),
            metrics=metrics,
            clock=clock,
        )

    @property
    def known(self) -> bool:
        """Whether both kinds have been listed completely."""
        return self.pods.synced.is_set() and self.quotas.synced.is_set()

    def view(self, namespace: str) -> NamespaceQuota | None:
        """The account of a namespace; None before both kinds have been listed."""
        return self._book.view(namespace) if self.known else None

    async def look(self, namespace: str) -> NamespaceQuota | None:
        """The account of a namespace by lists that began after this call; None where they are not answered in time."""
        try:
            async with asyncio.timeout(_LOOK_SECONDS), self._looks:
                pods = await self._client.list_all(
                    PODS, into=kube.Pod, namespace=namespace, field_selector=LIVE_BOUND_PODS
                )
                quotas = await self._client.list_all(RESOURCE_QUOTAS, into=kube.ResourceQuota, namespace=namespace)
        except (Transient, Permanent, TimeoutError) as error:
            log.warning("quota-not-looked-up", namespace=namespace, error=str(error))
            return None
        return book_of(self._config, pods=pods.items, quotas=quotas.items).view(namespace)


class _Holdings:
    def __init__(self, book: QuotaBook) -> None:
        self._book = book

    def added(self, new: Holding) -> None:
        self._book.put_holding(new)

    def modified(self, _old: Holding, new: Holding) -> None:
        self._book.put_holding(new)

    def deleted(self, last: Holding) -> None:
        self._book.drop_holding(last.uid)


class _Limits:
    def __init__(self, book: QuotaBook) -> None:
        self._book = book

    def added(self, new: Limits) -> None:
        self._book.put_limits(new)

    def modified(self, _old: Limits, new: Limits) -> None:
        self._book.put_limits(new)

    def deleted(self, last: Limits) -> None:
        self._book.drop_limits(last)
