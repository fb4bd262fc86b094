"""A MigDriver that numbers what it makes as the driver behind the vectors did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hami_chassis.errors import Transient
from hami_model.cards import MigPlacement
from hami_model.mig_allocations import MigInstance
from hami_node_agent.core.inventory import CardFacts
from hami_node_agent.core.mig_instances import LiveInstance, overlap
from hami_node_agent.core.mig_profiles import InstanceProfile, named


class VectorMigDriver:
    """GPU instances from 1 on each card, compute instance 0."""

    def __init__(self, facts: Sequence[CardFacts]) -> None:
        self._cards = {fact.uuid: fact for fact in facts}
        self._live: dict[str, list[LiveInstance]] = {fact.uuid: [] for fact in facts}
        self._made: Counter[str] = Counter()

    async def kind_of(self, card_id: str, profile: str) -> int:
        found = named(self._cards[card_id].mig_profiles, profile)
        if found is None:
            raise Transient(f"card {card_id} has no MIG profile {profile!r}")
        return found.kind

    async def instances(self, card_id: str) -> Sequence[LiveInstance]:
        return tuple(self._live[card_id])

    async def create(self, card_id: str, kind: int, placement: MigPlacement) -> LiveInstance:
        if placement not in self._profile(card_id, kind).placements:
            raise Transient(f"card {card_id}: no such placement: {placement}")
        if any(overlap(found.placement, placement) for found in self._live[card_id]):
            raise Transient(f"card {card_id}: no room at {placement}")
        self._made[card_id] += 1
        number = self._made[card_id]
        uuid = f"MIG-{self._cards[card_id].index + 1:08x}-0000-4000-8000-{number:012x}"
        made = LiveInstance(
            gpu_instance=number,
            kind=kind,
            placement=placement,
            made=MigInstance(uuid=uuid, gpu_instance=number, compute_instance=0),
        )
        self._live[card_id].append(made)
        return made

    def _profile(self, card_id: str, kind: int) -> InstanceProfile:
        return next(profile for profile in self._cards[card_id].mig_profiles if profile.kind == kind)

    async def complete(self, card_id: str, instance: LiveInstance) -> LiveInstance:  # noqa: ARG002  # all are whole
        return instance

    async def destroy(self, card_id: str, instance: LiveInstance) -> None:
        self._live[card_id].remove(instance)

    async def capability_minors(self, card_id: str, instance: MigInstance) -> tuple[int, int]:
        raise Transient(f"card {card_id}: the vectors name no device nodes of {instance.uuid}")
