"""The pod of `hami-sim run`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from hami_model.vendors import vendor

CONTAINER = "main"
IMAGE = "hami/workloads:local"
"""Simulated nodes need no image; a container's programs are those of the node."""
RESOURCES = vendor("NVIDIA").resources


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """What the pod asks for."""

    cards: int = 0
    memory_mib: int | None = None
    """Per card. None: as configured, which by default is the whole card."""
    memory_percent: int | None = None
    cores_percent: int | None = None
    """Per card. None: no promise."""

    def limits(self) -> dict[str, str]:
        """The container's resource limits."""
        asked = {
            RESOURCES.count: self.cards or None,
            RESOURCES.memory: self.memory_mib,
            RESOURCES.memory_percentage: self.memory_percent,
            RESOURCES.cores: self.cores_percent,
        }
        return {name: str(amount) for name, amount in asked.items() if amount is not None}


def workload_pod(
    name: str,
    command: Sequence[str],
    asked: Slice,
    environment: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """One container that runs the command once."""
    metadata: dict[str, Any] = {"name": name, "labels": {"app.kubernetes.io/managed-by": "hami-sim-run"}}
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "containers": [
                {
                    "name": CONTAINER,
                    "image": IMAGE,
                    "command": list(command),
                    "env": [{"name": key, "value": value} for key, value in environment.items()],
                    "resources": {"limits": asked.limits()},
                }
            ],
        },
    }
