"""From the model's values to the engine's, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import hami_engine as engine
from hami_model import cards
from hami_model.device_config import DeviceConfig
from hami_model.ids import CardId
from hami_model.requests import CardConstraint, CardRequest, ContainerRequest, PodRequest
from hami_model.vendors import VendorDescriptor

_INDEX_MAX: Final = 2**32 - 1
_NUMA_MIN: Final = -(2**31)
_NUMA_MAX: Final = 2**31 - 1
"""An annotation may carry wider numbers; they only order cards, so the engine gets the nearest it can hold."""


def families(config: DeviceConfig) -> list[engine.Family]:
    """The configured families, as the engine is told of them when it is made."""
    return [_family(settings.vendor) for settings in config.vendors]


def _family(descriptor: VendorDescriptor) -> engine.Family:
    rules = descriptor.placement
    return engine.Family(
        word=descriptor.word,
        model_contains=rules.model_contains,
        whole_card_is_exclusive=rules.whole_card_is_exclusive,
        zero_cores_need_free_cores=rules.zero_cores_need_free_cores,
        most_cores_percent=rules.most_cores_percent,
        partitioned_mode=rules.partitioned_mode,
        has_pair_scores=bool(descriptor.pair_scores_key),
        selection=rules.selection,
        group_weight=rules.group_weight,
    )


def card(descriptor: VendorDescriptor, found: cards.Card, *, cordoned: bool) -> engine.Card:
    every_card = descriptor.placement.card_cores_percent
    return engine.Card(
        id=found.id,
        vendor=descriptor.word,
        model=found.model,
        index=min(found.index, _INDEX_MAX),
        slots=found.slots,
        memory_mib=found.memory_mib,
        cores_percent=found.cores_percent if every_card is None else every_card,
        numa=min(max(found.numa, _NUMA_MIN), _NUMA_MAX),
        mode=found.mode,
        healthy=found.healthy,
        cordoned=cordoned,
        group=_group(descriptor, found),
        mig_profiles=[_mig_profile(profile) for profile in found.mig_profiles],
    )


def _mig_profile(found: cards.MigProfile) -> engine.MigProfile:
    return engine.MigProfile(
        name=found.name,
        memory_mib=found.memory_mib,
        cores_percent=found.cores_percent,
        slice_count=found.slice_count,
        placements=[(placement.start, placement.size) for placement in found.placements],
    )


def _group(descriptor: VendorDescriptor, found: cards.Card) -> str | None:
    """None: the card names no group; empty: it names one that cannot be read."""
    if not descriptor.group_field or descriptor.group_field not in found.custom:
        return None
    value = found.custom[descriptor.group_field]
    if descriptor.group_kind == "text":
        return value if isinstance(value, str) else ""
    return f"{value:g}" if isinstance(value, float) else ""


def pod_ask(request: PodRequest) -> engine.PodAsk:
    return engine.PodAsk(
        uid=request.uid,
        namespace=request.namespace,
        name=request.name,
        containers=[_container_ask(container) for container in request.containers],
        node_policy=request.node_policy,
        card_policy=request.card_policy,
        numa_bind=request.numa_bind,
        constraints={vendor: _constraint(found) for vendor, found in request.constraints.items()},
        weights=(request.weights.slot, request.weights.core, request.weights.memory),
    )


def _container_ask(container: ContainerRequest) -> engine.ContainerAsk:
    return engine.ContainerAsk(name=container.name, kind=container.kind, asks=[_ask(c) for c in container.cards])


def _ask(request: CardRequest) -> engine.Ask:
    return engine.Ask(
        vendor=request.vendor,
        count=request.count,
        memory_mib=request.memory_mib,
        memory_percent=request.memory_percent,
        cores_percent=request.cores_percent,
        mode=request.soft_split_mode,
    )


def _constraint(found: CardConstraint) -> engine.CardConstraint:
    return engine.CardConstraint(
        use_models=found.use_models,
        avoid_models=found.avoid_models,
        use_ids=found.use_cards,
        avoid_ids=found.avoid_cards,
        modes=found.modes,
    )


def container_slices(
    shapes: Sequence[cards.ContainerShape], slots: Sequence[Iterable[cards.Slice]]
) -> list[engine.ContainerSlices]:
    """Slices per container, as the engine books them."""
    return [
        engine.ContainerSlices(
            kind=shape.kind,
            slices=[
                engine.Slice(
                    card_id=held.card_id,
                    vendor=held.vendor,
                    memory_mib=held.memory_mib,
                    cores_percent=held.cores_percent,
                    profile=held.profile,
                    placement=_place(held.placement),
                )
                for held in slot
            ],
        )
        for shape, slot in zip(shapes, slots, strict=True)
    ]


def _place(placement: cards.MigPlacement | None) -> tuple[int, int] | None:
    return None if placement is None else (placement.start, placement.size)


def claims(found: Iterable[cards.MigClaim]) -> list[engine.MigClaim]:
    return [
        engine.MigClaim(card_id=claim.card_id, profile=claim.profile, placement=_place(claim.placement))
        for claim in found
    ]


def slots(placement: engine.Placement) -> cards.Slots:
    """The placement's slices by container."""
    return tuple(
        tuple(
            cards.Slice(
                card_id=CardId(given.card_id),
                vendor=given.vendor,
                memory_mib=given.memory_mib,
                cores_percent=given.cores_percent,
                profile=given.profile,
                placement=None
                if given.placement is None
                else cards.MigPlacement(start=given.placement[0], size=given.placement[1]),
            )
            for given in container
        )
        for container in placement.containers
    )
