"""What both hand-offs do about enforcement: choose back ends, tell of what nothing holds."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hami_model import env, kube
from hami_model.cards import Slice
from hami_model.device_config import VendorSettings

from hami_node_agent.core import backends, grant
from hami_node_agent.core.backends import EnforcementPolicy, NodeTerms, Promise
from hami_node_agent.core.grant import Grant, HostLayout, HostState, LimitPolicy
from hami_node_agent.core.handed_out import HandedContainer, HandedPod
from hami_node_agent.ports import InventoryView, Outcomes

OPTED_OUT = "LimitsNotHeld"
OPT_OUT_REFUSED = "LimitsHeldAllTheSame"


class Enforcing:
    def __init__(
        self,
        policy: EnforcementPolicy,
        layout: HostLayout,
        limits: LimitPolicy,
        settings: VendorSettings,
        *,
        inventory: InventoryView,
        outcomes: Outcomes,
    ) -> None:
        self._policy = policy
        self._layout = layout
        self._limits = limits
        self._settings = settings
        self._inventory = inventory
        self._outcomes = outcomes

    def promise(self, pod: kube.Pod, position: int, slices: Sequence[Slice], region_name: str) -> HandedContainer:
        """What a container of the pod is to be given, for the book; `slices` as annotated."""
        container = pod.all_containers[position]
        indexes = {str(card.id): card.index for card in self._inventory.inventory.cards}
        promised = backends.promise(
            grant.in_limit_order(slices, indexes),
            container,
            position=position,
            region_name=region_name,
            policy=self._policy,
        )
        self._tell(pod, container, promised)
        return promised

    def _tell(self, pod: kube.Pod, container: kube.Container, promised: HandedContainer) -> None:
        if promised.opted_out:
            self._outcomes.warn(
                pod,
                OPTED_OUT,
                f"container {container.name}: {env.DISABLE_CONTROL} in its specification keeps the library out, so "
                "nothing holds it to its limits",
            )
        elif backends.asks_out(container) and any(piece.enforced_by == "preload" for piece in promised.slices):
            self._outcomes.warn(
                pod,
                OPT_OUT_REFUSED,
                f"container {container.name}: {env.DISABLE_CONTROL} in its specification is not followed on this node "
                "(enforcement.opt_out), so it is held to its limits",
            )

    def with_library(self, container: kube.Container, handed: HandedContainer, host: HostState) -> HandedContainer:
        """The entry with what the container will be started with now."""
        settled = backends.settled(handed, container)
        library = host.library if backends.needs_library(settled) else ""
        return msgspec.structs.replace(settled, library=library) if library != handed.library else handed

    def grant(
        self, pod: kube.Pod, pod_uid: str, container: kube.Container, handed: HandedContainer, host: HostState
    ) -> Grant:
        """What the container gets; `pod_uid` as kubelet knows it."""
        promised = Promise(
            pod_uid=pod_uid,
            container=container,
            pod_security=pod.spec.security_context,
            handed=handed,
            priority_resource=self._settings.resources.priority,
        )
        terms = NodeTerms(layout=self._layout, host=host, limits=self._limits, policy=self._policy)
        return backends.make_grant(promised, terms)

    def held_by(self, pod: kube.Pod, known: HandedPod | None) -> backends.HeldBy:
        return backends.held_by(pod, known, self._settings, self._policy)
