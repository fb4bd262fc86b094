"""Builders of the scheduler's tests: nodes, pods and quotas as the API server holds them."""

from __future__ import annotations

import uuid
from typing import Any

from hami_model import register
from hami_model.cards import Card
from hami_model.ids import CardId
from hami_model.register import Handoff
from hami_model.vendors import vendor

Json = dict[str, Any]
NVIDIA = "NVIDIA"
REGISTER_KEY = vendor(NVIDIA).register_key
ALLOCATED_KEY = vendor(NVIDIA).allocated_key
HANDSHAKE_KEY = vendor(NVIDIA).handshake_key


def card(card_id: str, **changes: Any) -> Card:
    fields: Json = {
        "id": CardId(card_id),
        "slots": 10,
        "memory_mib": 10_000,
        "cores_percent": 100,
        "model": "NVIDIA A100",
        "mode": "hami-core",
        "healthy": True,
    }
    return Card(**{**fields, **changes})


def node(
    name: str,
    cards: list[Card] | int = 1,
    *,
    handoff: Handoff = "late-binding",
    annotations: dict[str, str] | None = None,
) -> Json:
    """A ready node. A number of cards makes cards `<node>-0`, … of 10,000 MiB."""
    found = [card(f"{name}-{i}", index=i) for i in range(cards)] if isinstance(cards, int) else cards
    resources = {"cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": str(10 * len(found))}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {REGISTER_KEY: register.encode(vendor(NVIDIA), found, handoff), **(annotations or {})},
        },
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": "by hand"}],
        },
    }


def limits(gpu: int = 1, memory: int | str | None = None, cores: int | None = None) -> dict[str, str]:
    wanted = {"nvidia.com/gpu": gpu, "nvidia.com/gpumem": memory, "nvidia.com/gpucores": cores}
    return {name: str(value) for name, value in wanted.items() if value is not None}


def container(name: str = "main", *, ask: dict[str, str] | None = None, **fields: Any) -> Json:
    return {"name": name, "image": "example/none:1", "resources": {"limits": ask or {}}, **fields}


def pod(
    name: str,
    *,
    memory: int | str | None = 1000,
    gpu: int = 1,
    cores: int | None = None,
    namespace: str = "default",
    containers: list[Json] | None = None,
    init_containers: list[Json] | None = None,
    annotations: dict[str, str] | None = None,
    node_name: str = "",
    uid: str = "",
    phase: str = "Pending",
) -> Json:
    spec: Json = {
        "schedulerName": "hami-scheduler",
        "containers": containers or [container(ask=limits(gpu, memory, cores))],
    }
    if init_containers:
        spec["initContainers"] = init_containers
    if node_name:
        spec["nodeName"] = node_name
    metadata: Json = {"name": name, "namespace": namespace, "annotations": annotations or {}}
    metadata["uid"] = uid or str(uuid.uuid4())
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": spec,
        "status": {"phase": phase},
    }


def quota(name: str, namespace: str, **hard: int | str) -> Json:
    """`gpumem=1000` limits `limits.nvidia.com/gpumem`."""
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"hard": {f"limits.nvidia.com/{key}": str(value) for key, value in hard.items()}},
    }
