"""What node agents say on the bus: health and inventory before the watch has it, and that an allocation ended.

Each is a hint: the node's annotations and the pod's say the same a little later.
"""

from __future__ import annotations

from hami_chassis.bus import Bus, DurableConsumer, Message
from hami_chassis.errors import Permanent
from hami_chassis.log import get_logger
from hami_model import events
from hami_model.events import streams, subjects
from hami_model.lifecycle import Phase

from hami_scheduler.adapters.node_locks import NodeLocks
from hami_scheduler.bookkeeper import Bookkeeper

log = get_logger("node-news")

_FORGOTTEN_AFTER_SECONDS = 3600.0


class NodeNews:
    def __init__(self, bookkeeper: Bookkeeper, locks: NodeLocks) -> None:
        self._bookkeeper = bookkeeper
        self._locks = locks

    def listen(self, bus: Bus, *, instance: str, prefix: str) -> None:
        """Declares what is listened to; before the bus runs. Every replica listens for itself."""
        bus.consume(
            DurableConsumer(
                stream=streams.stream_name("INVENTORY", prefix=prefix),
                name=f"scheduler-{subjects.token(instance).replace('=', '-')}",
                subjects=[subjects.family("health", prefix=prefix), subjects.family("inventory", prefix=prefix)],
                inactive_seconds=_FORGOTTEN_AFTER_SECONDS,
            ),
            self.take_card_news,
        )
        for phase in (Phase.ALLOCATED, Phase.FAILED):
            subject = subjects.allocation(subjects.ANY, subjects.ANY, subjects.ANY, phase, prefix=prefix)
            bus.subscribe(subject, self.take_allocation_news)

    async def take_card_news(self, message: Message) -> None:
        """One health or inventory event. Raises Permanent for what cannot be read."""
        event = _decoded(message)
        if isinstance(event, events.CardHealthChanged):
            self._bookkeeper.card_health(
                event.node, event.card_id, healthy=event.healthy, node_version=_version(event.resource_version)
            )
        elif isinstance(event, events.InventoryReported):
            for card in event.cards:
                self._bookkeeper.card_health(
                    event.node, card.id, healthy=card.healthy, node_version=_version(event.resource_version)
                )

    async def take_allocation_news(self, message: Message) -> None:
        """An allocation was handed over or refused: the node's lock is free, or will be at once."""
        event = _decoded(message)
        if isinstance(event, events.AllocationEvent):
            self._locks.look_again(event.node)


def _decoded(message: Message) -> events.Event | events.UnknownEvent:
    try:
        return events.decode(message.payload)
    except events.MalformedEvent as error:
        raise Permanent(f"{message.subject}: {error}") from error


def _version(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
