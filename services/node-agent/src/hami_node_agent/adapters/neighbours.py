"""The node's pods, as a decision about one of them needs to know them: nobody who was handed something is missing.

What the watch has brought is not enough: after a start it has brought nothing yet, and while it lags a pod that was
read by name is given its cards before the watch brings it. To leave such a pod out would give its slice away twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from hami_model import kube

from hami_node_agent.core.entitlement import kubelet_uid
from hami_node_agent.core.handed_out import HandedOut
from hami_node_agent.ports import PodLedger


class Neighbours:
    def __init__(self, book: HandedOut, ledger: PodLedger) -> None:
        self._book = book
        self._ledger = ledger
        self._gone: set[str] = set()
        """UIDs in the book whose pods are gone, while what they left is being collected."""

    async def now(self, *, read_anew: bool = False) -> Sequence[kube.Pod]:
        """All pods, without a wait between the last look at the book and the return. Raises Transient.

        `read_anew`: by a consistent list, where what the watch brought may be old.
        """
        if read_anew or not self._ledger.has_synced:
            everyone = await self._ledger.read_all()
        else:
            everyone = tuple(self._ledger.all_cached())
        while missing := self._missing(everyone):
            everyone = await self._ledger.read_all()
            # A list that was asked for after their hand-over, and has them not, proves that they are gone.
            self._gone |= missing & self._missing(everyone)
        return everyone

    def _missing(self, everyone: Sequence[kube.Pod]) -> frozenset[str]:
        return self._book.uids() - self._gone - {kubelet_uid(pod) for pod in everyone}

    def pod_gone(self, uid: str) -> None:
        if self._book.get(uid) is not None:
            self._gone.add(uid)

    def forget(self, uid: str) -> None:
        """What the pod left was collected, or it was never in the book."""
        self._gone.discard(uid)
