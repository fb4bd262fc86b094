"""Cards in MIG mode: where we answer otherwise than HAMi, decided by what is asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from vectors import Row

MIG_SUSPICIONS = ("mig-whole-card", "mig-quota", "mig-unknown-card")
_QUOTA_KEYS = ("limits.nvidia.com/gpumem", "limits.nvidia.com/gpucores")


def mig_suspicion(row: Row, quotas: list[dict[str, Any]], running: list[dict[str, Any]]) -> str | None:
    """`quotas`: of the pod's namespace. `running`: pods the scheduler was told of, at any time."""
    limited = any(key in (quota["spec"].get("hard") or {}) for quota in quotas for key in _QUOTA_KEYS)
    asks = [(card, ask) for card in _mig_cards(row) for ask in _asks(row)]
    kinds = {
        "mig-whole-card": any(_is_whole(ask, card) for card, ask in asks),
        "mig-quota": limited and any(_rounds_up(ask, card) for card, ask in asks),
        "mig-unknown-card": any(_claims_unknown_card(row, pod) for pod in running),
    }
    return next((kind for kind, holds in kinds.items() if holds), None)


def _is_whole(ask: dict[str, str], card: dict[str, Any]) -> bool:
    """A share of the memory that only the whole card has, where the card can be given as one instance."""
    memory, cores = max(_profiles(card), default=(0, 0))
    if not memory or cores < card.get("devcore", 0) or _memory(ask) > 0:
        return False
    return int(card.get("devmem", 0)) * _percent(ask) // 100 > memory


def _rounds_up(ask: dict[str, str], card: dict[str, Any]) -> bool:
    """An instance of the card takes other than what was asked."""
    memory = _memory(ask) or card.get("devmem", 0) * _percent(ask) // 100
    cores = _whole_number(ask.get("nvidia.com/gpucores", "0"))
    return any(offered[0] >= memory and offered != (memory, cores) for offered in _profiles(card))


def _profiles(card: dict[str, Any]) -> list[tuple[int, int]]:
    """Memory and cores of each."""
    return [(profile.get("memoryMB", 0), profile.get("core", 0)) for profile in card.get("migProfiles") or []]


def _claims_unknown_card(row: Row, pod: dict[str, Any]) -> bool:
    annotations = pod["metadata"].get("annotations") or {}
    try:
        claims = json.loads(annotations.get("hami.io/vgpu-mig-allocations") or "[]")
    except ValueError:
        return False
    node = pod["spec"].get("nodeName")
    known = {card.get("id") for found in row["nodes"] if found["name"] == node for card in _cards(found)}
    return isinstance(claims, list) and any(isinstance(one, dict) and one.get("gpuUUID") not in known for one in claims)


def _mig_cards(row: Row) -> Iterator[dict[str, Any]]:
    """Those that the pod's rule on modes admits."""
    modes = (row["pod"]["metadata"].get("annotations") or {}).get("nvidia.com/vgpu-mode")
    if modes is not None and "mig" not in modes:
        return
    for node in row["nodes"]:
        yield from (card for card in _cards(node) if card.get("mode") == "mig")


def _cards(node: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        found = json.loads((node.get("annotations") or {}).get("hami.io/node-nvidia-register", "[]"))
    except ValueError:
        return []
    return [card for card in found if isinstance(card, dict)] if isinstance(found, list) else []


def _asks(row: Row) -> Iterator[dict[str, str]]:
    """What each container that asks for cards asks."""
    spec = row["pod"]["spec"]
    for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        resources = container.get("resources") or {}
        asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
        if "nvidia.com/gpu" in asked:
            yield {name: str(value) for name, value in asked.items()}


def _memory(ask: dict[str, str]) -> int:
    return _whole_number(ask.get("nvidia.com/gpumem", "0"))


def _percent(ask: dict[str, str]) -> int:
    percent = _whole_number(ask.get("nvidia.com/gpumem-percentage", "0"))
    return min(percent, 100) if percent > 0 else 100


def _whole_number(text: str) -> int:
    scale = 1000 if text.endswith("k") else 1
    digits = text.removesuffix("k")
    return int(digits) * scale if digits.lstrip("+-").isdecimal() else 0
