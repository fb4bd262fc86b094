"""What a namespace may use, uses, and is asked for: the check at admission.

The check refuses only what no placement could satisfy. It charges nothing: the scheduler decides and charges when it
places the pod.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec
from hami_model import kube
from hami_model.cards import ContainerKind, shapes
from hami_model.device_config import DeviceConfig, VendorSettings
from hami_model.errors import InvalidRequestError
from hami_model.quota import QuotaLimits
from hami_model.requests import card_request

LEAST_MEMORY_MIB = 1
"""A share by percentage needs at least this much of each card, whatever the card."""


class Amount(msgspec.Struct, frozen=True, kw_only=True):
    """Summed over cards."""

    memory_mib: int = 0
    cores_percent: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            memory_mib=self.memory_mib + other.memory_mib, cores_percent=self.cores_percent + other.cores_percent
        )

    def __sub__(self, other: Amount) -> Amount:
        return Amount(
            memory_mib=self.memory_mib - other.memory_mib, cores_percent=self.cores_percent - other.cores_percent
        )

    def peak(self, other: Amount) -> Amount:
        return Amount(
            memory_mib=max(self.memory_mib, other.memory_mib),
            cores_percent=max(self.cores_percent, other.cores_percent),
        )


class NamespaceQuota(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a namespace and the effective usage of its live pods, by vendor word."""

    limits: Mapping[str, QuotaLimits] = {}
    used: Mapping[str, Amount] = {}


QuotaView = Callable[[str], NamespaceQuota | None]
"""The state of a namespace; None while it is not known."""


def least_demand(pod: kube.Pod, settings: VendorSettings) -> Amount:
    """The least that the pod's effective usage can be, on whatever cards it lands.

    A pod whose request cannot be read counts as nothing here: it is refused elsewhere.
    """
    try:
        return _peak(
            (shape.kind, _container_demand(container, settings))
            for shape, container in zip(shapes(pod), pod.all_containers, strict=True)
        )
    except InvalidRequestError:
        return Amount()


def _container_demand(container: kube.Container, settings: VendorSettings) -> Amount:
    request = card_request(container, settings)
    if request is None:
        return Amount()
    return Amount(
        memory_mib=request.count * (request.memory_mib or LEAST_MEMORY_MIB),
        cores_percent=request.count * request.cores_percent,
    )


def _peak(containers: Iterable[tuple[ContainerKind, Amount]]) -> Amount:
    running, peak = Amount(), Amount()
    for kind, own in containers:
        if kind == "init":
            peak = peak.peak(running + own)
        else:
            running = running + own
    return running.peak(peak)


def overruns(pod: kube.Pod, config: DeviceConfig, quota: NamespaceQuota) -> tuple[str, ...]:
    """One sentence for every limit that the pod cannot stay within; empty when it may fit."""
    return tuple(
        f"namespace quota limits.{resource}: {limit} allowed, {used} used, this pod needs at least {needed}: "
        "ask for less, or end pods that hold cards"
        for settings in config.vendors
        for resource, limit, used, needed in _dimensions(pod, settings, quota)
        if limit is not None and used + needed > limit
    )


def _dimensions(
    pod: kube.Pod, settings: VendorSettings, quota: NamespaceQuota
) -> Iterable[tuple[str, int | None, int, int]]:
    word = settings.vendor.word
    limits = quota.limits.get(word, QuotaLimits())
    used = quota.used.get(word, Amount())
    need = least_demand(pod, settings)
    if need == Amount():
        return
    yield settings.resources.memory, limits.memory_mib, used.memory_mib, need.memory_mib
    yield settings.resources.cores, limits.cores_percent, used.cores_percent, need.cores_percent
