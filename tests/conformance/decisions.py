"""Where vectors are not compared, decided by what is asked, never by lists of ids.

`deferral`: the vector needs something that another part of the project will bring. `suspicion`: we decided to answer
otherwise than HAMi. Each name has a line in docs/compatibility.md, and each suspicion a test of what we do instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from decisions_families import FAMILY_DEFERRALS, FAMILY_SUSPICIONS, family_deferral, family_suspicion, is_unnamable
from decisions_mig import MIG_SUSPICIONS, mig_suspicion
from decisions_monitor import MONITOR_SUSPICIONS, monitor_suspicion
from decisions_node import NODE_SUSPICIONS, node_suspicion
from hami_model import quantity
from vectors import Row

SUSPICIONS = (
    "unit",
    "share-without-count",
    "sidecar",
    "foreign-entry",
    "contradictory-register",
    "malformed-pair-score",
    "live-cordon",
    "one-init-container",
    "several-quotas",
    "quota-with-init",
    "simulation-without-cards",
    "instances-apart",
    *FAMILY_SUSPICIONS,
    *MIG_SUSPICIONS,
    *MONITOR_SUSPICIONS,
    *NODE_SUSPICIONS,
)
"""Every kind of our own decisions, as documented."""
DEFERRALS = (*FAMILY_DEFERRALS,)


# ---- deferral -------------------------------------------------------------------------------------------------------


def deferral(row: Row) -> str | None:
    """What a vector waits for; None when it is to be answered now."""
    return family_deferral(row) if "family" in row else None


# ---- suspicion ------------------------------------------------------------------------------------------------------


def suspicion(group: str, row: Row) -> str | None:  # noqa: PLR0911  # one answer for each kind of row
    """Why we answer otherwise; None when HAMi's answer is the right one."""
    if "family" in row:
        return family_suspicion(row)
    if group == "wire":
        return _wire_suspicion(row)
    if group == "webhook":
        return _webhook_suspicion(row)
    if "nodes" in row and "pod" in row:
        return _filter_suspicion(row)
    if row.get("op") in ("allocate", "preferred", "register"):
        return node_suspicion(row)
    if group == "node-metrics":
        return monitor_suspicion(row)
    return None


def _wire_suspicion(row: Row) -> str | None:
    if row["op"] in ("decode_node_json", "node_annotations"):
        text = row["input"].get("text") or row["input"].get("annotations", {}).get("hami.io/node-nvidia-register", "")
        if contradicts_itself(_elements(text)):
            return "contradictory-register"
        if row["op"] == "node_annotations" and _has_malformed_pair_score(row["input"]):
            return "malformed-pair-score"
    return None


def _webhook_suspicion(row: Row) -> str | None:
    request = (row.get("review") or {}).get("request")
    pod = request.get("object") if isinstance(request, dict) else None
    if not isinstance(pod, dict):
        return None
    if _asks_oddly(pod, row["config"]):
        return "unit"
    if _asks_without_count(pod, row["config"]):
        return "share-without-count"
    return None


def _filter_suspicion(row: Row) -> str | None:
    kinds = {
        "unit": _asks_oddly(row["pod"], row["config"]),
        "sidecar": any(_has_sidecar_with_cards(pod, row["config"]) for pod in [row["pod"], *running_pods(row)]),
        "foreign-entry": any(_is_foreign(pod) for pod in running_pods(row)),
        "contradictory-register": any(contradicts_itself(register_elements(node)) for node in _nodes(row)),
        "malformed-pair-score": any(_has_malformed_pair_score(node) for node in _nodes(row)),
        "live-cordon": _changes_cordon(row),
        "one-init-container": any(_names_a_card_twice_in_init(pod) for pod in running_pods(row)),
        "several-quotas": _limits_twice(row),
        "quota-with-init": _mixes_phases(row) and bool(_quotas_of_pod(row)),
        "simulation-without-cards": row["config"].get("api") == "nodes" and not _asks_for_cards(row),
        "instances-apart": _chooses_among_instances(row),
    }
    kind = next((kind for kind, holds in kinds.items() if holds), None)
    return kind or mig_suspicion(row, _quotas_of_pod(row), list(running_pods(row)))


def _has_sidecar_with_cards(pod: dict[str, Any], config: dict[str, Any]) -> bool:
    """It runs beside the app containers, so its share adds to theirs."""
    count = _resource_names(config)["count"]
    return any(
        container.get("restartPolicy") == "Always"
        and any(count in amounts(container, table) for table in ("limits", "requests"))
        for container in containers(pod, ("initContainers",))
    )


def _has_malformed_pair_score(node: dict[str, Any]) -> bool:
    text = (node.get("annotations") or {}).get("hami.io/node-nvidia-score")
    try:
        found = [] if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return True
    if not isinstance(found, list | None):
        return True
    scores = [_field(element, "score") or {} for element in found or []]
    return any(
        not isinstance(score, dict) or not all(isinstance(value, int | None) for value in score.values())
        for score in scores
    )


def _chooses_among_instances(row: Row) -> bool:
    """Several shares by pair scores, where one of several cards could give more than one."""
    policy = _annotations(row["pod"]).get("hami.io/gpu-scheduler-policy", row["config"]["gpu_policy"])
    if "topology-aware" not in [word.strip() for word in policy.split(",")]:
        return False
    count = _resource_names(row["config"])["count"]
    several = any(
        amounts(container, table).get(count) not in (None, "0", "1", 0, 1)
        for container in containers(row["pod"])
        for table in ("limits", "requests")
    )
    by_node = [register_elements(node) for node in _nodes(row)]
    return several and any(len(cards) > 1 and any(_field(card, "mode") == "mig" for card in cards) for cards in by_node)


def _changes_cordon(row: Row) -> bool:
    key = "hami.io/device-cordon"
    before = {node["name"]: (node.get("annotations") or {}).get(key) for node in row["nodes"]}
    updates = [event["object"] for event in row.get("events", []) if event["type"] == "node_update"]
    return any((node.get("annotations") or {}).get(key) != before.get(node["name"]) for node in updates)


def _quotas_of_pod(row: Row) -> list[dict[str, Any]]:
    changed = [event["object"] for event in row.get("events", []) if event["type"].startswith("quota")]
    return [
        quota
        for quota in [*row["quotas"], *changed]
        if quota["metadata"]["namespace"] == row["pod"]["metadata"]["namespace"]
    ]


def _mixes_phases(row: Row) -> bool:
    """Behind an init container two containers ask, or it asks itself: their shares are told apart by phase."""
    count = _resource_names(row["config"])["count"]
    inits, apps = (
        [any(count in amounts(container, table) for table in ("limits", "requests")) for container in found]
        for found in (containers(row["pod"], (kind,)) for kind in ("initContainers", "containers"))
    )
    return bool(inits) and sum(apps) + any(inits) > 1


def _limits_twice(row: Row) -> bool:
    """Two quotas of the pod's namespace limit one resource otherwise, or one of two goes: the smallest limit holds."""
    limited: dict[str, dict[str, set[str]]] = {}
    for quota in _quotas_of_pod(row):
        for resource, value in (quota["spec"].get("hard") or {}).items():
            limited.setdefault(resource, {}).setdefault(quota["metadata"]["name"], set()).add(str(value))
    goes = any(event["type"] == "quota_delete" for event in row.get("events", []))
    return any(
        len(names) > 1 and (goes or len(set().union(*names.values())) > 1)
        for resource, names in limited.items()
        if resource.startswith("limits.")
    )


def _asks_oddly(pod: dict[str, Any], config: dict[str, Any]) -> bool:
    """Memory with a unit, or memory or a number of cards that is a fraction or out of range: refused."""
    names = _resource_names(config)
    return any(
        _is_odd(text, is_memory=resource == names["memory"])
        for container in containers(pod)
        for table in ("limits", "requests")
        for resource, text in amounts(container, table).items()
        if resource in (names["count"], names["memory"])
    )


def _asks_for_cards(row: Row) -> bool:
    """Another number of cards than 0 in any container, readable or not."""
    count = _resource_names(row["config"])["count"]
    return any(
        str(amounts(container, table).get(count, "0")) != "0"
        for container in containers(row["pod"])
        for table in ("limits", "requests")
    )


def _asks_without_count(pod: dict[str, Any], config: dict[str, Any]) -> bool:
    """A share of a card without a number of cards, where the configuration adds none."""
    names = _resource_names(config)
    if "defaultGPUNum: 0" not in (config.get("device_config_yaml") or ""):
        return False
    limits = [amounts(container, "limits") for container in containers(pod)]
    return any(names["count"] not in table and set(names.values()) & set(table) for table in limits)


def _is_odd(text: object, *, is_memory: bool) -> bool:
    try:
        value, suffix = quantity.parse_with_suffix(str(text))
    except quantity.MalformedQuantity:
        return False
    if is_memory and (suffix in quantity.UNIT_SUFFIXES or value < 0):
        return True
    return value.denominator != 1 or value >= Fraction(2**31)


def _is_foreign(pod: dict[str, Any]) -> bool:
    text = _annotations(pod).get("hami.io/vgpu-devices-allocated", "")
    for item in text.replace(";", ":").split(":"):
        fields = item.split(",")
        if len(fields) >= 4 and (fields[1] not in ("", "NVIDIA") or "-" in fields[2] + fields[3]):
            return True
    return False


def _names_a_card_twice_in_init(pod: dict[str, Any]) -> bool:
    """Two shares of one card that a one-shot init container holds at the same time."""
    slots = _annotations(pod).get("hami.io/vgpu-devices-allocated", "").split(";")
    return any(
        len(cards) > len(set(cards))
        for slot, container in zip(slots, containers(pod, ("initContainers",)), strict=False)
        if container.get("restartPolicy") != "Always"
        for cards in [[item.split(",")[0] for item in slot.split(":") if "," in item]]
    )


def contradicts_itself(elements: list[Any]) -> bool:
    """A register annotation with a null element, one id on two cards, or an id that no device annotation can name."""
    ids = [_field(card, "id") for card in elements if isinstance(card, dict)]
    return None in elements or len(set(ids)) < len(ids) or any(map(is_unnamable, ids))


# ---- looking at rows ------------------------------------------------------------------------------------------------


def containers(pod: dict[str, Any], kinds: tuple[str, ...] = ("initContainers", "containers")) -> list[dict[str, Any]]:
    """Of a pod that may be malformed."""
    spec = pod.get("spec")
    lists = [spec.get(kind) for kind in kinds] if isinstance(spec, dict) else []
    return [
        container for found in lists if isinstance(found, list) for container in found if isinstance(container, dict)
    ]


def amounts(container: dict[str, Any], table: str) -> dict[str, Any]:
    """`limits` or `requests` of a container."""
    resources = container.get("resources")
    found = resources.get(table) if isinstance(resources, dict) else None
    return found if isinstance(found, dict) else {}


def running_pods(row: Row) -> Iterable[dict[str, Any]]:
    events = [event for event in row.get("events", []) if event["type"].startswith("pod")]
    return [*row["scheduled"], *(event["object"] for event in events)]


def _nodes(row: Row) -> list[dict[str, Any]]:
    return [*row["nodes"], *(event["object"] for event in row.get("events", []) if event["type"] == "node_update")]


def register_elements(node: dict[str, Any]) -> list[Any]:
    return _elements((node.get("annotations") or {}).get("hami.io/node-nvidia-register", ""))


def _elements(text: str) -> list[Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def _field(card: Any, name: str) -> Any:
    if not isinstance(card, dict):
        return None
    return next((value for key, value in reversed(card.items()) if key.lower() == name), None)


def _annotations(pod: dict[str, Any]) -> dict[str, str]:
    return (pod.get("metadata") or {}).get("annotations") or {}


def _resource_names(config: dict[str, Any]) -> dict[str, str]:
    names = {
        "count": "nvidia.com/gpu",
        "memory": "nvidia.com/gpumem",
        "cores": "nvidia.com/gpucores",
        "percentage": "nvidia.com/gpumem-percentage",
    }
    keys = {
        "count": "resourceCountName",
        "memory": "resourceMemoryName",
        "cores": "resourceCoreName",
        "percentage": "resourceMemoryPercentageName",
    }
    for line in (config.get("device_config_yaml") or "").splitlines():
        key, _, value = line.strip().partition(": ")
        for name, wanted in keys.items():
            if key == wanted:
                names[name] = value.strip().strip('"')
    return names
