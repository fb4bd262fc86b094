"""The JetStream streams that keep events, as data. A service creates or updates them as told here.

What is deleted from them costs history, never correctness: Kubernetes is the ledger.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from hami_model.errors import HamiError
from hami_model.events import subjects

_DAY: Final = 86_400
_MIB: Final = 1 << 20
_REPLICAS: Final = (1, 3, 5)


class StreamSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an operator may choose."""

    replicas: int = 1
    """1 on a single server, 3 or 5 in a cluster of so many."""
    duplicate_window_seconds: int = 120
    """How long the server drops a message id that it has seen. At most the shortest age."""
    allocation_max_age_seconds: int = 7 * _DAY
    allocation_max_bytes: int = 1024 * _MIB
    inventory_max_bytes: int = 256 * _MIB
    usage_max_age_seconds: int = 3600
    usage_max_bytes: int = 512 * _MIB


class StreamSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One stream. Limits of 0 mean none."""

    name: str
    subjects: tuple[str, ...]
    storage: Literal["file", "memory"]
    max_age_seconds: int
    max_bytes: int
    max_messages_per_subject: int
    replicas: int
    duplicate_window_seconds: int
    discard: Literal["old", "new"]
    """What goes when the stream is full."""


class StreamSettingsError(HamiError):
    """The stream settings cannot be used. `faults` lists every one with its name."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("stream settings: " + "; ".join(faults))
        self.faults = faults


def streams(settings: StreamSettings, *, prefix: str = subjects.DEFAULT_PREFIX) -> tuple[StreamSpec, ...]:
    """All streams. Raises StreamSettingsError and InvalidPrefixError."""
    _check(settings)

    def spec(
        name: str, families: tuple[str, ...], max_age_seconds: int, max_bytes: int, per_subject: int = 0
    ) -> StreamSpec:
        return StreamSpec(
            name=stream_name(name, prefix=prefix),
            subjects=tuple(subjects.family(family, prefix=prefix) for family in families),
            storage="file",
            max_age_seconds=max_age_seconds,
            max_bytes=max_bytes,
            max_messages_per_subject=per_subject,
            replicas=settings.replicas,
            duplicate_window_seconds=settings.duplicate_window_seconds,
            discard="old",
        )

    return (
        spec(
            "ALLOCATION",
            ("allocation", "placement", "admission"),
            settings.allocation_max_age_seconds,
            settings.allocation_max_bytes,
        ),
        spec("INVENTORY", ("inventory", "health"), 0, settings.inventory_max_bytes, per_subject=1),
        spec("USAGE", ("usage", "usage-node"), settings.usage_max_age_seconds, settings.usage_max_bytes),
    )


def stream_name(name: str, *, prefix: str) -> str:
    """Such as HAMI_ALLOCATION; two prefixes on one server do not meet."""
    return f"{subjects.check_prefix(prefix).upper().replace('.', '_')}_{name}"


def _check(settings: StreamSettings) -> None:
    ages = (settings.allocation_max_age_seconds, settings.usage_max_age_seconds)
    at_least = {
        "allocation_max_age_seconds": 1,
        "usage_max_age_seconds": 1,
        "duplicate_window_seconds": 1,
        "allocation_max_bytes": _MIB,
        "inventory_max_bytes": _MIB,
        "usage_max_bytes": _MIB,
    }
    values = msgspec.structs.asdict(settings)
    faults = [
        f"{name}: {values[name]}; use {least} or more" for name, least in at_least.items() if values[name] < least
    ]
    if settings.replicas not in _REPLICAS:
        faults.append(f"replicas: {settings.replicas}; use 1, 3 or 5")
    if not faults and settings.duplicate_window_seconds > min(ages):
        window = settings.duplicate_window_seconds
        faults.append(f"duplicate_window_seconds: {window}; use at most {min(ages)}, the shortest age")
    if faults:
        raise StreamSettingsError(faults)
