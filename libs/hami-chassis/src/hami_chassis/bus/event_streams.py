"""The streams that keep a service's events: the model's declaration, in the words of the bus."""

from __future__ import annotations

from hami_model.events import streams, subjects

from hami_chassis.bus.streams import Stream


def event_streams(*families: str, settings: streams.StreamSettings, prefix: str) -> tuple[Stream, ...]:
    """The streams that take events of these families. Raises StreamSettingsError and InvalidPrefixError."""
    wanted = {subjects.family(family, prefix=prefix) for family in families}
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
        if wanted & set(spec.subjects)
    )
