"""The streams that our events and queries need, in the words of the bus."""

from __future__ import annotations

from hami_chassis.bus import Stream
from hami_chassis.bus.event_streams import event_streams
from hami_model.events.streams import StreamSettings


def scheduler_streams(settings: StreamSettings, *, prefix: str) -> tuple[Stream, ...]:
    """The streams that our events and what we read need. Raises StreamSettingsError and InvalidPrefixError."""
    return event_streams("allocation", "placement", "health", "inventory", settings=settings, prefix=prefix)
