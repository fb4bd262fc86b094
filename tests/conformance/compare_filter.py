"""Comparing filter calls."""

from __future__ import annotations

from typing import Any

from decisions import amounts, containers
from hami_model import additions, keys
from vectors import Row

IGNORED = additions.names("pod-annotation") | {keys.ASSIGNED_TIME}
DEVICE_KEYS = ("hami.io/vgpu-devices-to-allocate", "hami.io/vgpu-devices-allocated")
DEVICE_KEY_ENDINGS = ("-devices-to-allocate", "-devices-allocated")
CARD_TIES = frozenset({"device-order-tie-gt12", "unstable-sort"})
NODE_TIES = frozenset({"float-near-tie"})
RELATIVE_TOLERANCE = 1e-5


def compare_filter(expect: dict[str, Any], got: dict[str, Any], row: Row) -> str:
    if "node_one_of" in expect:
        return "passed" if got["node"] in expect["node_one_of"] else f"node {got['node']} is none of the tied ones"
    differences = _differences(expect, got)
    if not differences:
        return "passed"
    if _is_equally_good(expect, got, row):
        return "soft"
    return "; ".join(differences)


def _differences(expect: dict[str, Any], got: dict[str, Any]) -> list[str]:
    pairs = {name: (expect[name], got[name]) for name in ("node", "node_names", "labels", "failed_nodes")}
    pairs["annotations"] = (_comparable(expect["annotations"]), _comparable(got["annotations"]))
    if "time_annotations" in expect:
        pairs["time_annotations"] = (expect["time_annotations"], got["time_annotations"])
    pairs["error"] = (expect["error"] is None, got["error"] is None)
    pairs["booked"] = (expect["booked"] or {}, got["booked"] or {})
    return [f"{name}: {ours} instead of {theirs}" for name, (theirs, ours) in pairs.items() if theirs != ours]


def _comparable(annotations: dict[str, str]) -> dict[str, Any]:
    kept = {key: value for key, value in annotations.items() if key not in IGNORED}
    return {key: slots(value) if key.endswith(DEVICE_KEY_ENDINGS) else value for key, value in kept.items()}


def slots(text: str) -> list[list[str]]:
    """A device annotation without its trailing empty slots."""
    found = [[item for item in slot.split(":") if item] for slot in text.split(";")]
    while found and not found[-1]:
        found.pop()
    return found


def _is_equally_good(expect: dict[str, Any], got: dict[str, Any], row: Row) -> bool:
    """The same shares on cards, or a node, that rank equally."""
    tags = set(row.get("tags", []))
    if expect["node"] is None or got["node"] is None:
        return False
    if expect["node"] == got["node"]:
        return bool(tags & CARD_TIES) and _shares(expect, row) == _shares(got, row)
    theirs, ours = (expect["scores"].get(node) for node in (expect["node"], got["node"]))
    if not tags & NODE_TIES or theirs is None or ours is None:
        return False
    return bool(abs(theirs - ours) <= RELATIVE_TOLERANCE * max(abs(theirs), abs(ours), 1.0))


def _shares(answer: dict[str, Any], row: Row) -> list[list[str]]:
    """Slots without the cards' ids; without memory where it is a percentage and cards differ in size."""
    asks = [amounts(container, "limits") for container in containers(row["pod"])]
    fixed = all("nvidia.com/gpumem" in limits for limits in asks if "nvidia.com/gpu" in limits)
    shares = [[item.split(",")[1:] for item in slot] for slot in slots(answer["annotations"].get(DEVICE_KEYS[0], ""))]
    return [[",".join(fields if fixed else (fields[0], fields[2])) for fields in slot] for slot in shares]
