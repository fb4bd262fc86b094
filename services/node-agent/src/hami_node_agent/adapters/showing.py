"""How containers that are bound late come to see their cards: exactly one way.

NVIDIA's runtime handler is told, by the variable or by mounts, or NVIDIA's own edits are merged into ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from hami_chassis.errors import Transient
from hami_model import kube

from hami_node_agent.core import cdi_spec
from hami_node_agent.core.cdi_spec import Edits, ForeignSpec, Shown
from hami_node_agent.core.device_lists import DeviceRules, VisibleDevice, capability_node
from hami_node_agent.core.handed_out import HandedContainer
from hami_node_agent.core.inventory import visible_cards
from hami_node_agent.ports import InventoryView, MigDriver

ShownBy = Literal["auto", "runtime", "cdi"]


class Showing:
    """Methods raise Transient where NVIDIA's specifications do not name a card yet."""

    def __init__(
        self,
        shown_by: ShownBy,
        runtime_classes: frozenset[str],
        rules: DeviceRules,
        beside: tuple[Edits, ...] = (),
        *,
        inventory: InventoryView,
        mig_driver: MigDriver | None,
    ) -> None:
        """`beside`: what containers whose cards come by edits are given besides."""
        self._shown_by = shown_by
        self._runtime_classes = runtime_classes
        self._rules = rules
        self._beside = beside
        self._inventory = inventory
        self._mig_driver = mig_driver

    def needs_specs(self, pod: kube.Pod) -> bool:
        """Whether NVIDIA's specifications matter."""
        return self._shown_by != "runtime" and pod.spec.runtime_class_name not in self._runtime_classes

    def cards(self, pod: kube.Pod, card_ids: Sequence[str], nvidia_specs: Sequence[ForeignSpec]) -> Shown:
        devices = visible_cards(self._inventory.inventory, card_ids)
        specs = self._used(pod, nvidia_specs)
        if specs is None:
            return cdi_spec.shown_by_runtime(devices, self._rules)
        return _edits(lambda: cdi_spec.shown_by_edits(devices, specs, self._beside))

    async def instances(self, pod: kube.Pod, handed: HandedContainer, nvidia_specs: Sequence[ForeignSpec]) -> Shown:
        """Only MIG instances that were made are shown, never their card."""
        made = [(piece.card_id, piece.instance) for piece in handed.slices if piece.instance is not None]
        if self._mig_driver is None or len(made) != len(handed.slices):
            raise Transient("not all MIG instances of the container are there yet")
        specs = self._used(pod, nvidia_specs)
        minors: list[int] = []
        if specs is not None or self._rules.pass_nodes:
            for card_id, instance in made:
                minors += await self._mig_driver.capability_minors(card_id, instance)
        cards = visible_cards(self._inventory.inventory, [card_id for card_id, _ in made])
        if specs is None:
            nodes = (*(path for card in cards for path in card.nodes), *map(capability_node, minors))
            shown = [
                VisibleDevice(uuid=uuid, index=uuid, nodes=nodes) for uuid in [instance.uuid for _, instance in made]
            ]
            return cdi_spec.shown_by_runtime(shown, self._rules)
        return _edits(lambda: cdi_spec.shown_as_instances(cards, minors, specs, self._beside))

    def _used(self, pod: kube.Pod, specs: Sequence[ForeignSpec]) -> Sequence[ForeignSpec] | None:
        """None where NVIDIA's runtime is to be told."""
        if not self.needs_specs(pod) or (self._shown_by == "auto" and not specs):
            return None
        return specs


def _edits(work: Callable[[], Shown]) -> Shown:
    try:
        return work()
    except cdi_spec.NotInSpecificationError as error:
        raise Transient(str(error)) from error
