"""What pods show of their hand-over, and what is told of it; after a start of the agent once more."""

from __future__ import annotations

from collections.abc import Iterable

from hami_model import allocations, keys, kube
from hami_model.device_config import VendorSettings

from hami_node_agent.adapters.enforcing import Enforcing
from hami_node_agent.core import entitlement, handed_out, mig_instances, outcome
from hami_node_agent.core.claims import Claims
from hami_node_agent.core.handed_out import HandedContainer, HandedOut, HandedPod
from hami_node_agent.ports import Outcomes


class HandoverNews:
    def __init__(
        self,
        book: HandedOut,
        claims: Claims,
        settings: VendorSettings,
        *,
        outcomes: Outcomes,
        enforcing: Enforcing,
    ) -> None:
        self._book = book
        self._claims = claims
        self._settings = settings
        self._outcomes = outcomes
        self._enforcing = enforcing
        self._announced: set[str] = set()
        self._reported: set[tuple[str, str]] = set()
        """Containers whose changed annotation was told of."""

    def forget(self, uid: str) -> None:
        """The pod of that UID is gone."""
        self._announced.discard(uid)
        self._reported = {(known, container) for known, container in self._reported if known != uid}

    def report_change(self, pod: kube.Pod, container: str, handed: HandedContainer) -> None:
        """What was handed out holds; the annotation was changed afterwards by somebody."""
        slots = allocations.read(pod, self._settings).slots
        now = slots[handed.position] if handed.position < len(slots) else ()
        key = (entitlement.kubelet_uid(pod), container)
        given = handed_out.as_slices(handed.slices, self._settings.vendor.word)
        if set(handed_out.as_handed(now)) != set(handed_out.as_handed(given)) and key not in self._reported:
            self._reported.add(key)
            self._outcomes.warn(
                pod,
                "AllocationChanged",
                f"container {container}: annotation {self._settings.vendor.allocated_key} was changed after the cards "
                "were handed over; the container keeps what it was given",
            )

    def announce_failure(self, pod: kube.Pod, reason: str, holders: Iterable[kube.Pod] = ()) -> None:
        self._outcomes.write(pod, outcome.failure_annotations())
        self._outcomes.announce_failed(pod, reason, holders)

    def announce_first(self, pod: kube.Pod, uid: str) -> None:
        known = self._book.get(uid)
        if uid in self._announced:
            self._show_instances(pod, known)
            return
        self._announced.add(uid)
        if pod.annotations.get(keys.BIND_PHASE) != keys.BIND_PHASE_SUCCESS:
            self._announce_success(pod)
        else:
            self._show_instances(pod, known)

    def _show_instances(self, pod: kube.Pod, known: HandedPod | None) -> None:
        if known is not None and mig_instances.with_instances(pod, self._settings, known):
            self._outcomes.write(pod, self._success(pod))

    def _success(self, pod: kube.Pod) -> dict[str, str]:
        known = self._claims.handed_to(pod)
        shown = mig_instances.with_instances(pod, self._settings, known) if known is not None else {}
        return {**outcome.success_annotations(pod, self._settings), **shown}

    def _announce_success(self, pod: kube.Pod) -> None:
        self._outcomes.write(pod, self._success(pod))
        self._outcomes.announce_allocated(pod, "verified", self._enforcing.held_by(pod, self._claims.handed_to(pod)))

    def announce_again(self, pod: kube.Pod) -> None:
        """After a start: what the pod does not show yet, though it was decided, is written and told once more."""
        known = self._claims.handed_to(pod)
        if known is None:
            return
        if known.state == "failed" and pod.annotations.get(keys.BIND_PHASE) != keys.BIND_PHASE_FAILED:
            self.announce_failure(pod, known.reason)
        elif known.state == "allocated" and _was_rejected(pod):
            if pod.annotations.get(keys.BIND_PHASE) == keys.BIND_PHASE_ALLOCATING:
                self.announce_failure(pod, "kubelet rejected the pod before any of its containers ran")
        elif known.state == "allocated" and pod.annotations.get(keys.BIND_PHASE) == keys.BIND_PHASE_ALLOCATING:
            self._announce_success(pod)
        elif known.state == "allocated":
            self._show_instances(pod, known)


def _was_rejected(pod: kube.Pod) -> bool:
    """Whether kubelet did not admit it, as when the agent ended in an Allocate that had decided."""
    return pod.status.phase == "Failed" and not (pod.status.init_container_statuses or pod.status.container_statuses)
