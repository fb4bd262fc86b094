"""Allocate where the hand-off is `lock`, one call at a time: find the pod, answer, write the outcome, free the lock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from hami_chassis.clock import Clock
from hami_chassis.errors import Permanent, Transient
from hami_chassis.kube.errors import Conflict, NotFound
from hami_chassis.log import get_logger
from hami_model import env, kube, node_lock
from hami_model.cards import Slots
from hami_model.device_config import VendorSettings
from hami_model.errors import MalformedAnnotation
from hami_model.node_lock import PodName
from kubelet_api import deviceplugin_v1beta1_pb2 as pb

from hami_node_agent.adapters.allocate_response import allocate_response
from hami_node_agent.adapters.enforcing import Enforcing
from hami_node_agent.adapters.late_binding import LateBinding, new_pod
from hami_node_agent.adapters.mig_instances import MigInstances
from hami_node_agent.core import backends, checkpoint_match, lock_allocate, mig_instances, mig_uuid, static_mig
from hami_node_agent.core.checkpoint_match import Unmatched
from hami_node_agent.core.device_lists import DeviceRules, VisibleDevice
from hami_node_agent.core.entitlement import Refusal
from hami_node_agent.core.grant import HostState
from hami_node_agent.core.handed_out import HandedContainer, HandedOut
from hami_node_agent.core.inventory import visible_cards
from hami_node_agent.core.lock_allocate import Plan, PreferredRequest, Served
from hami_node_agent.core.outcome import failure_annotations
from hami_node_agent.metrics import NodeAgentMetrics
from hami_node_agent.ports import (
    HandoverFiles,
    InventoryView,
    KubeletCheckpoint,
    LockApi,
    Outcomes,
    OwnCheckpoint,
    RefusedForGoodError,
)

log = get_logger("lock-handoff")

_RELEASE_TRIES: Final = 5
_RELEASE_PAUSE_SECONDS: Final = 0.1


class LockHandoff:
    """Answers kubelet where the hand-off is the node lock."""

    prefers = True

    def __init__(
        self,
        node_name: str,
        rules: DeviceRules,
        settings: VendorSettings,
        book: HandedOut,
        *,
        api: LockApi,
        files: HandoverFiles,
        own: OwnCheckpoint,
        inventory: InventoryView,
        outcomes: Outcomes,
        metrics: NodeAgentMetrics,
        clock: Clock,
        new_region_name: Callable[[], str],
        enforcing: Enforcing,
        pre_start: LateBinding | None,
        checkpoint: KubeletCheckpoint | None = None,
        static: static_mig.StaticDevices = static_mig.NO_STATIC_DEVICES,
        mig: MigInstances | None = None,
    ) -> None:
        """`pre_start` verifies before a container starts; without it nothing is verified.

        `checkpoint` tells a question that was answered before; without it every question is a new one. `mig` where the
        node's cards are in MIG mode.
        """
        self._node_name = node_name
        self._rules = rules
        self._settings = settings
        self._book = book
        self._api = api
        self._files = files
        self._own = own
        self._inventory = inventory
        self._outcomes = outcomes
        self._metrics = metrics
        self._clock = clock
        self._new_region_name = new_region_name
        self._pre_start = pre_start
        self._checkpoint = checkpoint
        self._static = static
        self._mig = mig
        self._enforcing = enforcing
        self._one_at_a_time = asyncio.Lock()

    async def pre_start(self, device_ids: Sequence[str]) -> None:
        if self._pre_start is not None:
            await self._pre_start.verify(device_ids)

    async def preferred(self, requests: Sequence[pb.ContainerPreferredAllocationRequest]) -> list[list[str]]:
        """A wish only: where nobody can be told to be meant, kubelet chooses by itself."""
        wanted = [
            PreferredRequest(
                available=tuple(request.available_deviceIDs),
                must_include=tuple(request.must_include_deviceIDs),
                size=request.allocation_size,
            )
            for request in requests
        ]
        async with self._one_at_a_time:
            unserved = await self._unserved([[""] * request.size for request in wanted])
        return lock_allocate.preferred(unserved, wanted)

    async def _unserved(self, requests: Sequence[Sequence[str]]) -> Slots:
        try:
            lock, _ = await self._api.node_lock()
            pod = await self._pod(lock, requests)
        except (Transient, Permanent, RefusedForGoodError, MalformedAnnotation) as error:
            log.info("no-preferred-devices", reason=str(error))
            return ()
        found = lock_allocate.to_allocate(pod, self._settings, self._handed(pod))
        return () if isinstance(found, Refusal) else found

    async def allocate(self, requests: Sequence[Sequence[str]]) -> list[pb.ContainerAllocateResponse]:
        """Raises Transient or RefusedForGoodError; then the pod, where it is known, is failed and holds no lock."""
        async with self._one_at_a_time:
            repeated = [await self._answered_before(ids) for ids in requests]
            if repeated and None not in repeated:
                return [answer for answer in repeated if answer is not None]
            lock, version = await self._api.node_lock()
            try:
                pod = await self._pod(lock, requests)
            except MalformedAnnotation as error:
                raise RefusedForGoodError(f"nobody can tell which pod this is for: {error}") from error
            try:
                return await self._serve(pod, requests, lock, version)
            except RefusedForGoodError as error:
                await self._fail(pod, str(error), lock, version)
                raise
            except Transient as error:
                # Kubelet does not ask again: it fails the pod's admission.
                await self._fail(pod, str(error), lock, version)
                raise

    async def _answered_before(self, device_ids: Sequence[str]) -> pb.ContainerAllocateResponse | None:
        """The same answer again, where a container of a running pod holds these devices already.

        A kubelet that started anew may ask for an init container that has ended; who waits now must not pay for that.
        """
        if self._checkpoint is None or not device_ids:
            return None
        try:
            view = await self._checkpoint.read()
            found = checkpoint_match.holders(view, self._settings.resources.count, device_ids, env.REGION_FILE)
            for holder in () if isinstance(found, Unmatched) else found:
                known = self._book.get(holder.pod_uid)
                handed = known.containers.get(holder.container) if known is not None else None
                if known is None or handed is None or known.state == "failed":
                    continue
                pod = await self._api.get_pod(known.namespace, known.name)
                if pod.uid == holder.pod_uid and pod.status.phase == "Running":
                    log.info("handed-over-again", pod=pod.key, pod_uid=pod.uid, container=holder.container)
                    container = pod.all_containers[handed.position]
                    host = (await self._files.look(with_specs=False)).state
                    handed = self._enforcing.with_library(container, handed, host)
                    answer = await self._response(pod, container, handed, host)
                    self._book.replace_container(pod.uid, container.name, handed)
                    await self._own.write(self._book)
                    return answer
        except (Transient, NotFound) as error:
            log.info("no-earlier-answer", reason=str(error))
        return None

    async def _pod(self, lock: str | None, requests: Sequence[Sequence[str]]) -> kube.Pod:
        owner = lock_allocate.owner_of(lock)
        if owner is not None:
            try:
                pod = await self._api.get_pod(owner.namespace, owner.name)
            except NotFound:
                log.warning("lock-owner-gone", owner=f"{owner.namespace}/{owner.name}")
            else:
                if lock_allocate.waits(pod, self._node_name):
                    return pod
                log.warning("lock-owner-does-not-wait", owner=pod.key, phase=pod.status.phase)
        found = lock_allocate.choose(
            await self._api.pods_of_node(),
            requests,
            node_name=self._node_name,
            settings=self._settings,
            handed={uid: self._positions(uid) for uid in self._book.uids()},
        )
        if isinstance(found, Refusal):
            raise RefusedForGoodError(found.reason)
        return found

    def _handed(self, pod: kube.Pod) -> frozenset[int]:
        return self._positions(pod.uid)

    def _positions(self, uid: str) -> frozenset[int]:
        known = self._book.get(uid)
        return frozenset(handed.position for handed in known.containers.values()) if known is not None else frozenset()

    async def _serve(
        self, pod: kube.Pod, requests: Sequence[Sequence[str]], lock: str | None, version: str
    ) -> list[pb.ContainerAllocateResponse]:
        plan = lock_allocate.make_plan(
            pod,
            requests,
            settings=self._settings,
            known_cards={card.id: card for card in self._inventory.inventory.cards},
            handed=self._handed(pod),
            instances=self._static_instances(requests),
        )
        if isinstance(plan, Refusal):
            raise RefusedForGoodError(plan.reason)
        host = (await self._files.look(with_specs=False)).state
        answers = [await self._answer(pod, served, host) for served in plan.served]
        if plan.served:
            await self._own.write(self._book)
            await self._write_outcome(pod, plan, lock, version)
        return answers

    def _static_instances(self, requests: Sequence[Sequence[str]]) -> dict[int, tuple[str, ...]]:
        """UUIDs of MIG devices by the number of the request. Raises RefusedForGoodError."""
        found: dict[int, tuple[str, ...]] = {}
        for number, ids in enumerate(requests):
            if not ids or not mig_uuid.is_mig(ids[0]):
                continue
            chosen = static_mig.chosen_instances(ids, self._static.devices(), one_at_most=self._static.one_at_most)
            if isinstance(chosen, str):
                raise RefusedForGoodError(chosen)
            found[number] = tuple(device.uuid for device in chosen)
        return found

    async def _answer(self, pod: kube.Pod, served: Served, host: HostState) -> pb.ContainerAllocateResponse:
        handed = self._enforcing.promise(pod, served.position, served.slices, self._new_region_name())
        if problem := backends.unholdable(handed):
            raise RefusedForGoodError(f"container {served.container.name}: {problem}")
        handed = self._enforcing.with_library(served.container, handed, host)
        response = await self._response(pod, served.container, handed, host)
        self._metrics.handovers.labels("handed-over").inc()
        cards = [piece.card_id for piece in handed.slices]
        log.info("handed-over", pod=pod.key, pod_uid=pod.uid, container=served.container.name, cards=cards)
        return response

    async def _response(
        self, pod: kube.Pod, container: kube.Container, handed: HandedContainer, host: HostState
    ) -> pb.ContainerAllocateResponse:
        """Afterwards the container is in the book."""
        if any(piece.placement is not None for piece in handed.slices):
            handed = await self._with_instances(pod, container, handed)
        given = self._enforcing.grant(pod, pod.uid, container, handed, host)
        await self._files.put(given.files, None)
        self._book.add_container(pod.uid, new_pod(pod), container.name, handed)
        if any(piece.placement is not None for piece in handed.slices):
            visible = [VisibleDevice(uuid=uuid, index=uuid) for uuid in given.card_ids]
        else:
            static = self._static.devices()
            cards = visible_cards(self._inventory.inventory, given.card_ids)
            visible = [static.get(card.uuid, card) for card in cards]
        return allocate_response(given, visible, self._rules)

    async def _with_instances(
        self, pod: kube.Pod, container: kube.Container, handed: HandedContainer
    ) -> HandedContainer:
        """They are in the book before they are made: what is left of an interrupted one is known to be ours."""
        if self._mig is None:
            raise RefusedForGoodError(
                f"pod {pod.key} container {container.name}: this node's cards are not in MIG mode"
            )
        self._book.add_container(pod.uid, new_pod(pod), container.name, handed)
        return await self._mig.make(pod.uid, container.name, self._save, one_after_the_other=False)

    async def _save(self) -> None:
        await self._own.write(self._book)

    async def _write_outcome(self, pod: kube.Pod, plan: Plan, lock: str | None, version: str) -> None:
        handed = self._book.get(pod.uid)
        instances = mig_instances.with_instances(pod, self._settings, handed) if handed is not None else {}
        annotations = {**plan.annotations(self._settings), **instances}
        try:
            await self._api.patch_pod(pod, annotations)
        except (Transient, Permanent) as error:
            # What was handed out is in our own checkpoint; the pod shows it later.
            log.warning("pod-patch-failed", pod=pod.key, reason=str(error))
            self._outcomes.write(pod, annotations)
        if plan.is_last:
            self._outcomes.announce_allocated(pod, "", self._enforcing.held_by(pod, self._book.get(pod.uid)))
            await self._release(pod, lock, version)

    async def _fail(self, pod: kube.Pod, reason: str, lock: str | None, version: str) -> None:
        log.warning("allocate-failed", pod=pod.key, pod_uid=pod.uid, reason=reason)
        self._metrics.handovers.labels("failed").inc()
        self._book.fail(pod.uid, new_pod(pod), reason)
        try:
            await self._own.write(self._book)
        except Transient as error:
            log.warning("own-checkpoint-not-written", reason=str(error))
        await self._give_up_instances(pod)
        try:
            await self._api.patch_pod(pod, failure_annotations())
        except (Transient, Permanent) as error:
            log.warning("pod-patch-failed", pod=pod.key, reason=str(error))
            self._outcomes.write(pod, failure_annotations())
        self._outcomes.announce_failed(pod, reason)
        await self._release(pod, lock, version)

    async def _give_up_instances(self, pod: kube.Pod) -> None:
        """No container of the pod was admitted, so none uses them. What stays here goes with the pod."""
        try:
            if self._mig is not None:
                await self._mig.release(pod.uid, self._save)
        except Transient as error:
            log.warning("mig-instances-left", pod=pod.key, pod_uid=pod.uid, reason=str(error))

    async def _release(self, pod: kube.Pod, lock: str | None, version: str) -> None:
        """Whoever still wants the lock must not wait for us. What fails here is done by the watch of the node."""
        owner = PodName(namespace=pod.metadata.namespace, name=pod.metadata.name)
        for attempt in range(_RELEASE_TRIES):
            try:
                if attempt:
                    await self._clock.sleep(_RELEASE_PAUSE_SECONDS * 2 ** (attempt - 1))
                    lock, version = await self._api.node_lock()
                if not node_lock.may_release(lock, owner):
                    return
                await self._api.clear_node_lock(version)
            except (Transient, Conflict) as error:
                log.info("node-lock-not-released-yet", pod=pod.key, reason=str(error))
            except Permanent as error:
                log.warning("node-lock-not-released", pod=pod.key, reason=str(error))
                return
            else:
                self._metrics.locks_released.inc()
                return
