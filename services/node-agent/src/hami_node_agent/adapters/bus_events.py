"""The bus: streams of our events, and the scheduler's word that a pod is coming."""

from __future__ import annotations

from collections.abc import Callable

from hami_chassis.bus import Message, Stream
from hami_chassis.bus.event_streams import event_streams
from hami_chassis.log import get_logger
from hami_model import events
from hami_model.events import subjects
from hami_model.events.streams import StreamSettings
from hami_model.lifecycle import Phase

log = get_logger("bus-events")


def node_streams(settings: StreamSettings, *, prefix: str) -> tuple[Stream, ...]:
    """The streams that take what a node-agent publishes. Raises StreamSettingsError and InvalidPrefixError."""
    return event_streams("allocation", "inventory", "health", settings=settings, prefix=prefix)


def allocating_subject(node_name: str, *, prefix: str) -> str:
    return subjects.allocation(subjects.ANY, node_name, subjects.ANY, Phase.ALLOCATING, prefix=prefix)


class AllocatingHints:
    """Hands the pods of `allocating` events on. Only names are taken from them; what a pod gets is read elsewhere."""

    def __init__(self, node_name: str, tell: Callable[[events.PodRef], None]) -> None:
        self._node_name = node_name
        self._tell = tell

    async def handle(self, message: Message) -> None:
        try:
            event = events.decode(message.payload)
        except events.MalformedEvent as error:
            log.warning("event-unreadable", subject=message.subject, reason=str(error))
            return
        if isinstance(event, events.AllocationAllocating) and event.node == self._node_name:
            self._tell(event.pod)
