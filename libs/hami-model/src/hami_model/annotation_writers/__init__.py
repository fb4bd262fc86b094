"""What families write on a placed pod besides its allocation: one module for each way, named by descriptors.

A module has a function `write(placed) -> dict[str, str]`. A new way is a new module here; nothing else changes.
"""

from __future__ import annotations

import importlib
from typing import Protocol

import msgspec

from hami_model.cards import Slots
from hami_model.device_config import VendorSettings
from hami_model.errors import HamiError


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod was given of one vendor's cards."""

    settings: VendorSettings
    slots: Slots
    """One per container, init containers first."""
    soft_split_mode: str
    """Empty: as hardware cuts the cards."""
    now_seconds: int
    """Unix time."""


class Writer(Protocol):
    """One way to write them."""

    def __call__(self, placed: Placed) -> dict[str, str]:
        """Annotations by key."""
        ...


class UnknownWriterError(HamiError):
    """A descriptor names a module that is not there."""


def writer(name: str) -> Writer:
    """The function of a module. Raises UnknownWriterError."""
    try:
        found: Writer = importlib.import_module(f"{__name__}.{name}").write
    except ModuleNotFoundError as error:
        raise UnknownWriterError(f"annotations {name!r}: there is no module of that name in {__name__}") from error
    return found
