"""From device facts to the register annotation and kubelet's device list, as in the lock hand-off."""

from __future__ import annotations

import json
from typing import Any

from hami_model import device_config, register, vendors
from hami_model.cards import MigPlacement
from hami_model.device_config import VendorSettings
from hami_model.errors import HamiError
from hami_model.ids import CardId
from hami_node_agent.core.inventory import (
    CardFacts,
    Inventory,
    annotation_to_write,
    kubelet_devices,
    take_inventory,
)
from hami_node_agent.core.mig_profiles import InstanceProfile
from hami_node_agent.core.node_options import NodeOptions, node_options
from vectors import Row

NVIDIA = vendors.vendor(vendors.NVIDIA)


def settings_of(row: Row) -> VendorSettings:
    """JSON is YAML."""
    found = device_config.parse(json.dumps(row["config"]["device_config"])).vendor(vendors.NVIDIA)
    if found is None:
        raise LookupError("the vector configures no NVIDIA cards")
    return found


def node_options_of(row: Row) -> NodeOptions:
    config = row["config"]
    return node_options(settings_of(row), config.get("node_config_json"), config["env"]["NODE_NAME"])


def inventory_of(row: Row) -> Inventory:
    unhealthy = frozenset(
        CardId(device["uuid"]) for device in row["devices"] if device.get("health", "Healthy").lower() != "healthy"
    )
    return take_inventory([_facts(device) for device in row["devices"]], node_options_of(row), unhealthy)


def _facts(device: Row) -> CardFacts:
    query = device.get("mem_query") or ""
    return CardFacts(
        uuid=device["uuid"],
        index=device["index"],
        name=device["name"],
        minor=device["minor"],
        memory_bytes=device["mem_bytes"],
        memory_fault="" if query == "NOT_SUPPORTED" else query,
        numa_text=device.get("numa_node"),
        pci_bus_id=device["bus_id"],
        mig_profiles=tuple(_profile(profile) for profile in device.get("gi_profiles", ())),
    )


def _profile(profile: Row) -> InstanceProfile:
    return InstanceProfile(
        kind=profile["profile_id"],
        driver_id=profile["profile_id"],
        slice_count=profile["slice_count"],
        instance_count=profile["instance_count"],
        sm_count=profile["sm_count"],
        memory_mib=profile["memory_mb"],
        placements=tuple(MigPlacement(start=at["start"], size=at["size"]) for at in profile["placements"] or ()),
    )


def answer(row: Row) -> dict[str, Any]:
    try:
        return _answer(row)
    except HamiError as error:
        return {"start_error": str(error)}


def _answer(row: Row) -> dict[str, Any]:
    inventory = inventory_of(row)
    annotations: dict[str, str] | None = None if row["node"] is None else dict(row["node"]["annotations"] or {})
    text = register.encode(NVIDIA, inventory.cards)
    passes = []
    for _ in range(row["passes"] if inventory.cards else 0):
        if annotations is None:
            passes.append({"changed": False, "error": "the node does not exist"})
            continue
        wanted = annotation_to_write(annotations.get(NVIDIA.register_key), text, has_cards=bool(inventory.cards))
        if wanted is not None:
            annotations[NVIDIA.register_key] = wanted
        passes.append({"changed": wanted is not None, "error": None})
    shown = annotations or {}
    return {
        "passes": passes,
        "not_started": not inventory.cards,
        "register_annotation": shown.get(NVIDIA.register_key),
        "score_annotation": shown.get(NVIDIA.pair_scores_key),
        "other_annotations": {
            key: value for key, value in shown.items() if key not in (NVIDIA.register_key, NVIDIA.pair_scores_key)
        },
        "kubelet_devices": _kubelet(row, inventory),
        "events": [],
    }


def _kubelet(row: Row, inventory: Inventory) -> list[dict[str, Any]]:
    devices = kubelet_devices(inventory, numa_topology=node_options_of(row).numa_topology)
    found = []
    for card in inventory.cards:
        own = [device for device in devices if device.id.startswith(f"{card.id}-")]
        found.append(
            {
                "uuid": card.id,
                "replicas": len(own),
                "health": "Healthy" if card.healthy else "Unhealthy",
                "numa": own[0].numa_node if own else None,
            }
        )
    return found
