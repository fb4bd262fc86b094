"""What a descriptor file may say, field by field."""

from __future__ import annotations

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


class RequestRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a container's resources mean."""

    cores_percent: int = 0
    """Cores of a request that names none, where the configuration sets no other."""
    share_brings_count: bool = False
    """Memory or cores without a number of cards bring the configured number with them."""
    whole_card_brings_all_cores: bool = False
    """A request for a whole card's memory that names no cores gets all of them."""
    memory_is_written: bool = False
    """The memory that a request means is written into the container: the node side reads it there."""


class SoftSplit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cards that are cut by hardware, and that nodes may offer to be shared by software instead."""

    mode: str
    """Value of the pod's annotation that asks for it; also the mode of cards that can be shared so."""
    pod_key: str
    node_key: str
    """Node annotation, `true` or `false`; where it is absent the configuration decides."""


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
    card_cores_percent: int | None = None
    """Cores of every card, where nodes register them in another unit than requests; None: as registered."""
    selection: str = "first"
    """Which of the cards that pass are taken: a strategy of the engine, by its name."""
    group_weight: float = 0
    """What a node's score gains by cards of one group."""


class ConfigRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the device configuration file speaks of a family, and in which words."""

    section: str
    keys: list[str]
    """Keys that count, by the names of `device_config`."""
    renamed: dict[str, str] = {}
    """Key as the file writes it -> name of `device_config`."""
    node_side_keys: list[str] = []
    """Keys that only the node's plugin reads."""
    entries_key: str = ""
    """Key of a list with one entry a chip; empty: the section itself is the only entry."""
    word_key: str = ""
    """Key of the chip's word in such an entry."""
    shared_keys: dict[str, str] = {}
    """Keys beside the list that count for every entry, with their names of `device_config`."""


class VendorDescriptor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What distinguishes one kind of accelerator by data. Source: the tables of HAMi's wire formats."""

    word: str
    """How encodings name it; also the key under which it is registered."""
    resources: ResourceNames
    """Defaults; the configuration file may rename them."""

    register_key: str
    """Node annotation with the inventory."""
    register_format: Literal["json", "delimited"]
    group_field: str = ""
    """Field of a card's custom information that names the group of well connected cards it belongs to."""
    group_kind: Literal["number", "text"] = "text"
    """What a readable group is."""
    health: Literal["allocatable", "handshake"]
    """How it is known that a node's plugin lives: from the allocatable count alone, or by answered handshakes too."""
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

    visible_devices_env: str = ""
    """Variable by which the container runtime shows cards to a container."""
    hide_cards_value: str = ""
    """Value of that variable that shows none."""
    priority_env: str = ""
    """Variable that carries the priority resource into a container."""
    core_policy_env: str = ""
    """Variable that carries the configured core policy into a container."""

    annotations: str = ""
    """What is written on a placed pod besides the allocation: a module of `annotation_writers`. Empty: nothing."""
    annotation_keys: dict[str, str] = {}
    """Keys that this module writes, by its names for them."""

    request: RequestRules = RequestRules()
    soft_split: SoftSplit | None = None
    placement: PlacementRules = PlacementRules()

    @property
    def pod_keys(self) -> tuple[str, ...]:
        """Annotations that say what a pod holds: only the system writes them."""
        keys = (self.to_allocate_key, self.allocated_key, self.mig_allocations_key, *self.annotation_keys.values())
        return tuple(key for key in keys if key)

    @property
    def node_keys(self) -> tuple[str, ...]:
        """Annotations of nodes that are read."""
        split = (self.soft_split.node_key,) if self.soft_split is not None else ()
        return tuple(key for key in (self.register_key, self.handshake_key, self.pair_scores_key, *split) if key)

    @property
    def wish_keys(self) -> tuple[str, ...]:
        """Annotations by which users choose."""
        split = (self.soft_split.pod_key,) if self.soft_split is not None else ()
        keys = (
            self.use_models_key,
            self.avoid_models_key,
            self.use_cards_key,
            self.avoid_cards_key,
            self.numa_bind_key,
            self.modes_key,
            *split,
        )
        return tuple(key for key in keys if key)
