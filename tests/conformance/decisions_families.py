"""Vectors of the other families: which wait for a family that is not there yet, and where we answer otherwise."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

from hami_model import node_lock, quantity
from hami_model.errors import MalformedAnnotation
from vectors import Row

FAMILY_SUSPICIONS = (
    "cores-of-a-cut-card",
    "unreadable-group",
    "bound-elsewhere",
    "cores-beyond-a-card",
    "nothing-held",
    "listed-twice",
    "unreadable-lock",
    "lock-of-a-waiting-pod",
)
FAMILY_DEFERRALS = ("another accelerator family",)
READY = frozenset({"hygon", "ascend", "mixed"})
ELSEWHERE = (
    "amd.com/",
    "aws.amazon.com/",
    "birentech.com/",
    "cambricon.com/",
    "enflame.com/",
    "iluvatar.ai/",
    "kunlunxin.com/",
    "metax-tech.com/",
    "mthreads.com/",
    "vastaitech.com/",
)
"""Whose resources a vector speaks of when it needs a family that is not there yet."""
_BIND_SECONDS = int(node_lock.BIND_IN_FLIGHT_MAX.total_seconds())
_EXPIRY_SECONDS = int(node_lock.LEGACY_EXPIRY.total_seconds())
_SHARES = {"hygon.com/dcumem": "hygon.com/dcunum", "hygon.com/dcucores": "hygon.com/dcunum"}


def family_deferral(row: Row) -> str | None:
    """What a vector with a family waits for."""
    given = {name: row.get(name) for name in ("nodes", "pod", "scheduled", "earlier", "review", "input")}
    if row["family"] not in READY or any(domain in json.dumps(given) for domain in ELSEWHERE):
        return "another accelerator family"
    return None


def family_suspicion(row: Row) -> str | None:
    """Why we answer otherwise."""
    pods = _pods(row)
    kinds = {
        "unit": any(_is_odd(name, text) for pod in pods for name, text in _amounts(pod)),
        "share-without-count": "review" in row and any(_shares_alone(table) for pod in pods for table in _limits(pod)),
        "sidecar": any(_has_sidecar_with_cards(pod) for pod in pods),
        "cores-of-a-cut-card": "nodes" in row and any(_holds_cores(pod) or _asks_cores(pod) for pod in pods),
        "unreadable-group": any(_names_group_unreadably(card) for card in _cards(row)),
        "bound-elsewhere": any(_names_another_node(pod) for pod in row.get("scheduled", [])),
        "cores-beyond-a-card": row.get("op") == "request" and any(_beyond(name, text) for name, text in _asked(row)),
        "nothing-held": row.get("op") == "patch_annotations" and not any(row["input"]["decision"]),
        "listed-twice": row.get("op") == "node_devices" and _lists_twice(row),
        "unreadable-lock": any(_is_unreadable(step["set_lock"]) for step in _lock_steps(row) if "set_lock" in step),
        "lock-of-a-waiting-pod": _ages_a_lock(_lock_steps(row)),
    }
    return next((kind for kind, holds in kinds.items() if holds), None)


# ---- looking at rows ------------------------------------------------------------------------------------------------


def _pods(row: Row) -> list[dict[str, Any]]:
    request = (row.get("review") or {}).get("request") or {}
    admitted = {"spec": {"containers": [{"resources": row["input"]["resources"]}]}} if _has_resources(row) else None
    found = [row.get("pod"), request.get("object"), admitted, *row.get("scheduled", []), *row.get("earlier", [])]
    return [pod for pod in found if isinstance(pod, dict)]


def _has_resources(row: Row) -> bool:
    return "resources" in row.get("input", {})


def _containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    spec = pod.get("spec") or {}
    return [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]


def _limits(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [(container.get("resources") or {}).get("limits") or {} for container in _containers(pod)]


def _amounts(pod: dict[str, Any]) -> list[tuple[str, object]]:
    tables = [
        (container.get("resources") or {}).get(table) or {}
        for container in _containers(pod)
        for table in ("limits", "requests")
    ]
    return [(name, text) for table in tables for name, text in table.items() if _is_ours(name)]


def _asked(row: Row) -> list[tuple[str, object]]:
    return [amount for pod in _pods(row) for amount in _amounts(pod)]


def _is_ours(name: str) -> bool:
    return name.startswith(("hygon.com/", "huawei.com/Ascend"))


def _is_memory(name: str) -> bool:
    return name.endswith("-memory") or name == "hygon.com/dcumem"


def _is_cores(name: str) -> bool:
    return name.endswith("-core") or name == "hygon.com/dcucores"


def _read(text: object) -> tuple[Fraction, str] | None:
    try:
        return quantity.parse_with_suffix(str(text))
    except quantity.MalformedQuantity:
        return None


def _is_odd(name: str, text: object) -> bool:
    """Memory with a unit, or memory or a number of cards that is a fraction or out of range: refused."""
    read = _read(text)
    if read is None or _is_cores(name):
        return False
    value, suffix = read
    if _is_memory(name) and (suffix in quantity.UNIT_SUFFIXES or value < 0):
        return True
    return value.denominator != 1 or value >= 2**31


def _beyond(name: str, text: object) -> bool:
    read = _read(text)
    return _is_cores(name) and read is not None and read[0] > 100


def _count_of(name: str) -> str:
    return _SHARES.get(name) or name.removesuffix("-memory").removesuffix("-core")


def _shares_alone(limits: dict[str, Any]) -> bool:
    return any(_is_ours(name) and (_is_memory(name) or _is_cores(name)) and _count_of(name) not in limits
               for name in limits)  # fmt: skip


def _has_sidecar_with_cards(pod: dict[str, Any]) -> bool:
    sidecars = [c for c in (pod.get("spec") or {}).get("initContainers") or [] if c.get("restartPolicy") == "Always"]
    return any(_is_ours(name) for name, _ in _amounts({"spec": {"containers": sidecars}}))


def _asks_cores(pod: dict[str, Any]) -> bool:
    asked = [_read(text) for name, text in _amounts(pod) if name.startswith("huawei.com/") and _is_cores(name)]
    return any(read is not None and read[0] > 0 for read in asked)


def _holds_cores(pod: dict[str, Any]) -> bool:
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    texts = [text for key, text in annotations.items() if "Ascend" in key and key.endswith("-devices-allocated")]
    entries = [item.split(",") for text in texts for item in text.replace(";", ":").split(":")]
    return any(len(fields) >= 4 and fields[3] not in ("", "0") for fields in entries)


def _cards(row: Row) -> list[dict[str, Any]]:
    nodes = [*row.get("nodes", []), *([row["input"]["node"]] if "node" in row.get("input", {}) else [])]
    texts = [
        text
        for node in nodes
        for key, text in (node.get("annotations") or {}).items()
        if key.startswith("hami.io/node-register-Ascend")
    ]
    found: list[dict[str, Any]] = []
    for text in texts:
        try:
            listed = json.loads(text)
        except ValueError:
            continue
        found.extend(card for card in (listed if isinstance(listed, list) else []) if isinstance(card, dict))
    return found


def _names_group_unreadably(card: dict[str, Any]) -> bool:
    custom = card.get("custominfo")
    if not isinstance(custom, dict) or "NetworkID" not in custom:
        return False
    group = custom["NetworkID"]
    return isinstance(group, bool) or not isinstance(group, int | float)


def _names_another_node(pod: dict[str, Any]) -> bool:
    named = ((pod.get("metadata") or {}).get("annotations") or {}).get("hami.io/vgpu-node")
    node = (pod.get("spec") or {}).get("nodeName")
    return bool(named) and bool(node) and named != node


def _lists_twice(row: Row) -> bool:
    """Or lists an id that no device annotation can name."""
    ids = [card.get("id") for card in _cards(row)]
    return len(set(ids)) < len(ids) or any(map(is_unnamable, ids))


def is_unnamable(card_id: object) -> bool:
    """An id with spaces around it, or with a mark of the device annotation."""
    return isinstance(card_id, str) and (card_id != card_id.strip() or not set(card_id).isdisjoint(",:;"))


def _lock_steps(row: Row) -> list[Row]:
    return row["input"]["steps"] if row.get("op") == "lock_sequence" else []


def _is_unreadable(text: str) -> bool:
    try:
        node_lock.parse(text)
    except MalformedAnnotation:
        return True
    return False


def _ages_a_lock(steps: list[Row]) -> bool:
    """A pod comes to the lock of another that took it over a minute ago, or to its own after over five."""
    holder: tuple[str, int] | None = None  # name and second
    now = 0
    for step in steps:
        now += step.get("wait_seconds", 0)
        if "set_lock" in step:
            _, *owner = step["set_lock"].split(",")
            holder = (owner[-1], 0) if owner else None  # vectors that name an owner do so as of their beginning
        if step["pod"] not in ("a", "b"):
            continue
        is_own = holder is not None and holder[0] == step["pod"]
        if step["op"] == "release":
            holder = None if is_own else holder
        elif holder is None or holder[0] == "ghost":
            holder = (step["pod"], now)
        elif now - holder[1] > (_EXPIRY_SECONDS if is_own else _BIND_SECONDS):
            return True
    return False
