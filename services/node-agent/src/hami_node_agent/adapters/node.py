"""Our Node object: its register annotation, kept true, and the node lock, taken away where a pod is served.

`desired` ──differs from the node──▶ patch until it holds ──▶ events with the patched resource version
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from hami_chassis.clock import Clock
from hami_chassis.errors import Permanent, Transient
from hami_chassis.kube import Informer, KubeClient
from hami_chassis.kube.errors import Conflict, NotFound
from hami_chassis.kube.resources import NODES, PODS
from hami_chassis.log import get_logger
from hami_chassis.metrics import ChassisMetrics
from hami_chassis.retry import DEFAULT_BACKOFF, Retries
from hami_model import events, keys, kube, node_lock, pair_scores, register
from hami_model.cards import Card
from hami_model.errors import MalformedAnnotation
from hami_model.pair_scores import PairScores
from hami_model.register import Handoff
from hami_model.vendors import VendorDescriptor

from hami_node_agent.core.health import HealthChange
from hami_node_agent.core.inventory import annotation_to_write
from hami_node_agent.core.outcome import Origin
from hami_node_agent.metrics import NodeAgentMetrics
from hami_node_agent.ports import EventSink

log = get_logger("node")


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """What we read of our Node."""

    register: str | None
    pair_scores: str | None
    lock: str | None
    resource_version: str
    kubelet_version: str
    runtime_version: str
    labels: dict[str, str]
    allocatable: dict[str, str | int | float]


class NodeWatch:
    """What is written on our Node. `informer` is to be run as a root task."""

    def __init__(
        self, client: KubeClient, node_name: str, descriptor: VendorDescriptor, *, metrics: ChassisMetrics, clock: Clock
    ) -> None:
        self._descriptor = descriptor
        self.view: NodeView | None = None
        """None while there is no such node, or none was seen yet."""
        self.described = asyncio.Event()
        """Set once the node's status said which kubelet and runtime it has."""
        self.on_change: list[Callable[[], None]] = []
        self.informer: Informer[kube.Node, kube.Node] = Informer(
            client,
            NODES,
            into=kube.Node,
            project=lambda node: node,
            handler=self,
            metrics=metrics,
            clock=clock,
            field_selector=f"metadata.name={node_name}",
        )

    def added(self, new: kube.Node) -> None:
        info = new.status.node_info or kube.NodeInfo()
        self.view = NodeView(
            register=new.annotations.get(self._descriptor.register_key),
            pair_scores=new.annotations.get(self._descriptor.pair_scores_key),
            lock=new.annotations.get(keys.NODE_LOCK),
            resource_version=new.metadata.resource_version,
            kubelet_version=info.kubelet_version,
            runtime_version=info.container_runtime_version,
            labels=new.labels,
            allocatable=new.status.allocatable or {},
        )
        if info.kubelet_version:
            self.described.set()
        self._tell()

    def modified(self, _old: kube.Node, new: kube.Node) -> None:
        self.added(new)

    def deleted(self, _last: kube.Node) -> None:
        self.view = None
        self._tell()

    def _tell(self) -> None:
        for tell in self.on_change:
            tell()


class NodeRegistration:
    """Root task `run`: keeps the register annotation and the pair scores true and says what changed."""

    def __init__(
        self,
        client: KubeClient,
        watch: NodeWatch,
        descriptor: VendorDescriptor,
        origin: Origin,
        *,
        sink: EventSink,
        used_by: Callable[[str], tuple[events.PodRef, ...]],
        heartbeat_seconds: float,
        metrics: NodeAgentMetrics,
        clock: Clock,
    ) -> None:
        self._client = client
        self._watch = watch
        self._descriptor = descriptor
        self._handoff: Handoff | None = None
        self._origin = origin
        self._sink = sink
        self._used_by = used_by
        self._heartbeat_seconds = heartbeat_seconds
        self._metrics = metrics
        self._clock = clock
        self._cards: tuple[Card, ...] | None = None
        self._scores: tuple[PairScores, ...] | None = None
        self._changes: list[HealthChange] = []
        self._work = asyncio.Event()
        self._retries = Retries(DEFAULT_BACKOFF)
        self._written_version = ""
        self._held: tuple[str, str | None] | None = None
        """Register annotation and pair scores that the node carried last, as we know."""
        self._said: str | None = None
        self._said_at = float("-inf")
        self.holds = asyncio.Event()
        """Set once the node carried the annotation."""
        watch.on_change.append(self._work.set)

    def begin(self, handoff: Handoff) -> None:
        """From here on the annotation is written, with this hand-off."""
        self._handoff = handoff
        self._work.set()

    def offer(
        self,
        cards: tuple[Card, ...],
        changes: tuple[HealthChange, ...] = (),
        scores: tuple[PairScores, ...] | None = None,
    ) -> None:
        """What the node is to offer from now on, and which cards changed for it. Scores None: they are left alone."""
        self._cards = cards
        self._scores = scores
        self._changes.extend(changes)
        self._work.set()

    async def run(self) -> None:
        while True:
            error = await self._step()
            if error is not None:
                await self._clock.sleep(self._retries.delay_after(error))
                continue
            self._retries.succeeded()
            await self._wait_for_work()

    async def _wait_for_work(self) -> None:
        """Until something changed or, once the node carries the annotation, the next heartbeat is due."""
        working = asyncio.ensure_future(self._work.wait())
        waited: set[asyncio.Future[Any]] = {working}
        if self._said is not None and self._watch.view is not None:
            pause = max(0.0, self._said_at + self._heartbeat_seconds - self._clock.monotonic())
            waited.add(asyncio.ensure_future(self._clock.sleep(pause)))
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waited:
                task.cancel()
            await asyncio.gather(*waited, return_exceptions=True)

    async def _step(self) -> Transient | Permanent | None:
        self._work.clear()
        view = self._watch.view
        if self._cards is None or self._handoff is None or view is None:
            return None
        text = register.encode(self._descriptor, self._cards, self._handoff)
        scores_text = None if self._scores is None else pair_scores.encode(self._scores)
        wanted = self._wanted(view, text, scores_text)
        if wanted:
            try:
                written = await self._client.patch_annotations(NODES, self._origin.node, wanted)
            except (Transient, Permanent) as error:
                self._metrics.node_patches.labels("failed").inc()
                log.warning("register-annotation-not-written", reason=str(error))
                return error
            self._metrics.node_patches.labels("done").inc()
            self._written_version = written.metadata.resource_version
        elif not self._written_version:
            self._written_version = view.resource_version
        self._held = (text, scores_text)
        self.holds.set()
        self._announce(text, self._handoff)
        return None

    def _wanted(self, view: NodeView, text: str, scores_text: str | None) -> dict[str, str]:
        """Annotations that differ from what they should be."""
        carried, scores_carried = view.register, view.pair_scores
        if self._held is not None and not self._is_newer(view):
            carried, scores_carried = self._held  # what the watch shows is older than our own patch
        found = {
            self._descriptor.register_key: annotation_to_write(carried, text, has_cards=bool(self._cards)),
            self._descriptor.pair_scores_key: scores_text
            and annotation_to_write(scores_carried, scores_text, has_cards=bool(self._cards)),
        }
        return {key: value for key, value in found.items() if value is not None}

    def _is_newer(self, view: NodeView) -> bool:
        """Whether the view has seen our last patch. Versions of one object grow, though only the server may say so."""
        seen, written = view.resource_version, self._written_version
        return not (seen.isdecimal() and written.isdecimal()) or int(seen) >= int(written)

    def _announce(self, text: str, handoff: Handoff) -> None:
        now, cards = self._clock.now(), self._cards or ()
        changes, self._changes = self._changes, []
        # What changed within one patch has one id by card and state; then what was said last holds.
        told: dict[str, events.CardHealthChanged] = {}
        for change in changes:
            event = events.CardHealthChanged(
                source=self._origin.source,
                time=now,
                node=self._origin.node,
                vendor=self._descriptor.word,
                card_id=change.card_id,
                healthy=change.healthy,
                cause=change.cause,
                xid=change.xid,
                resource_version=self._written_version,
                used_by=self._used_by(change.card_id),
            )
            told.pop(event.id, None)
            told[event.id] = event
        for event in told.values():
            self._publish(event)
        is_due = self._clock.monotonic() - self._said_at >= self._heartbeat_seconds
        if text != self._said or changes or is_due:
            self._publish(
                events.InventoryReported(
                    source=self._origin.source,
                    time=now,
                    node=self._origin.node,
                    vendor=self._descriptor.word,
                    resource_version=self._written_version,
                    handoff=handoff,
                    cards=cards,
                )
            )
            self._said_at = self._clock.monotonic()
        self._said = text

    def _publish(self, event: events.CardHealthChanged | events.InventoryReported) -> None:
        self._sink.publish(event.subject(self._origin.prefix), events.encode(event), events.headers(event))


class LockRelease:
    """Root task `run`: takes away a node lock whose owner waits for nothing on this node."""

    def __init__(
        self,
        client: KubeClient,
        watch: NodeWatch,
        node_name: str,
        *,
        pods: Callable[[], Iterable[kube.Pod]],
        metrics: NodeAgentMetrics,
        clock: Clock,
    ) -> None:
        self._client = client
        self._watch = watch
        self._node_name = node_name
        self._pods = pods
        self._metrics = metrics
        self._clock = clock
        self._handoff: Handoff | None = None
        self._retries = Retries(DEFAULT_BACKOFF)
        self._work = asyncio.Event()
        watch.on_change.append(self._work.set)

    def begin(self, handoff: Handoff) -> None:
        self._handoff = handoff
        self._work.set()

    def pod_seen(self, _pod: kube.Pod) -> None:
        """It may be the one that the lock names."""
        view = self._watch.view
        if view is not None and view.lock is not None:
            self._work.set()

    async def run(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            view = self._watch.view
            if view is None or view.lock is None:
                continue
            owner = self._owner_of(view.lock)
            if owner is None or not self._waits_for_nothing(owner):
                continue
            try:
                if self._handoff != "late-binding" and not await self._still_waits_for_nothing(owner):
                    continue
                await self._client.patch_annotations(
                    NODES, self._node_name, {keys.NODE_LOCK: None}, resource_version=view.resource_version
                )
            except (Conflict, NotFound):
                continue  # the node was changed meanwhile: the watch brings it, and we look again
            except (Transient, Permanent) as error:
                log.warning("node-lock-not-released", reason=str(error))
                await self._clock.sleep(self._retries.delay_after(error))
                self._work.set()
            else:
                self._metrics.locks_released.inc()
                log.info("node-lock-released", lock=view.lock)
                self._retries.succeeded()

    def _owner_of(self, lock: str) -> kube.Pod | None:
        """The pod that the lock names, as last seen: it may be an earlier one of that name."""
        try:
            owner = node_lock.parse(lock).owner
        except MalformedAnnotation:
            return None
        if owner is None:
            return None
        name = (owner.namespace, owner.name)
        return next((pod for pod in self._pods() if (pod.metadata.namespace, pod.metadata.name) == name), None)

    async def _still_waits_for_nothing(self, owner: kube.Pod) -> bool:
        """By the server's word of the pod that has this name now. Raises Transient and Permanent."""
        name, namespace = owner.metadata.name, owner.metadata.namespace
        try:
            return self._waits_for_nothing(await self._client.get(PODS, name, namespace=namespace, into=kube.Pod))
        except NotFound:
            return True

    def _waits_for_nothing(self, owner: kube.Pod) -> bool:
        """Bound late, a pod needs no lock from its bind on; else once its hand-over is done, or it ended."""
        if self._handoff is None:
            return False
        done = owner.annotations.get(keys.BIND_PHASE) in (keys.BIND_PHASE_SUCCESS, keys.BIND_PHASE_FAILED)
        return self._handoff == "late-binding" or done or owner.is_finished
