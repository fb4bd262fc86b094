"""What a state directory remembers of its cluster."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hami_sim.cluster.errors import ClusterError
from hami_sim.cluster.layout import ClusterLayout
from hami_sim.cluster.profile import ClusterProfile, node_plans
from hami_sim.controlplane.layout import write_private
from hami_sim.loopback_ports import choose_free_ports


class SimRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Enough to find the cluster again, and to start any of its services again at the same place."""

    profile: ClusterProfile
    nodes_root: str
    ports: dict[str, int]
    """TCP ports on loopback by the name of what listens there."""


def new_record(layout: ClusterLayout, profile: ClusterProfile) -> SimRecord:
    """Chooses free ports and the nodes' place, which is made."""
    return SimRecord(profile=profile, nodes_root=str(layout.choose_nodes_root()), ports=choose_ports(profile))


def choose_ports(profile: ClusterProfile) -> dict[str, int]:
    """A free port for everything that listens."""
    names = port_names(profile)
    return dict(zip(names, choose_free_ports(len(names)), strict=True))


def port_names(profile: ClusterProfile) -> tuple[str, ...]:
    """Everything of the cluster that listens, the control plane apart."""
    schedulers = [f"scheduler-{number}" for number in range(profile.schedulers)]
    nodes = [plan.name for plan in node_plans(profile) if plan.has_cards]
    return (
        "nats",
        "nats-monitor",
        "extender",
        "forwarder-observation",
        "webhook",
        "webhook-observation",
        *(f"{name}-{purpose}" for name in schedulers for purpose in ("extender", "observation")),
        *(f"{service}-{node}" for node in nodes for service in ("node-agent", "monitor")),
    )


def load_sim_record(layout: ClusterLayout) -> SimRecord | None:
    """None when the directory holds no cluster. Raises ClusterError."""
    try:
        raw = layout.sim_record.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(raw, type=SimRecord)
    except msgspec.DecodeError as error:
        raise ClusterError(
            f"{layout.sim_record} is not readable ({error}); end what runs there by hand and remove {layout.root}"
        ) from error


def store_sim_record(layout: ClusterLayout, record: SimRecord) -> None:
    """Replaces what the directory remembers."""
    write_private(layout.sim_record, msgspec.json.format(msgspec.json.encode(record)))


def nodes_root(record: SimRecord) -> Path:
    """The folder that holds the nodes' folders."""
    return Path(record.nodes_root)
