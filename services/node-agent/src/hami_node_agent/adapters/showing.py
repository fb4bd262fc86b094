"""How containers come to see their cards: exactly one way.

NVIDIA's runtime handler reads the variable, or NVIDIA's own edits are merged into ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hami_chassis.errors import Transient
from hami_model import kube

from hami_node_agent.core import cdi_spec
from hami_node_agent.core.handed_out import HandedContainer
from hami_node_agent.ports import CdiDirectory, InventoryView, MigDriver

ShownBy = Literal["auto", "runtime", "cdi"]


class Showing:
    """Methods raise Transient where NVIDIA's specifications do not name a card yet."""

    def __init__(
        self,
        shown_by: ShownBy,
        runtime_classes: frozenset[str],
        *,
        cdi: CdiDirectory,
        inventory: InventoryView,
        mig_driver: MigDriver | None,
    ) -> None:
        self._shown_by = shown_by
        self._runtime_classes = runtime_classes
        self._cdi = cdi
        self._inventory = inventory
        self._mig_driver = mig_driver

    async def cards(self, pod: kube.Pod, card_ids: Sequence[str]) -> cdi_spec.Shown:
        if self._by_runtime(pod):
            return cdi_spec.shown_by_runtime(card_ids)
        specs = await self._cdi.nvidia_specs()
        if self._shown_by == "auto" and not specs:
            return cdi_spec.shown_by_runtime(card_ids)
        try:
            return cdi_spec.shown_by_edits(self._indexes(card_ids), specs)
        except cdi_spec.NotInSpecificationError as error:
            raise Transient(str(error)) from error

    async def instances(self, pod: kube.Pod, handed: HandedContainer) -> cdi_spec.Shown:
        """Only MIG instances that were made are shown, never their card."""
        made = [(piece.card_id, piece.instance) for piece in handed.slices if piece.instance is not None]
        if self._mig_driver is None or len(made) != len(handed.slices):
            raise Transient("not all MIG instances of the container are there yet")
        uuids = [instance.uuid for _, instance in made]
        if self._by_runtime(pod):
            return cdi_spec.shown_by_runtime(uuids)
        specs = await self._cdi.nvidia_specs()
        if self._shown_by == "auto" and not specs:
            return cdi_spec.shown_by_runtime(uuids)
        minors = [
            minor for card_id, instance in made for minor in await self._mig_driver.capability_minors(card_id, instance)
        ]
        try:
            return cdi_spec.shown_as_instances(self._indexes([card_id for card_id, _ in made]), minors, specs)
        except cdi_spec.NotInSpecificationError as error:
            raise Transient(str(error)) from error

    def _by_runtime(self, pod: kube.Pod) -> bool:
        return self._shown_by == "runtime" or pod.spec.runtime_class_name in self._runtime_classes

    def _indexes(self, card_ids: Sequence[str]) -> dict[str, int]:
        known = {str(card.id): card.index for card in self._inventory.inventory.cards}
        return {card_id: known.get(card_id, -1) for card_id in card_ids}
