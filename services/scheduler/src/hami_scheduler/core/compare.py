"""Compares the book with the pods: what it lacks, and what it holds for pods that are gone."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from hami_model import kube

from hami_scheduler.core.ledger import Ledger
from hami_scheduler.core.records import BoundPod


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """Both empty in a sound book."""

    missing: list[kube.Pod]
    """Bound pods that the book does not know."""
    surplus: list[BoundPod]
    """Bound pods of the book that are gone."""


def compare(ledger: Ledger, pods: Iterable[kube.Pod]) -> Drift:
    """`pods`: all live pods, as the informer holds them now. What only our own Binding told of is not judged."""
    live = {pod.uid: pod for pod in pods}
    return Drift(
        missing=[pod for uid, pod in live.items() if pod.assigned_node and uid not in ledger.bound_pods],
        surplus=[bound for uid, bound in ledger.bound_pods.items() if bound.seen and uid not in live],
    )
