"""Before a container starts: find out whose it is, decide what it gets, and write that down where the runtime reads it.

Works for every container that was admitted late-binding, whatever the hand-off is now, and verifies the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from hami_chassis.errors import Transient
from hami_chassis.log import get_logger
from hami_model import kube
from hami_model.device_config import VendorSettings
from hami_model.ids import CardId
from hami_model.usage import CardUsage

from hami_node_agent.adapters.book_saving import BookSaving
from hami_node_agent.adapters.device_holders import DeviceHolders
from hami_node_agent.adapters.enforcing import Enforcing
from hami_node_agent.adapters.handover_news import HandoverNews
from hami_node_agent.adapters.mig_instances import MigInstances
from hami_node_agent.adapters.neighbours import Neighbours
from hami_node_agent.adapters.showing import Showing
from hami_node_agent.core import (
    backends,
    cdi_spec,
    entitlement,
    grant,
    handed_out,
    init_again,
)
from hami_node_agent.core.cdi_document import InvalidSpecificationError
from hami_node_agent.core.cdi_spec import OwnSpec
from hami_node_agent.core.checkpoint_match import Holder, Unmatched
from hami_node_agent.core.claims import Claims
from hami_node_agent.core.entitlement import Entitlement, Refusal
from hami_node_agent.core.handed_out import HandedContainer, HandedOut, HandedPod
from hami_node_agent.core.init_again import RunningAgain
from hami_node_agent.metrics import NodeAgentMetrics
from hami_node_agent.ports import (
    HandoverFiles,
    HostView,
    InventoryView,
    KubeletCheckpoint,
    Outcomes,
    OwnCheckpoint,
    OwnershipCheck,
    PodLedger,
    RefusedForGoodError,
)

log = get_logger("late-binding")


class LateBinding:
    """PreStartContainer. One object for the process; calls may overlap."""

    def __init__(
        self,
        node_name: str,
        settings: VendorSettings,
        book: HandedOut,
        *,
        ledger: PodLedger,
        checkpoint: KubeletCheckpoint,
        ownership: OwnershipCheck | None,
        files: HandoverFiles,
        own: OwnCheckpoint,
        inventory: InventoryView,
        outcomes: Outcomes,
        metrics: NodeAgentMetrics,
        new_region_name: Callable[[], str],
        enforcing: Enforcing,
        showing: Showing,
        mig: MigInstances | None = None,
    ) -> None:
        """`mig` where the node's cards are in MIG mode."""
        self._node_name = node_name
        self._settings = settings
        self._book = book
        self._ledger = ledger
        self._holders = DeviceHolders(
            node_name, settings, ledger=ledger, checkpoint=checkpoint, ownership=ownership, metrics=metrics
        )
        self._files = files
        self._inventory = inventory
        self._metrics = metrics
        self._new_region_name = new_region_name
        self._mig = mig
        self._showing = showing
        self._enforcing = enforcing
        self._one_pod_at_a_time: dict[str, asyncio.Lock] = {}
        self._claims = Claims(book, settings)
        self._running_again = RunningAgain()
        self._neighbours = Neighbours(book, ledger)
        self.news = HandoverNews(book, self._claims, settings, outcomes=outcomes, enforcing=enforcing)
        self._saving = BookSaving(book, own)

    async def pre_start(self, device_ids: Sequence[str]) -> None:
        """Returns when the container may start. Raises Transient (kubelet asks again) or RefusedForGoodError."""
        found = await self._holders.of(device_ids)
        if isinstance(found, Unmatched):
            raise Transient(found.reason)
        pod, found = await self._holders.pod_of(found)
        await self._holders.cross_check(pod, found, frozenset(device_ids))
        async with self._serialised(found[0].pod_uid):
            init_s_turn = init_again.is_init_s_turn(pod, [holder.container for holder in found])
            for holder in found:
                await self._hand_over(pod, holder, len(set(device_ids)), init_s_turn=init_s_turn)

    async def verify(self, device_ids: Sequence[str]) -> None:
        """The same where Allocate has answered already: what cannot be found out stays unverified, and may start.

        A container that was admitted late-binding, before the hand-off was changed, is handed over as ever.
        """
        try:
            found = await self._holders.of(device_ids)
        except Transient as error:
            found = Unmatched(reason=str(error))
        if isinstance(found, Unmatched):
            self._report_unverified(found.reason)
        elif any(holder.cdi_name is not None for holder in found):
            await self.pre_start(device_ids)
        else:
            for holder in found:
                await self._verify_given_by_lock(None, holder)

    def _serialised(self, uid: str) -> asyncio.Lock:
        return self._one_pod_at_a_time.setdefault(uid, asyncio.Lock())

    def pod_gone(self, pod: kube.Pod) -> None:
        uid = entitlement.kubelet_uid(pod)
        if not entitlement.is_mirror(pod) or self._ledger.cached(uid) is None:
            self.forget(uid)
            self._neighbours.pod_gone(uid)

    def forget(self, uid: str) -> None:
        """The pod of that UID is gone."""
        self._one_pod_at_a_time.pop(uid, None)
        self.news.forget(uid)
        self._claims.forget(uid)
        self._running_again.forget(uid)
        self._neighbours.forget(uid)

    async def _hand_over(self, pod: kube.Pod, holder: Holder, device_count: int, *, init_s_turn: bool) -> None:
        known = self._book.get(holder.pod_uid)
        if known is not None and known.state == "failed":
            raise RefusedForGoodError(known.reason)
        if holder.cdi_name is None:
            await self._verify_given_by_lock(pod, holder)
            return
        handed = known.containers.get(holder.container) if known is not None else None
        if handed is None:
            handed = await self._decide(pod, holder, device_count)
        else:
            self._metrics.handovers.labels("repeated").inc()
            self.news.report_change(pod, holder.container, handed)
            if init_s_turn and init_again.is_one_shot_init(pod, holder.container):
                self._let_init_through_again(pod, await self._neighbours.now())
        host = await self._look(with_specs=self._showing.needs_specs(pod))
        handed = self._with_library(pod, holder, handed, host.state)
        await self._saving.settle()
        if self._mig is not None and any(piece.placement is not None for piece in handed.slices):
            handed = await self._mig.make(holder.pod_uid, holder.container, self.save)
        await self._put(pod, holder, holder.cdi_name, handed, host)
        self.news.announce_first(pod, holder.pod_uid)

    async def _look(self, *, with_specs: bool) -> HostView:
        host = await self._files.look(with_specs=with_specs)
        if host.is_book_missing:
            self._saving.changed()
        return host

    def _with_library(
        self, pod: kube.Pod, holder: Holder, handed: HandedContainer, host: grant.HostState
    ) -> HandedContainer:
        now = self._enforcing.with_library(pod.all_containers[handed.position], handed, host)
        if now is not handed:
            self._book.replace_container(holder.pod_uid, holder.container, now)
            self._saving.changed()
        return now

    async def _files_again(self, pod: kube.Pod | None, holder: Holder) -> None:
        """What Allocate put into place long ago may be gone or changed by the container's last start."""
        known = self._book.get(holder.pod_uid)
        handed = known.containers.get(holder.container) if known is not None else None
        if pod is not None and handed is not None:
            host = await self._look(with_specs=False)
            await self._saving.settle()
            state = grant.HostState(library=handed.library or host.state.library, has_license=host.state.has_license)
            container = pod.all_containers[handed.position]
            await self._files.put(self._enforcing.grant(pod, holder.pod_uid, container, handed, state).files, None)

    async def refresh(self, pod: kube.Pod) -> None:
        """After a start: containers of the pod see what this agent's settings say of their limits. Raises Transient."""
        known = self._claims.handed_to(pod)
        if known is None:
            return
        host = await self._files.look(with_specs=False)
        for handed in known.containers.values():
            if handed.position < len(pod.all_containers):
                container = pod.all_containers[handed.position]
                given = self._enforcing.grant(pod, entitlement.kubelet_uid(pod), container, handed, host.state)
                if given.files is not None:
                    await self._files.refresh_page(given.files)

    async def _verify_given_by_lock(self, pod: kube.Pod | None, holder: Holder) -> None:
        """Allocate answered for the owner of the node lock: was that this container?"""
        known = self._book.get(holder.pod_uid)
        if known is not None and known.state == "failed":
            raise RefusedForGoodError(known.reason)
        owner = handed_out.receiver_of(self._book, holder.region_file) or handed_out.receiver_of_instances(
            self._book, holder.mig_devices
        )
        if owner is None:
            self._report_unverified(f"container {holder.container} was answered by somebody else")
            return
        if owner == (holder.pod_uid, holder.container):
            refusal = await self._standing_again(holder)
            if refusal is None:
                await self._files_again(pod or self._ledger.cached(holder.pod_uid), holder)
                self._metrics.handovers.labels("verified").inc()
                return
        else:
            refusal = Refusal(
                reason=f"container {holder.container}: kubelet gave it devices while the node lock named another pod, "
                "whose limits it would have; delete the pod"
            )
        pod = pod or self._ledger.cached(holder.pod_uid)
        if pod is not None:
            await self._refuse(pod, holder.pod_uid, refusal)
        raise RefusedForGoodError(refusal.reason)

    async def _standing_again(self, holder: Holder) -> Refusal | None:
        """MIG instances do not outlast a reboot, and kubelet keeps the answer that names them."""
        if self._mig is None or not holder.mig_devices:
            return None
        made = await self._mig.make(holder.pod_uid, holder.container, self.save, one_after_the_other=False)
        if {piece.instance.uuid for piece in made.slices if piece.instance is not None} == set(holder.mig_devices):
            return None
        return Refusal(
            reason=f"container {holder.container}: its MIG instances are gone, and those in their places have other "
            "names than the container was admitted with; delete the pod"
        )

    def _report_unverified(self, reason: str) -> None:
        self._metrics.handovers.labels("unverified").inc()
        log.warning("hand-over-unverified", reason=reason)

    async def _decide(self, pod: kube.Pod, holder: Holder, device_count: int) -> HandedContainer:
        # The watch brings pods in the order of their binds: where it lacks an earlier one, it lacks this one, too.
        everyone = await self._neighbours.now(read_anew=self._ledger.cached(holder.pod_uid) is None)
        judged = self._judge(pod, holder, device_count, everyone)
        if isinstance(judged, Refusal):
            # What is cached may be old; a refusal for good is worth a consistent read.
            fresh = await self._ledger.read(holder.pod_uid)
            if fresh is None:
                raise RefusedForGoodError(f"pod {pod.key} of UID {holder.pod_uid} is gone")
            pod = fresh
            everyone = await self._neighbours.now(read_anew=bool(judged.holders))
            judged = self._judge(pod, holder, device_count, everyone)
        if isinstance(judged, Refusal):
            holders = [other for other in everyone if entitlement.kubelet_uid(other) in judged.holders]
            await self._refuse(pod, holder.pod_uid, judged, holders)
            raise RefusedForGoodError(judged.reason)
        self._wait_for_room(pod, self._claims.of(pod).usage, everyone)
        position = [container.name for container in pod.all_containers].index(holder.container)
        handed = self._enforcing.promise(pod, position, judged.slices, self._new_region_name())
        if problem := backends.unholdable(handed):
            refusal = Refusal(reason=f"container {holder.container}: {problem}")
            await self._refuse(pod, holder.pod_uid, refusal)
            raise RefusedForGoodError(refusal.reason)
        # From the judgement to this line nothing waits, so two pods cannot both take the last share of a card.
        self._book.add_container(holder.pod_uid, new_pod(pod), holder.container, handed)
        self._saving.changed()
        self._metrics.handovers.labels("handed-over").inc()
        return handed

    async def save(self) -> None:
        """Saves the book after a change that somebody else made to it. Raises Transient."""
        self._saving.changed()
        await self._saving.settle()

    async def _put(self, pod: kube.Pod, holder: Holder, cdi_name: str, handed: HandedContainer, host: HostView) -> None:
        container = next(found for found in pod.all_containers if found.name == holder.container)
        given = self._enforcing.grant(pod, holder.pod_uid, container, handed, host.state)
        if any(piece.placement is not None for piece in handed.slices):
            shown = await self._showing.instances(pod, handed, host.nvidia_specs)
        else:
            shown = self._showing.cards(pod, given.card_ids, host.nvidia_specs)
        try:
            specification = cdi_spec.own_spec(cdi_name, given, shown)
        except InvalidSpecificationError as error:
            raise RefusedForGoodError(
                f"container {holder.container}: the runtime would refuse what it is to be given: {error}; correct "
                "NVIDIA's CDI specification, of which its edits are, or set handoff.shown_by: runtime"
            ) from error
        await self._files.put(given.files, OwnSpec(pod_uid=holder.pod_uid, name=cdi_name, content=specification))
        log.info(
            "handed-over",
            pod=pod.key,
            pod_uid=holder.pod_uid,
            container=holder.container,
            cards=given.card_ids,
            cdi_device=cdi_name,
        )

    def _judge(
        self, pod: kube.Pod, holder: Holder, device_count: int, everyone: Iterable[kube.Pod]
    ) -> Entitlement | Refusal:
        """Raises Transient where the driver must tell first which cards there are."""
        known_cards = {card.id: card for card in self._inventory.inventory.cards}
        found = entitlement.entitlement(
            pod,
            holder.container,
            device_count,
            node_name=self._node_name,
            settings=self._settings,
            known_cards=known_cards,
        )
        if isinstance(found, Refusal):
            if found.unknown_cards and self._inventory.inventory.may_have(found.unknown_cards):
                raise Transient(f"{found.reason} as far as the driver tells, and it cannot tell of all cards now")
            return found
        others = [self._claims.of(other) for other in everyone if not other.is_finished and other.uid != pod.uid]
        return entitlement.overcommitted(self._claims.of(pod), others, known_cards) or found

    def _wait_for_room(self, pod: kube.Pod, wanted: Mapping[CardId, CardUsage], everyone: Iterable[kube.Pod]) -> None:
        """Raises Transient while init containers that run again need what this one asks for."""
        others = [other for other in everyone if not other.is_finished]
        claims = [self._claims.of(other) for other in others]
        known_cards = {card.id: card for card in self._inventory.inventory.cards}
        again = self._running_again.among(others)
        reason = init_again.no_room(entitlement.kubelet_uid(pod), wanted, claims, again, known_cards)
        if reason:
            raise Transient(f"pod {pod.key}: {reason}")

    def _let_init_through_again(self, pod: kube.Pod, everyone: Iterable[kube.Pod]) -> None:
        """Raises Transient where what a one-shot init container held went to others."""
        wanted = self._claims.of(pod).with_init
        if wanted is not None:
            self._wait_for_room(pod, wanted, everyone)
            self._running_again.let_through(pod)

    async def _refuse(self, pod: kube.Pod, uid: str, refusal: Refusal, holders: Sequence[kube.Pod] = ()) -> None:
        log.warning("hand-over-refused", pod=pod.key, pod_uid=uid, reason=refusal.reason)
        self._metrics.handovers.labels("failed").inc()
        self._book.fail(uid, new_pod(pod), refusal.reason)
        self._saving.changed()
        self.news.announce_failure(pod, refusal.reason, holders)
        await self._saving.settle()


def new_pod(pod: kube.Pod) -> HandedPod:
    """What the book keeps of a pod, before anything was handed to it."""
    return HandedPod(namespace=pod.metadata.namespace, name=pod.metadata.name, allocation_id=entitlement.identity(pod))
