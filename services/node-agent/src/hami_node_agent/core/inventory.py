"""From what the driver says of its cards to what the node offers: register annotation and kubelet's device list."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec
from hami_model.cards import Card
from hami_model.ids import CardId
from hami_model.pair_scores import PairScores

from hami_node_agent.core import mig_uuid
from hami_node_agent.core.device_lists import VisibleDevice, card_node
from hami_node_agent.core.mig_profiles import InstanceProfile, ProfileOffer, profiles_to_offer
from hami_node_agent.core.node_options import MIG, NodeOptions

_MIB: Final = 1024 * 1024
_INT32_MAX: Final = 2**31 - 1
_BRAND: Final = "NVIDIA"
_DISPLAY_CARDS: Final = frozenset({"DGX Display", "NVIDIA DGX Display"})
"""Drive a screen only; no workload may run there."""
_DECIMAL: Final = re.compile(r"-?[0-9]{1,9}", re.ASCII)
_REPLICA: Final = re.compile(r"(?P<card>.+)-[0-9]+", re.ASCII | re.DOTALL)


class CardFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One card as the driver describes it."""

    uuid: str
    index: int
    """NVML's, in bus order; the order in which containers see cards."""
    name: str
    minor: int = 0
    """n of /dev/nvidia<n>."""
    memory_bytes: int | None = None
    """None: the driver cannot tell, see `memory_fault`."""
    memory_fault: str = ""
    """Empty where the driver has no such query for this card; else what went wrong."""
    numa_text: str | None = None
    """Content of the kernel's numa_node file; None where there is none."""
    pci_bus_id: str = ""
    mig_profiles: tuple[InstanceProfile, ...] = ()
    """What MIG instances its driver can make; none where it has no MIG."""
    is_mig_off: bool = False
    """The card has MIG, and its mode is off."""
    mig_mode_problem: str = ""
    """Why the mode could not be switched on; empty where nobody tried."""
    instance_of: str = ""
    """UUID of the card whose MIG device this is; then it is one share, and has the memory that it has."""
    shown_index: str = ""
    """What containers are told instead of `index`."""
    capability_nodes: tuple[str, ...] = ()
    """Nodes that open it besides its card's."""


class UnreadableCard(msgspec.Struct, frozen=True, kw_only=True):
    """A card that there is, and that the driver says nothing of."""

    index: int
    uuid: str
    """Empty where it was never told."""
    reason: str


class Discovery(msgspec.Struct, frozen=True, kw_only=True):
    """What one look at all cards found."""

    cards: tuple[CardFacts, ...] = ()
    unreadable: tuple[UnreadableCard, ...] = ()
    problems: tuple[str, ...] = ()
    """Why MIG devices are left out that somebody made beforehand."""


class OfferedCard(msgspec.Struct, frozen=True, kw_only=True):
    """A card with what is told about it."""

    card: Card
    """As registered."""
    minor: int
    numa_node: int | None
    """None where it is not known."""
    kubelet_ids: int
    """How many ids kubelet has for it: at least one for each share."""
    own_id: bool = False
    """Its UUID is the one id: it cannot be shared."""
    shown_index: str = ""
    """What containers are told as its number."""
    capability_nodes: tuple[str, ...] = ()


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """All that the node offers, by index."""

    offered: tuple[OfferedCard, ...] = ()
    problems: tuple[str, ...] = ()
    """Cards that are not offered, or not as they should be, and what to change."""
    pair_scores: tuple[PairScores, ...] | None = None
    """How well the offered cards are connected; None where that is not published."""
    unread: frozenset[str] = frozenset()
    """UUIDs of cards that are not offered only because the driver cannot tell of them now; empty: it never told it."""

    def may_have(self, card_ids: Iterable[str]) -> bool:
        """Whether all of these, which are not offered, may be offered once the driver tells of its cards."""
        return bool(self.unread) and ("" in self.unread or self.unread.issuperset(card_ids))

    @property
    def cards(self) -> tuple[Card, ...]:
        return tuple(offered.card for offered in self.offered)

    def find(self, card_id: str) -> OfferedCard | None:
        return next((offered for offered in self.offered if offered.card.id == card_id), None)


class KubeletDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One of the ids that kubelet hands out."""

    id: str
    healthy: bool
    numa_node: int | None = None


def refreshed(known: CardFacts | None, fact: CardFacts) -> CardFacts:
    """What is known of a card once it was asked again: what it cannot tell any more stays as it was told.

    Its health says the rest.
    """
    if known is None:
        return fact
    if known.memory_bytes is not None and fact.memory_bytes is None:
        return known
    return msgspec.structs.replace(fact, numa_text=known.numa_text) if fact.numa_text is None else fact


def wants_mig_on(fact: CardFacts, options: NodeOptions) -> bool:
    """Whether the card would be offered if its MIG mode were on."""
    return (
        options.operating_mode == MIG
        and fact.is_mig_off
        and not is_hidden(fact, options)
        and bool(profiles_to_offer(fact.mig_profiles, fact.name, options.mig_allowances).profiles)
    )


def take_inventory(
    facts: Iterable[CardFacts],
    options: NodeOptions,
    unhealthy: frozenset[CardId] = frozenset(),
    unreadable: Iterable[UnreadableCard] = (),
) -> Inventory:
    """What the node offers. One card's fault costs only that card."""
    offered: list[OfferedCard] = []
    nameless = [card for card in unreadable if not card.uuid and card.index not in options.hidden_indexes]
    problems = [f"the card at index {card.index} is not offered: it cannot be read: {card.reason}" for card in nameless]
    unread = {card.uuid for card in nameless}
    for fact in sorted(facts, key=lambda fact: fact.index):
        if is_hidden(fact, options):
            continue
        memory_mib = _memory_mib(fact, options, problems)
        if memory_mib is None:
            if fact.memory_fault:
                unread.add(fact.uuid)
            continue
        mig = _mig_offer(fact, options, problems) if options.operating_mode == MIG else None
        if mig is not None and not mig.profiles:
            continue
        numa_node = _numa_node(fact, problems)
        is_instance = mig is not None or bool(fact.instance_of)
        slots = 1 if fact.instance_of else options.split_count if mig is None else mig.slots
        card = Card(
            id=CardId(fact.uuid),
            index=fact.index,
            slots=slots,
            memory_mib=memory_mib,
            cores_percent=100 if is_instance else min(_truncated(options.core_scaling * 100), _INT32_MAX),
            model=fact.name if fact.name.startswith(_BRAND) else f"{_BRAND}-{fact.name}",
            numa=numa_node or 0,
            mode=options.operating_mode,
            healthy=unhealthy.isdisjoint((CardId(fact.uuid), CardId(fact.instance_of))),
            mig_profiles=() if mig is None else mig.profiles,
        )
        offered.append(
            OfferedCard(
                card=card,
                minor=fact.minor,
                numa_node=numa_node,
                kubelet_ids=1 if fact.instance_of else max(slots, options.split_count),
                own_id=bool(fact.instance_of),
                shown_index=fact.shown_index,
                capability_nodes=fact.capability_nodes,
            )
        )
    return Inventory(offered=tuple(offered), problems=tuple(problems), unread=frozenset(unread))


def annotation_to_write(current: str | None, wanted: str, *, has_cards: bool) -> str | None:
    """What to write where `current` stands; None where nothing is to be written.

    A node without cards says so only where something else stands there.
    """
    return None if current == wanted or (current is None and not has_cards) else wanted


def kubelet_devices(inventory: Inventory, *, numa_topology: bool) -> tuple[KubeletDevice, ...]:
    """Ids `<card>-<number>`. NUMA nodes only where kubelet's choice of an id decides about the card."""
    return tuple(
        KubeletDevice(
            id=offered.card.id if offered.own_id else f"{offered.card.id}-{slot}",
            healthy=offered.card.healthy,
            numa_node=offered.numa_node if numa_topology else None,
        )
        for offered in inventory.offered
        for slot in range(offered.kubelet_ids)
    )


def visible_cards(inventory: Inventory, card_ids: Iterable[str]) -> tuple[VisibleDevice, ...]:
    """What containers are told of these cards; a card that is not offered has neither index nor node."""
    found = [(card_id, inventory.find(card_id)) for card_id in card_ids]
    return tuple(
        VisibleDevice(uuid=card_id, index="")
        if offered is None
        else VisibleDevice(
            uuid=card_id,
            index=offered.shown_index or str(offered.card.index),
            nodes=(card_node(offered.minor), *offered.capability_nodes),
        )
        for card_id, offered in found
    )


def mig_devices(inventory: Inventory) -> tuple[VisibleDevice, ...]:
    """What containers are told of MIG devices that are offered as cards."""
    return visible_cards(inventory, [card.id for card in inventory.cards if mig_uuid.is_mig(card.id)])


def card_of_device(device_id: str) -> CardId:
    """The card of one of kubelet's ids: what stands before `::`, or before a numeric tail after six dashes."""
    card, separator, _ = device_id.partition("::")
    if separator:
        return CardId(card)
    match = _REPLICA.fullmatch(device_id)
    return CardId(match["card"] if match is not None and device_id.count("-") == 6 else device_id)


def is_hidden(fact: CardFacts, options: NodeOptions) -> bool:
    """Whether the node's configuration leaves a card, or a MIG device, out. A MIG device's number is its card's."""
    index = int(fact.shown_index.partition(":")[0]) if fact.instance_of else fact.index
    uuids = {fact.uuid, fact.instance_of}
    return fact.name in _DISPLAY_CARDS or not options.hidden_uuids.isdisjoint(uuids) or index in options.hidden_indexes


def _memory_mib(fact: CardFacts, options: NodeOptions, problems: list[str]) -> int | None:
    if fact.memory_bytes is not None:
        whole = fact.memory_bytes // _MIB
    elif fact.memory_fault:
        problems.append(f"card {fact.uuid} is not offered: its memory cannot be read: {fact.memory_fault}")
        return None
    elif options.preconfigured_memory_mib > 0:
        whole = options.preconfigured_memory_mib
    else:
        problems.append(
            f"card {fact.uuid} is not offered: its driver cannot tell its memory; "
            "set preConfiguredDeviceMemory in the device configuration"
        )
        return None
    # Instances have the memory they have.
    unscaled = options.memory_scaling == 1 or options.operating_mode == MIG or bool(fact.instance_of)
    scaled = whole if unscaled else _truncated(whole * options.memory_scaling)
    if scaled > _INT32_MAX:
        problems.append(
            f"card {fact.uuid} is not offered: {whole} MiB times deviceMemoryScaling {options.memory_scaling} "
            "does not fit 32 bits; lower the factor"
        )
        return None
    return scaled


def _mig_offer(fact: CardFacts, options: NodeOptions, problems: list[str]) -> ProfileOffer:
    if fact.is_mig_off:
        how = fact.mig_mode_problem or f"switch it on with: nvidia-smi -i {fact.uuid} -mig 1"
        problems.append(f"card {fact.uuid} is not offered: its MIG mode is off; {how}")
        return ProfileOffer()
    offer = profiles_to_offer(fact.mig_profiles, fact.name, options.mig_allowances)
    state = "" if offer.profiles else " is not offered"
    problems += [f"card {fact.uuid}{state}: {problem}" for problem in offer.problems]
    if not offer.profiles and not offer.problems:
        problems.append(f"card {fact.uuid} is not offered: migProfileAllowlist allows its model no profile")
    return offer


def _truncated(product: float) -> int:
    """Toward zero, of the binary product: 0.29 * 100 gives 28, as everyone who speaks this format computes it."""
    return int(product)


def _numa_node(fact: CardFacts, problems: list[str]) -> int | None:
    text = (fact.numa_text or "").strip()
    if not text:
        return None
    if not _DECIMAL.fullmatch(text):
        problems.append(f"card {fact.uuid}: its NUMA node {text[:24]!r} is no number and taken as unknown")
        return None
    return int(text) if int(text) >= 0 else None
