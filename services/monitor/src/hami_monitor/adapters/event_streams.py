"""The stream that keeps our events, in the words of the bus."""

from __future__ import annotations

from hami_chassis.bus import Stream
from hami_model.events import streams, subjects


def usage_streams(settings: streams.StreamSettings, *, prefix: str) -> tuple[Stream, ...]:
    """The streams that take usage events. Raises StreamSettingsError and InvalidPrefixError."""
    wanted = subjects.family("usage", prefix=prefix)
    return tuple(
        Stream(
            name=spec.name,
            subjects=spec.subjects,
            storage=spec.storage,
            replicas=spec.replicas,
            max_age_seconds=spec.max_age_seconds,
            max_bytes=spec.max_bytes,
            max_messages_per_subject=spec.max_messages_per_subject or 0,
            duplicate_window_seconds=spec.duplicate_window_seconds,
        )
        for spec in streams.streams(settings, prefix=prefix)
        if wanted in spec.subjects
    )
