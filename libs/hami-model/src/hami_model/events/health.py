"""health: a card became unhealthy, or healthy again.

Id: a function of node, card, state, resource version and time.
"""

from __future__ import annotations

from hami_model.events import subjects
from hami_model.events.envelope import Event, identity, rfc3339
from hami_model.events.parts import PodRef


class CardHealthChanged(Event, frozen=True, kw_only=True, tag="io.hami.health.changed.v1"):
    node: str
    vendor: str
    card_id: str
    healthy: bool
    cause: str
    """One word or sentence: such as `xid`, `lost`, `recovered`."""
    xid: int | None = None
    """NVIDIA's number of the fault, where the cause is one."""
    resource_version: str = ""
    """Of the node after the register annotation was patched."""
    used_by: tuple[PodRef, ...] = ()
    """Pods that hold slices of the card at this moment."""

    @property
    def about(self) -> str:
        return f"nodes/{self.node}"

    def subject(self, prefix: str = subjects.DEFAULT_PREFIX) -> str:
        return subjects.health(self.node, self.card_id, prefix=prefix)

    def _identity(self) -> str:
        state = "healthy" if self.healthy else "unhealthy"
        return identity("health", self.node, self.card_id, state, self.resource_version, rfc3339(self.time))
