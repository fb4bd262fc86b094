"""Where the node agent answers otherwise than HAMi's, decided by what is asked."""

from __future__ import annotations

import json
from typing import Any

from vectors import Row

NODE_SUSPICIONS = (
    "limit-order",
    "honour-kubelet",
    "foreign-word",
    "one-patch",
    "negative-setting",
    "no-memory-size",
    "health-word",
    "no-node-file",
    "mig-card-left-out",
    "mig-few-ids",
    "mig-other-memory",
    "mig-neighbour",
    "unreadable-links",
)


def node_suspicion(row: Row) -> str | None:
    config, devices = row["config"], row["devices"]
    settings = config["device_config"]["nvidia"]
    slots = [_entries(slot) for pod in row.get("pods", []) for slot in _to_allocate(pod).split(";")]
    order = {device["uuid"]: device["index"] for device in devices}
    allocates, registers = row["op"] == "allocate", row["op"] == "register"
    kinds = {
        "limit-order": allocates and any(_is_out_of_order(slot, order) for slot in slots),
        "honour-kubelet": allocates and '"enablegetpreferredallocation": true' in (config["node_config_json"] or ""),
        "foreign-word": allocates and any(fields[1] not in ("", "NVIDIA") for slot in slots for fields in slot),
        "one-patch": any((fault["verb"], fault["resource"]) == ("patch", "pods") for fault in row["faults"]),
        "negative-setting": any(isinstance(value, int | float) and value < 0 for value in settings.values()),
        "no-memory-size": any(device.get("mem_query") == "NOT_SUPPORTED" for device in devices)
        and not settings.get("preConfiguredDeviceMemory"),
        "health-word": any(device.get("health", "Healthy") not in ("Healthy", "Unhealthy") for device in devices),
        "unreadable-links": registers
        and config["env"].get("ENABLE_TOPOLOGY_SCORE") == "true"
        and _is_unreadable(devices),
        "no-node-file": registers and config["node_config_json"] is None,
        "mig-card-left-out": registers and is_mig_mode(row) and any(not _mig_names(row, card) for card in devices),
        "mig-few-ids": registers and is_mig_mode(row) and any(_has_few_ids(row, card) for card in devices),
        "mig-neighbour": allocates and is_mig_mode(row) and any(_is_malformed(pod) for pod in row["pods"][1:]),
        "mig-other-memory": any(
            _is_other(*pair) for card in devices for pair in (_mig_names if registers else _reserved)(row, card)
        ),
    }
    return next((kind for kind, holds in kinds.items() if holds), None)


def is_mig_mode(row: Row) -> bool:
    return '"operatingmode": "mig"' in (row["config"]["node_config_json"] or "")


def _mig_names(row: Row, card: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Allowed names with the card's profile of as many slices."""
    allowances = row["config"]["device_config"]["nvidia"].get("migProfileAllowlist") or []
    names = next((one["profiles"] for one in allowances if any(model in card["name"] for model in one["models"])), [])
    slices = {str(profile["slice_count"]): profile for profile in card.get("gi_profiles", [])}
    return [(name, slices[name.partition("g.")[0]]) for name in names if name.partition("g.")[0] in slices]


def _reserved(row: Row, card: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Names of reserved profiles with the card's profile of as many slices."""
    slices = {str(profile["slice_count"]): profile for profile in card.get("gi_profiles", [])}
    names = [one["profile"] for pod in row.get("pods", []) for one in _reservations(pod) or () if "profile" in one]
    return [(name, slices[name.partition("g.")[0]]) for name in names if name.partition("g.")[0] in slices]


def _is_malformed(pod: dict[str, Any]) -> bool:
    return _reservations(pod) is None


def _reservations(pod: dict[str, Any]) -> list[dict[str, Any]] | None:
    """None where they cannot be read."""
    text = (pod["metadata"].get("annotations") or {}).get("hami.io/vgpu-mig-allocations") or "[]"
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, list) else None


def _has_few_ids(row: Row, card: dict[str, Any]) -> bool:
    most = max((profile["instance_count"] for _, profile in _mig_names(row, card)), default=0)
    return bool(row["config"]["device_config"]["nvidia"].get("deviceSplitCount", 10) < most)


def _is_other(name: str, profile: dict[str, Any]) -> bool:
    """A profile with a much different memory, or with media engines."""
    gigabytes = name.partition("g.")[2].partition("gb")[0]
    if not gigabytes.isdecimal():
        return "+" in name
    wanted = int(gigabytes) * 1024
    return "+" in name or not wanted / 1.5 <= profile["memory_mb"] <= wanted * 1.5


def _is_unreadable(devices: list[dict[str, Any]]) -> bool:
    """A link of a card cannot be asked about, for another reason than that there is none."""
    answers = {
        link.get(query)
        for device in devices
        for link in device.get("nvlinks") or []
        for query in ("state_query", "pci_query", "type_query")
    }
    return bool(answers - {None, "SUCCESS", "NOT_SUPPORTED", "INVALID_ARGUMENT"})


def _to_allocate(pod: dict[str, Any]) -> str:
    annotations = pod["metadata"].get("annotations") or {}
    return str(annotations.get("hami.io/vgpu-devices-to-allocate", ""))


def _entries(slot: str) -> list[list[str]]:
    found = [item.split(",") for item in slot.split(":") if "," in item]
    return [fields for fields in found if len(fields) >= 4]


def _is_out_of_order(slot: list[list[str]], order: dict[str, int]) -> bool:
    """Unequal shares, annotated in another order than containers see the cards."""
    indexes = [order.get(fields[0], len(order)) for fields in slot]
    return len({tuple(fields[2:4]) for fields in slot}) > 1 and indexes != sorted(indexes)
