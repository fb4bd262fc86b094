"""Streams are declared by the caller and made so, as often as needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from hami_chassis.log import get_logger

log = get_logger("bus")


class Stream(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JetStream stream. Limits of 0 mean none."""

    name: str
    subjects: Sequence[str]
    storage: Literal["file", "memory"] = "file"
    replicas: int = 1
    max_age_seconds: float = 0.0
    max_bytes: int = 0
    max_messages_per_subject: int = 0
    duplicate_window_seconds: float = 120.0

    def config(self) -> StreamConfig:
        """In the words of the server."""
        window = self.duplicate_window_seconds
        if self.max_age_seconds:
            window = min(window, self.max_age_seconds)  # the server refuses a longer one
        return StreamConfig(
            name=self.name,
            subjects=list(self.subjects),
            retention=RetentionPolicy.LIMITS,
            discard=DiscardPolicy.OLD,
            storage=StorageType.FILE if self.storage == "file" else StorageType.MEMORY,
            num_replicas=self.replicas,
            max_age=self.max_age_seconds,
            max_bytes=self.max_bytes or -1,
            max_msgs_per_subject=self.max_messages_per_subject or -1,
            duplicate_window=window,
            allow_direct=True,
        )


async def ensure_streams(jetstream: JetStreamContext, streams: Sequence[Stream]) -> None:
    """Creates what is missing and updates what differs. Raises the errors of nats-py.

    What the server refuses to change (the storage, say) stays as it is and is logged: a stream with other limits
    still carries events.
    """
    for stream in streams:
        try:
            info = await jetstream.stream_info(stream.name)
        except NotFoundError:
            await jetstream.add_stream(stream.config())
            log.info("stream-created", stream=stream.name)
            continue
        if _differs(info.config, stream.config()):
            try:
                await jetstream.update_stream(stream.config())
                log.info("stream-updated", stream=stream.name)
            except ServiceUnavailableError:
                raise
            except APIError as error:
                log.warning("stream-not-updated", stream=stream.name, error=str(error))


_COMPARED = (
    "subjects",
    "storage",
    "num_replicas",
    "max_age",
    "max_bytes",
    "max_msgs_per_subject",
    "duplicate_window",
    "allow_direct",
)


def _differs(present: StreamConfig, wanted: StreamConfig) -> bool:
    return any(getattr(present, name) != getattr(wanted, name) for name in _COMPARED)
