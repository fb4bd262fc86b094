"""What a local cluster consists of: nodes, their cards, and settings of the services."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml

from hami_sim.cluster.errors import ClusterError

CARDS_PER_NODE_MAX = 16
"""What the simulated driver holds."""
NODES_MAX = 1000

ServiceName = Literal["scheduler", "webhook", "node-agent", "monitor"]
NodeServiceName = Literal["node-agent", "monitor"]


class CardGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Equal cards of a node."""

    count: Annotated[int, msgspec.Meta(ge=1, le=CARDS_PER_NODE_MAX)] = 1
    model: str = "NVIDIA A100-SXM4-40GB"
    """As NVML names it."""
    memory_mib: Annotated[int, msgspec.Meta(ge=1)] = 40960
    sm_count: Annotated[int, msgspec.Meta(ge=1)] = 108
    compute_capability: str = "8.0"
    mig_capable: bool = False
    driver: dict[str, Any] = {}
    """More fields of the simulated driver's description, for each of these cards."""


class NodeGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Equal nodes, named `<name>-<number>`."""

    name: Annotated[str, msgspec.Meta(pattern="^[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?$")] = "sim"
    count: Annotated[int, msgspec.Meta(ge=0, le=NODES_MAX)] = 1
    cards: tuple[CardGroup, ...] = (CardGroup(count=4),)
    """In the order of their indexes. Empty: nodes without cards, which run no node-agent and no monitor."""
    links: tuple[dict[str, Any], ...] = ()
    """How the cards are connected, as in the simulated driver's description: `{from: 0, to: 1, nvlinks: 4}`. Empty:
    over PCIe only."""
    labels: dict[str, str] = msgspec.field(default_factory=lambda: {"gpu": "on"})
    driver_version: str = "570.124.06"
    cuda_version: str = "12.8"
    settings: dict[NodeServiceName, dict[str, Any]] = {}
    """Settings of these nodes' services, over those of the whole cluster."""


class ClusterProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A local cluster, as `hami-sim up --profile FILE` reads it."""

    nodes: tuple[NodeGroup, ...] = (NodeGroup(count=2),)
    controllers: bool = True
    """Whether kube-controller-manager runs: Deployments, default ServiceAccounts, nodes that went away."""
    schedulers: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1
    """Replicas of our scheduler; one of them leads."""
    container_mode: Literal["namespace", "prefix", "auto"] = "auto"
    """How containers see files: a mount namespace each, or host paths written into their processes. `auto` takes the
    first where the machine allows it."""
    time_scale: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """Factor on kubelet's delays: crash-loop back-off, retry of a failed start."""
    settings: dict[ServiceName, dict[str, Any]] = {}
    """Settings by service, over those that this cluster needs."""


def uniform_profile(nodes: int, cards: int, *, controllers: bool = True) -> ClusterProfile:
    """Equal nodes with equal cards. Raises ClusterError."""
    document = {
        "nodes": [{"count": nodes, "cards": [{"count": cards}] if cards else []}],
        "controllers": controllers,
    }
    return profile_of(document, "the options")


def load_profile(file: Path) -> ClusterProfile:
    """Reads a profile, YAML or JSON. Raises ClusterError with the path of what is wrong."""
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ClusterError(f"profile {file}: {' '.join(str(error).split())}") from error
    return profile_of({} if document is None else document, f"profile {file}")


def profile_of(document: object, origin: str) -> ClusterProfile:
    """A checked profile. Raises ClusterError."""
    try:
        profile = msgspec.convert(document, ClusterProfile)
    except msgspec.ValidationError as error:
        raise ClusterError(f"{origin}: {error}") from error
    names = [group.name for group in profile.nodes]
    if len(set(names)) != len(names):
        raise ClusterError(f"{origin}: groups of nodes need names of their own, these are {', '.join(names)}")
    for group in profile.nodes:
        count = sum(cards.count for cards in group.cards)
        if count > CARDS_PER_NODE_MAX:
            raise ClusterError(f"{origin}: nodes {group.name} have {count} cards; at most {CARDS_PER_NODE_MAX} can be")
    return profile


class NodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One node to be made."""

    name: str
    index: int
    """Over the whole cluster."""
    group: NodeGroup

    @property
    def has_cards(self) -> bool:
        return bool(self.group.cards)


def node_plans(profile: ClusterProfile) -> tuple[NodePlan, ...]:
    """Every node of the profile, by index."""
    named = [(f"{group.name}-{number}", group) for group in profile.nodes for number in range(group.count)]
    return tuple(NodePlan(name=name, index=index, group=group) for index, (name, group) in enumerate(named))
