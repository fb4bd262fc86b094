"""Every pod's claim on the cards, worked out once for each version of the pod and of what the book says of it."""

from __future__ import annotations

from hami_model import kube
from hami_model.device_config import VendorSettings

from hami_node_agent.core import entitlement, handed_out
from hami_node_agent.core.entitlement import Claim
from hami_node_agent.core.handed_out import HandedOut, HandedPod


class Claims:
    def __init__(self, book: HandedOut, settings: VendorSettings) -> None:
        self._book = book
        self._settings = settings
        self._known: dict[str, tuple[kube.Pod, HandedPod | None, Claim]] = {}

    def of(self, pod: kube.Pod) -> Claim:
        """Pods and entries of the book are replaced, never changed: of the same two objects the claim is the same."""
        uid = entitlement.kubelet_uid(pod)
        entry = self._book.get(uid)
        kept = self._known.get(uid)
        if kept is not None and kept[0] is pod and kept[1] is entry:
            return kept[2]
        known = entry if handed_out.is_of(entry, pod) else None
        word = self._settings.vendor.word
        given = handed_out.slices_by_position(known, word) if known is not None and known.containers else None
        init_was_over = known is not None and known.init_over
        claim = entitlement.claim(pod, self._settings, given, init_was_over=init_was_over)
        self._known[uid] = (pod, entry, claim)
        return claim

    def handed_to(self, pod: kube.Pod) -> HandedPod | None:
        """What the book says of this very pod: a mirror may claim the UID of another."""
        known = self._book.get(entitlement.kubelet_uid(pod))
        return known if handed_out.is_of(known, pod) else None

    def forget(self, uid: str) -> None:
        self._known.pop(uid, None)
