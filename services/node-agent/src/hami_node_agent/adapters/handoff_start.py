"""Chooses the hand-off once the node's status is known, and makes everybody work by it."""

from __future__ import annotations

from collections.abc import Callable

from hami_chassis.log import get_logger
from hami_model.register import Handoff

from hami_node_agent.adapters import device_plugin
from hami_node_agent.adapters.kubelet_files import KubeletCheckpointFile
from hami_node_agent.adapters.node import NodeRegistration, NodeWatch
from hami_node_agent.config import HandoffSettings
from hami_node_agent.core import runtime_support
from hami_node_agent.core.health import HealthChange
from hami_node_agent.core.inventory import Inventory, kubelet_devices
from hami_node_agent.core.node_options import NodeOptions

log = get_logger("handoff")


class Offers:
    """Tells schedulers and kubelet what the node offers, each in its own form."""

    def __init__(
        self, registration: NodeRegistration, plugin: device_plugin.DevicePlugin, options: NodeOptions
    ) -> None:
        self._registration = registration
        self._plugin = plugin
        self._options = options
        self._handoff: Handoff | None = None
        self._inventory = Inventory()

    def changed(self, inventory: Inventory, changes: tuple[HealthChange, ...]) -> None:
        self._inventory = inventory
        self._registration.offer(inventory.cards, changes, inventory.pair_scores)
        self._tell_kubelet()

    def begin(self, handoff: Handoff) -> None:
        self._handoff = handoff
        self._tell_kubelet()

    def use(self, options: NodeOptions) -> None:
        """From now on these hold."""
        self._options = options
        self._tell_kubelet()

    def _tell_kubelet(self) -> None:
        # Bound late, kubelet's ids lie on other cards than ours, so their NUMA nodes would mislead it.
        numa_topology = self._handoff == "lock" and self._options.numa_topology
        self._plugin.announce(kubelet_devices(self._inventory, numa_topology=numa_topology))


class HandoffStart:
    def __init__(
        self,
        settings: HandoffSettings,
        *,
        watch: NodeWatch,
        checkpoint: KubeletCheckpointFile,
        registration: NodeRegistration,
        plugin: device_plugin.DevicePlugin,
        handoffs: dict[Handoff, device_plugin.Handoff],
        offers: Offers,
        chosen: Callable[[Handoff], None],
    ) -> None:
        self._settings = settings
        self._watch = watch
        self._checkpoint = checkpoint
        self._registration = registration
        self._plugin = plugin
        self._handoffs = handoffs
        self._offers = offers
        self._chosen = chosen

    async def prepare(self) -> None:
        """Returns when kubelet may be told of us. Raises HandoffRefusedError."""
        if self._settings.mode != "lock":
            log.info("waiting-for-the-node-s-status")
            await self._watch.described.wait()
        view = self._watch.view
        support = runtime_support.late_binding_support(
            kubelet_version=view.kubelet_version if view is not None else "",
            runtime_version=view.runtime_version if view is not None else "",
            cdi=self._settings.runtime_cdi,
            checkpoint_problem=self._checkpoint.problem(),
        )
        handoff, why = runtime_support.choose_handoff(self._settings.mode, support)
        log.info("handoff-chosen", handoff=handoff, configured=self._settings.mode, why=why)
        self._plugin.use(self._handoffs[handoff])
        self._chosen(handoff)
        self._offers.begin(handoff)
        self._registration.begin(handoff)
        if handoff == "lock":
            # From the first Allocate on the lock says whom it is for, so schedulers must know before it can come.
            await self._registration.holds.wait()
