"""The values of a case, read from its JSON: cards, pods to place, pods that hold cards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

Json = dict[str, Any]
PairScores = dict[str, dict[str, int]]
"""By card and peer, how well the cards are connected."""


class Family(NamedTuple):
    """What distinguishes one family of accelerators; asks and cards name it by its word."""

    word: str
    model_contains: str = ""
    """Only cards whose model contains it serve, whatever the case."""
    whole_card_is_exclusive: bool = True
    """All cores of a whole card are given of an unused card only."""
    zero_cores_need_free_cores: bool = True
    """A share without cores is refused where all cores are given away."""
    most_cores_percent: int = 100
    """More is read as this."""
    partitioned_mode: str = ""
    """Mode of cards that are partitioned in hardware; empty: none is."""
    has_pair_scores: bool = False
    """Its nodes tell how well their cards are connected; `topology-aware` chooses by it."""
    selection: str = "first"
    """`first`: the preferred cards; `groups`: cards of few groups; `pairs`: whole modules of two."""
    group_weight: float = 0.0
    """What a node's score gains for each container whose cards lie in one group."""


class Profile(NamedTuple):
    """A kind of instance that a card in MIG mode offers. Placements: start and size in memory slices."""

    name: str
    memory_mib: int
    cores_percent: int
    slice_count: int
    placements: tuple[tuple[int, int], ...]


class Card(NamedTuple):
    """A card as its node registered it. Memory in MiB, cores in percent of one card."""

    id: str
    vendor: str
    model: str
    index: int
    slots: int
    memory_mib: int
    cores_percent: int
    numa: int = 0
    mode: str = ""
    healthy: bool = True
    cordoned: bool = False
    mig_profiles: tuple[Profile, ...] = ()
    group: str | None = None
    """None: it names none; empty: it cannot be read."""


class Ask(NamedTuple):
    """What one container asks of one vendor; memory and cores are per card."""

    vendor: str
    count: int
    memory_mib: int = 0
    memory_percent: int | None = None
    cores_percent: int = 0
    mode: str = ""
    """Only cards in this mode serve; empty: any."""


class Shape(NamedTuple):
    """Pods that are expected: each asks this and nothing else. `weight`: how often, in proportion to the others."""

    weight: int
    ask: Ask


class Container(NamedTuple):
    """`kind`: `init` (ends before the next one starts), `sidecar` (an init container that keeps running), `app`."""

    name: str
    kind: str
    asks: tuple[Ask, ...]


class Constraint(NamedTuple):
    """Which cards of a vendor a pod accepts. None: any."""

    use_models: Sequence[str] | None = None
    avoid_models: Sequence[str] | None = None
    use_ids: Sequence[str] | None = None
    avoid_ids: Sequence[str] | None = None
    modes: str | None = None


class Pod(NamedTuple):
    """A pod to place."""

    uid: str
    namespace: str
    containers: tuple[Container, ...]
    node_policy: str
    card_policy: str
    numa_bind: bool
    constraints: dict[str, Constraint]
    weights: tuple[int, int, int]
    """Of slots, cores and memory in the score of a card."""


class Node(NamedTuple):
    """A registered node: its cards in the order of its inventory."""

    cards: tuple[Card, ...]
    pair_scores: PairScores


class Share(NamedTuple):
    """What one container has of one card."""

    card_id: str
    vendor: str
    memory_mib: int
    cores_percent: int
    profile: str = ""
    placement: tuple[int, int] | None = None
    """Of the instance, on a card in MIG mode: start and size in memory slices."""


class Booking(NamedTuple):
    """What a pod holds on a node: each container's kind with its shares, containers in their order."""

    uid: str
    namespace: str
    node: str
    state: str
    containers: tuple[tuple[str, tuple[Share, ...]], ...]
    init_done: bool = False
    blocked_cards: tuple[str, ...] = ()
    claims: tuple[tuple[str, tuple[int, int] | None], ...] = ()
    """Instances beyond the shares, by card and place; None: one that nobody can find."""


def read_node(found: Json) -> Node:
    return Node(tuple(_card(card) for card in found["cards"]), found.get("pair_scores", {}))


def _card(found: Json) -> Card:
    profiles = tuple(
        Profile(**{**profile, "placements": tuple(tuple(place) for place in profile["placements"])})
        for profile in found.get("mig_profiles", ())
    )
    return Card(**{**found, "mig_profiles": profiles})


def _share(found: Json) -> Share:
    place = found.get("placement")
    return Share(**{**found, "placement": None if place is None else tuple(place)})


def read_pod(found: Json) -> Pod:
    return Pod(
        uid=found["uid"],
        namespace=found["namespace"],
        containers=tuple(
            Container(container["name"], container["kind"], tuple(Ask(**ask) for ask in container["asks"]))
            for container in found["containers"]
        ),
        node_policy=found.get("node_policy", "binpack"),
        card_policy=found.get("card_policy", "spread"),
        numa_bind=found.get("numa_bind", False),
        constraints={vendor: Constraint(**rule) for vendor, rule in found.get("constraints", {}).items()},
        weights=tuple(found.get("weights", (1, 1, 1))),
    )


def read_charge(found: Json) -> Booking:
    """A bound pod."""
    return Booking(
        uid=found["uid"],
        namespace=found["namespace"],
        node=found["node"],
        state="bound",
        containers=tuple(
            (container["kind"], tuple(_share(share) for share in container["slices"]))
            for container in found["containers"]
        ),
        init_done=found.get("init_done", False),
        blocked_cards=tuple(found.get("blocked_cards", ())),
        claims=tuple(
            (claim["card_id"], None if claim.get("placement") is None else tuple(claim["placement"]))
            for claim in found.get("claims", ())
        ),
    )
