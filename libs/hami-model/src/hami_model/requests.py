"""What a pod asks for: from resource limits and annotations to a request per container and vendor.

Amounts are per card. A quantity that cannot be understood is a fault of the request, never "no request"
(HAMi drops it and lets the pod pass).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from hami_model import env, keys, kube, quantity, scoring_weights
from hami_model.cards import ContainerKind, shapes
from hami_model.device_config import DeviceConfig, VendorSettings
from hami_model.errors import InvalidRequestError, MalformedAnnotation

_NO_ANNOTATIONS: Final[Mapping[str, str]] = MappingProxyType({})
INT32_MAX: Final = 2**31 - 1
WHOLE_CARD_PERCENT: Final = 100


class CardRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One container's request to one vendor. Amounts are per card."""

    vendor: str
    count: int
    memory_mib: int = 0
    """0: not given."""
    memory_percent: int | None = None
    """None: not given. Where both are given, `memory_mib` wins."""
    cores_percent: int = 0
    soft_split_mode: str = ""
    """Mode that the cards must be able to be shared in; empty: any."""


class ContainerRequest(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: ContainerKind
    cards: tuple[CardRequest, ...] = ()


class CardConstraint(msgspec.Struct, frozen=True, kw_only=True):
    """Which cards of one vendor a pod accepts. None: no constraint; an empty tuple matches nothing."""

    use_models: tuple[str, ...] | None = None
    avoid_models: tuple[str, ...] | None = None
    use_cards: tuple[str, ...] | None = None
    avoid_cards: tuple[str, ...] | None = None
    modes: str | None = None
    """A card passes when this text contains its mode, or its mode is empty."""


class PodRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the placement of a pod depends on, apart from the cluster's state."""

    uid: str
    namespace: str
    name: str
    containers: tuple[ContainerRequest, ...]
    """Init containers first, then app containers."""
    node_policy: str
    card_policy: str
    numa_bind: bool = False
    constraints: dict[str, CardConstraint] = {}
    weights: scoring_weights.ScoringWeights = scoring_weights.ScoringWeights()

    @property
    def asks_for_cards(self) -> bool:
        return any(container.cards for container in self.containers)


class Policies(msgspec.Struct, frozen=True, kw_only=True):
    """Cluster-wide defaults, used where a pod's annotations say nothing."""

    node: str = "binpack"
    card: str = "spread"


def pod_request(pod: kube.Pod, config: DeviceConfig, defaults: Policies) -> PodRequest:
    """The request of a pod. Raises InvalidRequestError or MalformedAnnotation (scoring weights)."""
    annotations = pod.annotations
    containers = tuple(
        ContainerRequest(name=shape.name, kind=shape.kind, cards=container_cards(container, config, annotations))
        for shape, container in zip(shapes(pod), pod.all_containers, strict=True)
    )
    vendors = {card.vendor for container in containers for card in container.cards}
    numa_keys = (v.vendor.numa_bind_key for v in config.vendors if v.vendor.word in vendors and v.vendor.numa_bind_key)
    weights_text = annotations.get(keys.SCORING_WEIGHTS)
    return PodRequest(
        uid=pod.uid,
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        containers=containers,
        node_policy=annotations.get(keys.NODE_POLICY, defaults.node),
        card_policy=annotations.get(keys.CARD_POLICY, defaults.card),
        numa_bind=any(parse_go_bool(annotations.get(key, "")) is True for key in numa_keys),
        constraints={
            settings.vendor.word: constraint(annotations, settings)
            for settings in config.vendors
            if settings.vendor.word in vendors
        },
        weights=(
            scoring_weights.ScoringWeights() if weights_text is None or not vendors
            else scoring_weights.parse(weights_text)
        ),
    )  # fmt: skip


def container_cards(
    container: kube.Container, config: DeviceConfig, annotations: Mapping[str, str]
) -> tuple[CardRequest, ...]:
    """The requests of one container, one per vendor it names, in the order of the configuration."""
    requests = (card_request(container, settings, annotations) for settings in config.vendors)
    return tuple(request for request in requests if request is not None)


def soft_split_mode(annotations: Mapping[str, str], settings: VendorSettings) -> str:
    """The mode in which a pod wants cards of the vendor shared by software; empty: as hardware cuts them."""
    split = settings.vendor.soft_split
    return split.mode if split is not None and annotations.get(split.pod_key) == split.mode else ""


def soft_split_modes(annotations: Mapping[str, str], config: DeviceConfig) -> dict[str, str]:
    """By vendor, where a pod wants cards shared by software."""
    modes = ((settings.vendor.word, soft_split_mode(annotations, settings)) for settings in config.vendors)
    return {word: mode for word, mode in modes if mode}


def card_request(
    container: kube.Container, settings: VendorSettings, annotations: Mapping[str, str] = _NO_ANNOTATIONS
) -> CardRequest | None:
    """One container's request to one vendor; None when it asks for no card of it.

    `annotations` of its pod say in which mode it wants the cards; counts and amounts do not depend on them.
    """
    names = settings.resources
    count_text = container.quantity(names.count) if names.count else None
    if count_text is None:
        return None
    count = _whole(container.name, names.count, count_text, "the number of cards, a whole number such as 1")
    if count <= 0:
        return None
    if count > INT32_MAX:
        raise InvalidRequestError(container.name, names.count, f"{count_text}: no node has so many cards")

    memory_mib = _memory_mib(container, settings)
    percent = _percent(container, settings)
    if percent is None and memory_mib == 0:
        if settings.default_memory_mib:
            memory_mib = settings.default_memory_mib
        else:
            percent = WHOLE_CARD_PERCENT
    return CardRequest(
        vendor=settings.vendor.word,
        count=count,
        memory_mib=memory_mib,
        memory_percent=percent,
        cores_percent=_cores_percent(container, settings),
        soft_split_mode=soft_split_mode(annotations, settings),
    )


def _memory_mib(container: kube.Container, settings: VendorSettings) -> int:
    name = settings.resources.memory
    text = container.quantity(name) if name else None
    if text is None:
        return 0
    advice = "memory is counted in MiB; write a whole number such as 4096 for 4 GiB"
    try:
        _, suffix = quantity.parse_with_suffix(text)
    except quantity.MalformedQuantity as error:
        raise InvalidRequestError(container.name, name, f"{error}; {advice}") from error
    if suffix in quantity.UNIT_SUFFIXES:
        raise InvalidRequestError(container.name, name, f"{text}: {advice}")
    units = _whole(container.name, name, text, "whole MiB, such as 4096 for 4 GiB")
    largest = INT32_MAX // settings.memory_factor
    if not 0 <= units <= largest:
        raise InvalidRequestError(container.name, name, f"{text} is not between 0 and {largest}: {advice}")
    return units * settings.memory_factor


def _percent(container: kube.Container, settings: VendorSettings) -> int | None:
    """1 to 100; None when absent, not above 0 or no whole number, which then means the whole card, as in HAMi.

    Above 100 is taken as 100 (the webhook refuses it earlier).
    """
    name = settings.resources.memory_percentage
    text = container.quantity(name) if name else None
    percent = _whole_or_none(text) if text is not None else None
    return min(percent, WHOLE_CARD_PERCENT) if percent is not None and percent > 0 else None


def _cores_percent(container: kube.Container, settings: VendorSettings) -> int:
    name = settings.resources.cores
    text = container.quantity(name) if name else None
    cores = _whole_or_none(text) if text is not None else None
    if cores is None:
        return settings.default_cores_percent
    if cores < 0:
        raise InvalidRequestError(container.name, name, f"{text}: must not be negative")
    return min(cores, WHOLE_CARD_PERCENT)


def _whole_or_none(text: str) -> int | None:
    """For shares: the API server lets no fraction of them pass, and HAMi reads one as not given."""
    try:
        value = quantity.parse(text)
    except quantity.MalformedQuantity:
        return None
    return value.numerator if value.denominator == 1 else None


def _whole(container: str, resource: str, text: str, advice: str) -> int:
    try:
        value = quantity.parse(text)
    except quantity.MalformedQuantity as error:
        raise InvalidRequestError(container, resource, f"{error}; expected {advice}") from error
    if value.denominator != 1:
        raise InvalidRequestError(container, resource, f"{text} is not a whole number; expected {advice}")
    return value.numerator


def constraint(annotations: dict[str, str], settings: VendorSettings) -> CardConstraint:
    """The pod's selection of cards of one vendor, from its annotations."""
    vendor = settings.vendor
    return CardConstraint(
        use_models=_tokens(annotations, vendor.use_models_key),
        avoid_models=_tokens(annotations, vendor.avoid_models_key),
        use_cards=_tokens(annotations, vendor.use_cards_key),
        avoid_cards=_tokens(annotations, vendor.avoid_cards_key),
        modes=annotations.get(vendor.modes_key) if vendor.modes_key else None,
    )


def _tokens(annotations: dict[str, str], key: str) -> tuple[str, ...] | None:
    text = annotations.get(key, "").strip() if key else ""
    if not text:
        return None
    return tuple(item for item in (part.strip() for part in text.split(",")) if item)


def wants_control(variables: Iterable[kube.EnvVar]) -> bool:
    """Whether the library is to hold the container: not where its own specification says so in so many words.

    As in the container itself, of several entries the last one counts.
    """
    values = [variable for variable in variables if variable.name == env.DISABLE_CONTROL]
    if not values or values[-1].value is None:
        return True
    return parse_go_bool(values[-1].value) is not True


def parse_go_bool(text: str) -> bool | None:
    """A bool as Go spells it; None when it is none."""
    if text in ("1", "t", "T", "TRUE", "true", "True"):
        return True
    if text in ("0", "f", "F", "FALSE", "false", "False"):
        return False
    return None


__all__ = [
    "CardConstraint",
    "CardRequest",
    "ContainerRequest",
    "InvalidRequestError",
    "MalformedAnnotation",
    "PodRequest",
    "Policies",
    "card_request",
    "constraint",
    "container_cards",
    "parse_go_bool",
    "pod_request",
    "soft_split_mode",
    "soft_split_modes",
]
