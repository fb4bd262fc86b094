"""Which rejected pods to wake when capacity grew in a way that kube-scheduler does not watch.

The rejected pods are placed together, by priority and then by age, on one copy of the state: only those that fit
beside each other are woken, so that a crowd does not run for one free card.
"""

from __future__ import annotations

from collections.abc import Iterable

import hami_engine as engine
import msgspec
from hami_model.requests import PodRequest

from hami_scheduler.core import engine_values


class RejectedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that the last filter call found no node for."""

    request: PodRequest
    candidates: tuple[str, ...]
    """The nodes kube-scheduler asked about."""
    priority: int = 0
    created_at: str = ""
    """creationTimestamp as written (RFC 3339, UTC): sorts by time."""

    @property
    def uid(self) -> str:
        return self.request.uid


def pods_to_wake(cluster: engine.Cluster, rejected: Iterable[RejectedPod]) -> list[RejectedPod]:
    """Those that would fit now, beside each other. `cluster` is left as it is."""
    copy = cluster.copy()
    waiting = sorted(rejected, key=lambda pod: (-pod.priority, pod.created_at, pod.uid))
    return [
        pod
        for pod in waiting
        if isinstance(copy.reserve(engine_values.pod_ask(pod.request), list(pod.candidates)), engine.Placement)
    ]
