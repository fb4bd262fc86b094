"""From device facts to the register annotation and kubelet's device list, as in the lock hand-off."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hami_model import device_config, pair_scores, register, vendors
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
    wants_mig_on,
)
from hami_node_agent.core.mig_profiles import InstanceProfile
from hami_node_agent.core.node_options import NodeOptions, node_options
from hami_node_agent.core.topology import CardLinks, CommonAncestor, ScoredPairs, Topology, score_pairs
from vectors import Row

NVIDIA = vendors.vendor(vendors.NVIDIA)
_ANCESTORS = {"HOSTBRIDGE": "HOST_BRIDGE", "CPU": "NODE"}


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
    return take_inventory(card_facts(row), node_options_of(row), unhealthy)


def card_facts(row: Row) -> list[CardFacts]:
    """As they are once the agent has begun: where it is wanted, MIG mode is on, as nobody uses these cards."""
    options = node_options_of(row)
    found = [_facts(device) for device in row["devices"]]
    return [
        msgspec.structs.replace(fact, is_mig_off=fact.is_mig_off and not wants_mig_on(fact, options)) for fact in found
    ]


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
        is_mig_off=device.get("mig_mode") == "disabled",
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
    scored = _scored(row, inventory)
    passes = []
    for _ in range(row["passes"] if inventory.cards else 0):
        if annotations is None:
            passes.append({"changed": False, "error": "the node does not exist"})
            continue
        texts = {NVIDIA.register_key: text}
        if scored is not None:
            texts[NVIDIA.pair_scores_key] = pair_scores.encode(scored.elements)
        found = {key: annotation_to_write(annotations.get(key), told, has_cards=True) for key, told in texts.items()}
        wanted = {key: told for key, told in found.items() if told is not None}
        annotations |= wanted
        passes.append({"changed": bool(wanted), "error": None})
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
        "events": [{"type": "Warning", "reason": "AsymmetricGPUP2PLink"}] if scored and scored.asymmetric else [],
    }


def _scored(row: Row, inventory: Inventory) -> ScoredPairs | None:
    if row["config"]["env"].get("ENABLE_TOPOLOGY_SCORE") != "true":
        return None
    return score_pairs(_topology(row["devices"]), [card.id for card in inventory.cards])


def _topology(devices: list[Row]) -> Topology:
    """As the adapter reads it: no such link, or no such property, counts nothing; another fault costs the card."""
    by_index = {str(device["index"]): device["uuid"] for device in devices}
    return Topology(
        links={device["uuid"]: links for device in devices if (links := _links(device)) is not None},
        ancestors={
            (device["uuid"], by_index[peer]): CommonAncestor[_ANCESTORS.get(level, level)]
            for device in devices
            for peer, level in (device.get("topology") or {}).items()
        },
    )


def _links(device: Row) -> CardLinks | None:
    enabled = [link for link in device.get("nvlinks") or [] if link["enabled"] and not link.get("state_query")]
    if any(_is_unreadable(link) for link in device.get("nvlinks") or []):
        return None
    return CardLinks(
        pci_bus_id=device["bus_id"],
        remote_bus_ids=tuple(link["remote_bus_id"] for link in enabled if not link.get("pci_query")),
        to_switches=sum(link["remote_type"] == "SWITCH" and not link.get("type_query") for link in enabled),
    )


def _is_unreadable(link: Row) -> bool:
    """Whether a query of a link goes wrong otherwise than by there being nothing to ask."""
    answers = {link.get(query) for query in ("state_query", "pci_query", "type_query")}
    return bool(answers - {None, "SUCCESS", "NOT_SUPPORTED", "INVALID_ARGUMENT"})


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
