"""The vendor catalogue: one TOML file a family of accelerators. Reading them is all that happens here.

A new family whose rules differ only by data is one more file in this folder.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Literal

import msgspec


class ResourceNames(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names of the extended resources of a family. Empty: the family has no such resource."""

    count: str
    memory: str = ""
    """MiB per card, times the configured memory factor."""
    memory_percentage: str = ""
    """Percent of a card's memory, per card."""
    cores: str = ""
    """Percent of a card's compute, per card."""
    priority: str = ""

    @property
    def all(self) -> tuple[str, ...]:
        names = (self.count, self.memory, self.memory_percentage, self.cores, self.priority)
        return tuple(name for name in names if name)


class PlacementRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the engine judges and chooses cards of a family."""

    model_contains: str = ""
    """Only registered cards whose model contains this text, whatever the case, serve; empty: all."""
    whole_card_is_exclusive: bool = True
    """A share of all cores of a whole card needs the card unused."""
    zero_cores_need_free_cores: bool = True
    """A share without cores is refused where all cores are given away."""
    most_cores_percent: int = 100
    """More is read as this."""
    partitioned_mode: str = ""
    """Mode of cards that are partitioned in hardware."""


class VendorDescriptor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What distinguishes a family by data. Source: the tables of HAMi's wire formats."""

    word: str
    """How encodings name the family; also the key under which it is registered."""
    config_section: str
    """Section of the device configuration file."""
    resources: ResourceNames
    """Defaults; the configuration file may rename them."""

    register_key: str
    """Node annotation with the inventory."""
    register_format: Literal["json", "delimited"]
    handshake_key: str = ""
    pair_scores_key: str = ""
    to_allocate_key: str
    allocated_key: str
    mig_allocations_key: str = ""

    use_models_key: str = ""
    avoid_models_key: str = ""
    use_cards_key: str = ""
    avoid_cards_key: str = ""
    numa_bind_key: str = ""
    modes_key: str = ""

    visible_devices_env: str
    """Variable by which the container runtime shows cards to a container."""
    priority_env: str = ""
    """Variable that carries the priority resource into a container."""
    core_policy_env: str = ""
    """Variable that carries the configured core policy into a container."""

    placement: PlacementRules = PlacementRules()


class UnknownVendorError(LookupError):
    """No descriptor has this word."""


@cache
def catalogue() -> dict[str, VendorDescriptor]:
    """All families by word, in the order of their words."""
    found: dict[str, VendorDescriptor] = {}
    for entry in resources.files(__name__).iterdir():
        if entry.name.endswith(".toml"):
            descriptor = msgspec.convert(tomllib.loads(entry.read_text(encoding="utf-8")), VendorDescriptor)
            found[descriptor.word] = descriptor
    return dict(sorted(found.items()))


def vendor(word: str) -> VendorDescriptor:
    """The descriptor of one family. Raises UnknownVendorError, which lists the known words."""
    try:
        return catalogue()[word]
    except KeyError:
        raise UnknownVendorError(f"no accelerator family {word!r}; known: {', '.join(catalogue())}") from None


NVIDIA = "NVIDIA"
