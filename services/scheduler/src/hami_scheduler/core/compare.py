"""Compares the book with the pods: what it lacks, and what it holds for pods that are gone."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from hami_model import kube

from hami_scheduler.core.ledger import Ledger
from hami_scheduler.core.records import BoundPod, Reservation


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """What differs; nothing in a sound book, apart from a short time after a bind."""

    missing: list[kube.Pod]
    """Bound pods that the book does not know."""
    absent: list[BoundPod | Reservation]
    """Of pods that are not held: they are gone, or the watch is late and only kube-scheduler, our own Binding or a
    read of ours told of them. Only the server can tell which."""


def compare(ledger: Ledger, pods: Iterable[kube.Pod]) -> Drift:
    """`pods`: all live pods, as the informer holds them now."""
    live = {pod.uid: pod for pod in pods}
    return Drift(
        missing=[pod for uid, pod in live.items() if pod.assigned_node and uid not in ledger.bound_pods],
        absent=[
            *(bound for uid, bound in ledger.bound_pods.items() if uid not in live),
            *(reservation for uid, reservation in ledger.reservations.items() if uid not in live),
        ],
    )
