"""The stream that keeps our events, in the words of the bus."""

from __future__ import annotations

from hami_chassis.bus import Stream
from hami_chassis.bus.event_streams import event_streams
from hami_model.events.streams import StreamSettings


def admission_streams(settings: StreamSettings, *, prefix: str) -> tuple[Stream, ...]:
    """The streams that take admission events. Raises StreamSettingsError and InvalidPrefixError."""
    return event_streams("admission", settings=settings, prefix=prefix)
