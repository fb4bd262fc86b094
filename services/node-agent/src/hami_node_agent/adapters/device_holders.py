"""Whose devices these are, by kubelet's checkpoint, its PodResources service and the API server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hami_chassis.errors import Transient
from hami_model import env, kube
from hami_model.device_config import VendorSettings

from hami_node_agent.core import checkpoint_match, entitlement
from hami_node_agent.core.checkpoint_match import Holder, Unmatched
from hami_node_agent.metrics import NodeAgentMetrics
from hami_node_agent.ports import KubeletCheckpoint, OwnershipCheck, PodLedger, RefusedForGoodError


class DeviceHolders:
    """Finds the containers that kubelet gave devices to, and their pod."""

    def __init__(
        self,
        node_name: str,
        settings: VendorSettings,
        *,
        ledger: PodLedger,
        checkpoint: KubeletCheckpoint,
        ownership: OwnershipCheck | None,
        metrics: NodeAgentMetrics,
    ) -> None:
        """`ownership`: None where no second opinion is asked."""
        self._node_name = node_name
        self._settings = settings
        self._ledger = ledger
        self._checkpoint = checkpoint
        self._ownership = ownership
        self._metrics = metrics

    async def of(self, device_ids: Sequence[str]) -> tuple[Holder, ...] | Unmatched:
        """Raises Transient."""
        view = await self._checkpoint.read()
        return checkpoint_match.holders(view, self._settings.resources.count, device_ids, env.REGION_FILE)

    async def pod_of(self, found: tuple[Holder, ...]) -> tuple[kube.Pod, tuple[Holder, ...]]:
        """The pod whose containers these are; entries that kubelet still has of pods that ended are left out.

        Raises Transient and RefusedForGoodError.
        """
        known = {holder.pod_uid: self._ledger.cached(holder.pod_uid) for holder in found}
        for uid, pod in known.items():
            if pod is None or entitlement.is_mirror(pod):  # it may claim the UID of a pod that was not seen yet
                known[uid] = await self._ledger.read(uid)
        living = _living(known)
        if len(living) > 1:  # the watch may not have brought yet that one of them has ended
            living = _living({uid: await self._ledger.read(uid) for uid in living})
        if not living:
            raise RefusedForGoodError(
                f"pod {', '.join(known)} is not known to the API server as a living pod of node "
                f"{self._node_name}; cards are given only to pods that the HAMi scheduler placed"
            )
        if len(living) > 1:
            raise Transient(f"kubelet's checkpoint gives these devices to several living pods: {', '.join(living)}")
        uid, pod = next(iter(living.items()))
        return pod, tuple(holder for holder in found if holder.pod_uid == uid)

    async def cross_check(self, pod: kube.Pod, found: tuple[Holder, ...], device_ids: frozenset[str]) -> None:
        """Raises Transient where kubelet's PodResources service says otherwise."""
        if self._ownership is None:
            return
        owner = await self._ownership.owner(self._settings.resources.count, device_ids)
        if owner is None:
            return
        namespace, name, container = owner
        if (namespace, name) != (pod.metadata.namespace, pod.metadata.name) or container not in {
            holder.container for holder in found
        }:
            self._metrics.cross_check_mismatches.inc()
            raise Transient(
                f"kubelet's checkpoint gives these devices to {pod.key}, its PodResources service to "
                f"{namespace}/{name} container {container}"
            )


def _living(known: Mapping[str, kube.Pod | None]) -> dict[str, kube.Pod]:
    return {uid: pod for uid, pod in known.items() if pod is not None and not pod.is_finished}
