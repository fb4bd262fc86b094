"""inventory: all cards of one vendor on a node, on change and as a heartbeat.

Id: a function of node, vendor, resource version and time.
"""

from __future__ import annotations

from hami_model.cards import Card
from hami_model.events import subjects
from hami_model.events.envelope import Event, identity, rfc3339
from hami_model.register import Handoff


class InventoryReported(Event, frozen=True, kw_only=True, tag="io.hami.inventory.reported.v1"):
    node: str
    vendor: str
    resource_version: str
    """Of the node after the register annotation was patched. A reader whose watch has come so far prefers the watch."""
    handoff: Handoff = "lock"
    """How the node hands slices to containers; with `lock` the scheduler takes the node lock."""
    cards: tuple[Card, ...]

    @property
    def about(self) -> str:
        return f"nodes/{self.node}"

    def subject(self, prefix: str = subjects.DEFAULT_PREFIX) -> str:
        return subjects.inventory(self.node, self.vendor, prefix=prefix)

    def _identity(self) -> str:
        return identity("inventory", self.node, self.vendor, self.resource_version, rfc3339(self.time))
