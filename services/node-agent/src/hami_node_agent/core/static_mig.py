"""MIG instances that somebody made beforehand, offered as they are.

none    cards in MIG mode count as whole cards, or by `operatingmode: mig` as cards whose instances we make
single  every card is in MIG mode and all instances are of one profile: each is what a card is elsewhere
mixed   each profile has a resource of its own, `nvidia.com/mig-<profile>`, which kubelet counts and nobody else;
        cards that are not in MIG mode are offered as ever
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from hami_node_agent.core.device_lists import VisibleDevice, capability_node, card_node
from hami_node_agent.core.inventory import CardFacts, KubeletDevice

MigStrategy = Literal["none", "single", "mixed"]

_PROFILE: Final = re.compile(
    r".* MIG (?P<profile>(?P<compute>[0-9]+c\.)?[0-9]+g\.[0-9a-z]+(?:\+[0-9a-z.]+)*)", re.ASCII | re.DOTALL
)
_MINOR: Final = re.compile(r"(?P<name>gpu[0-9]+/gi[0-9]+(?:/ci[0-9]+)?/access) (?P<minor>[0-9]{1,6})", re.ASCII)
_REPLICA: Final = "::"
RESOURCE_DOMAIN: Final = "nvidia.com"


class StaticInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A MIG device as the driver describes it."""

    uuid: str
    name: str
    """The card's with the profile behind it, such as `NVIDIA A100-SXM4-40GB MIG 1g.5gb`."""
    number: int
    """NVML's, on its card."""
    gpu_instance: int
    compute_instance: int
    memory_bytes: int | None
    card: CardFacts

    @property
    def profile(self) -> str:
        """Empty where the name has no such form."""
        match = _PROFILE.fullmatch(self.name)
        return match["profile"] if match is not None else ""

    @property
    def is_whole(self) -> bool:
        """Whether its compute instance is all of its GPU instance."""
        match = _PROFILE.fullmatch(self.name)
        return match is not None and match["compute"] is None

    @property
    def index(self) -> str:
        return f"{self.card.index}:{self.number}"


class StaticOffer(msgspec.Struct, frozen=True, kw_only=True):
    """What is offered of cards and instances."""

    cards: tuple[CardFacts, ...]
    """What `nvidia.com/gpu` counts."""
    by_resource: Mapping[str, tuple[StaticInstance, ...]] = {}
    """Instances of resources of their own."""
    problems: tuple[str, ...] = ()


class StaticDevices(msgspec.Struct, frozen=True, kw_only=True):
    """MIG devices that kubelet's ids may name."""

    devices: Callable[[], Mapping[str, VisibleDevice]]
    """By UUID, as they are now."""
    one_at_most: bool = False
    """Shares of one device do not add up, so a container may ask for one only."""


NO_STATIC_DEVICES: Final = StaticDevices(devices=dict)


def static_offer(
    cards: Sequence[CardFacts],
    in_mig_mode: frozenset[str],
    instances: Iterable[StaticInstance],
    strategy: MigStrategy,
    capabilities: Mapping[str, int],
) -> StaticOffer:
    """`in_mig_mode`: UUIDs of cards. `capabilities`: see `capability_minors`."""
    if strategy == "none":
        return StaticOffer(cards=tuple(cards))
    found = sorted(instances, key=lambda one: (one.card.index, one.number))
    odd = [one for one in found if not one.is_whole]
    problems = [
        f"MIG device {one.uuid} ({one.name}) is not offered: its compute instance is not all of its GPU instance"
        for one in odd
    ]
    whole = [one for one in found if one.is_whole]
    if strategy == "mixed":
        resources = dict.fromkeys(resource_of(one.profile) for one in whole)
        return StaticOffer(
            cards=tuple(card for card in cards if card.uuid not in in_mig_mode),
            by_resource={
                resource: tuple(one for one in whole if resource_of(one.profile) == resource) for resource in resources
            },
            problems=tuple(problems),
        )
    problems += _against_single(cards, in_mig_mode, whole)
    return StaticOffer(
        cards=() if problems else tuple(_as_card(number, one, capabilities) for number, one in enumerate(whole)),
        problems=tuple(problems),
    )


def resource_of(profile: str) -> str:
    return f"{RESOURCE_DOMAIN}/mig-{profile.replace('+', '.')}"


def _against_single(
    cards: Sequence[CardFacts], in_mig_mode: frozenset[str], instances: Sequence[StaticInstance]
) -> list[str]:
    """Why nothing can be offered under `single`."""
    asked = "devices.mig_strategy single"
    problems = [
        f"card {card.uuid} is not in MIG mode, which {asked} needs of all cards; no card is offered; set mixed"
        for card in cards
        if card.uuid not in in_mig_mode
    ]
    holding = {one.card.uuid for one in instances}
    problems += [
        f"card {card.uuid} has no MIG device, which {asked} needs; no card is offered; make some by nvidia-smi mig"
        for card in cards
        if card.uuid in in_mig_mode and card.uuid not in holding
    ]
    profiles = sorted({one.profile for one in instances})
    if len(profiles) > 1:
        problems.append(
            f"MIG devices are of several profiles ({', '.join(profiles)}), {asked} needs one; no card is offered; "
            "set mixed"
        )
    return problems


def _as_card(number: int, instance: StaticInstance, capabilities: Mapping[str, int]) -> CardFacts:
    return CardFacts(
        uuid=instance.uuid,
        index=number,
        name=instance.card.name,
        minor=instance.card.minor,
        memory_bytes=instance.memory_bytes,
        numa_text=instance.card.numa_text,
        pci_bus_id=instance.card.pci_bus_id,
        instance_of=instance.card.uuid,
        shown_index=instance.index,
        capability_nodes=capability_nodes(instance, capabilities),
    )


def capability_minors(text: str) -> dict[str, int]:
    """n of /dev/nvidia-caps/nvidia-cap<n> by what it opens, from /proc/driver/nvidia-caps/mig-minors."""
    matches = (_MINOR.fullmatch(line.strip()) for line in text.splitlines())
    return {match["name"]: int(match["minor"]) for match in matches if match is not None}


def capability_nodes(instance: StaticInstance, capabilities: Mapping[str, int]) -> tuple[str, ...]:
    """The two nodes that open an instance; none that the kernel's list does not name."""
    gpu = f"gpu{instance.card.minor}/gi{instance.gpu_instance}"
    names = (f"{gpu}/access", f"{gpu}/ci{instance.compute_instance}/access")
    return tuple(capability_node(capabilities[name]) for name in names if name in capabilities)


def visible_instance(instance: StaticInstance, capabilities: Mapping[str, int]) -> VisibleDevice:
    return VisibleDevice(
        uuid=instance.uuid,
        index=instance.index,
        nodes=(card_node(instance.card.minor), *capability_nodes(instance, capabilities)),
    )


# ---- kubelet's ids -------------------------------------------------------------------------------------------------


def instance_devices(
    instances: Iterable[StaticInstance], unhealthy: frozenset[str], replicas: int = 1
) -> tuple[KubeletDevice, ...]:
    """An id is the UUID; shared in time there are several, `<uuid>::<number>`. `unhealthy`: UUIDs of cards."""
    return tuple(
        KubeletDevice(
            id=one.uuid if replicas <= 1 else f"{one.uuid}{_REPLICA}{replica}",
            healthy=one.card.uuid not in unhealthy,
            numa_node=_numa(one.card.numa_text),
        )
        for one in instances
        for replica in range(max(1, replicas))
    )


def _numa(text: str | None) -> int | None:
    stripped = (text or "").strip()
    return int(stripped) if stripped.isascii() and stripped.isdecimal() else None


def chosen_instances(
    device_ids: Sequence[str], known: Mapping[str, VisibleDevice], *, one_at_most: bool
) -> tuple[VisibleDevice, ...] | str:
    """What kubelet's ids stand for, or what is wrong with them. `one_at_most`: shares of one do not add up."""
    if one_at_most and len(device_ids) > 1:
        return (
            f"{len(device_ids)} MIG devices are asked for, and shared ones are given one at a time "
            "(failRequestsGreaterThanOne)"
        )
    uuids = [device.partition(_REPLICA)[0] for device in device_ids]
    unknown = [uuid for uuid in uuids if uuid not in known]
    if unknown:
        return f"this node has no MIG device {', '.join(unknown)}"
    return tuple(known[uuid] for uuid in dict.fromkeys(uuids))
