"""The one owner of the ledger: takes observations and decisions, and tells everybody who has to know.

Observations come from informers and the bus, decisions from the extender. Everything here is one synchronous step on
the loop, so nobody ever sees a half-done change. Only while `in_charge` does anything go out: a follower keeps the
same book in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hami_chassis.clock import Clock
from hami_chassis.kube.events import ObjectReference
from hami_chassis.log import get_logger
from hami_model import events, keys, kube, requests
from hami_model.errors import InvalidRequestError, MalformedAnnotation
from hami_model.ids import AllocationId
from hami_model.lifecycle import ExpiryCause

from hami_scheduler.core import holdings, rejections
from hami_scheduler.core.advice import Case, Looked
from hami_scheduler.core.announcements import Announcements
from hami_scheduler.core.filter import FilterAnswer, filter_pod
from hami_scheduler.core.ledger import Ledger
from hami_scheduler.core.records import BoundPod, NodeChange, PodChange, Reservation
from hami_scheduler.core.waking import RejectedPod
from hami_scheduler.metrics import SchedulerMetrics
from hami_scheduler.ports import Adviser, Alarm, Chores, EventSink, NoticeBoard

log = get_logger("bookkeeper")


class Bookkeeper:
    def __init__(
        self,
        ledger: Ledger,
        *,
        rejected: dict[str, RejectedPod],
        announcements: Announcements,
        sink: EventSink,
        prefix: str,
        board: NoticeBoard,
        alarm: Alarm,
        chores: Chores,
        adviser: Adviser,
        metrics: SchedulerMetrics,
        clock: Clock,
        new_allocation_id: Callable[[], AllocationId],
        pod_of: Callable[[str], kube.Pod | None],
    ) -> None:
        """`pod_of`: the live pod of a UID, as last seen."""
        self.ledger = ledger
        self.ledger.adopting = False  # what others wrote on unbound pods is taken over at the start of a term only
        self.rejected = rejected
        """Pods that the last filter call found no node for, by UID."""
        self.binding: set[str] = set()
        """UIDs of pods whose Binding is under way or has an unknown outcome: nothing else may touch their slices."""
        self._lost_lock: dict[str, RejectedPod] = {}
        """By UID: pods whose bind waited in vain for the lock of the only candidate."""
        self.in_charge = False
        """Whether this process decides and speaks; see `Term`."""
        self._announcements = announcements
        self._sink = sink
        self._prefix = prefix
        self._board = board
        self._alarm = alarm
        self._chores = chores
        self._adviser = adviser
        self._metrics = metrics
        self._clock = clock
        self._new_allocation_id = new_allocation_id
        self._pod_of = pod_of

    # ---- terms -------------------------------------------------------------------------------------------------

    def begin_term(self, pods: Iterable[kube.Pod]) -> None:
        """Takes charge. `pods` is a consistent list that began after every earlier leader had to stop."""
        self.in_charge = True
        self.ledger.adopting = True
        untold = {uid for uid, bound in self.ledger.bound_pods.items() if bound.problem is not None}
        for pod in pods:
            self.pod_seen(pod)
            known = self.ledger.bound_pods.get(pod.uid)
            if known is not None and pod.uid in untold:
                self._tell_pod_problem(pod, known.problem)
        for node in self.ledger.nodes():
            for settings in self.ledger.config.vendors:
                self._tell_node_problem(
                    node, settings.vendor.word, self.ledger.view(node.name, settings.vendor.word).problem
                )
        self.ledger.adopting = False
        log.info("term-begun", bound_pods=len(self.ledger.bound_pods), adopted=len(self.ledger.reservations))

    def end_term(self) -> None:
        """Another scheduler may decide from now on; its Bindings will be seen by the informers."""
        if self.in_charge:
            log.info("term-ended", dropped_reservations=len(self.ledger.reservations))
        self.in_charge = False
        self.ledger.drop_reservations()
        self.rejected.clear()
        self._lost_lock.clear()

    # ---- observations ------------------------------------------------------------------------------------------

    def pod_seen(self, pod: kube.Pod) -> None:
        if not pod.assigned_node and pod.uid in self.binding:
            return  # what is unbound now may be bound in a moment: the outcome of the bind decides
        change = self.ledger.upsert_pod(pod, self._clock.now())
        if pod.assigned_node:
            self._waits_no_more(pod.uid)
        if self.in_charge:
            self._tell_pod_change(pod, change)

    def pod_gone(self, pod: kube.Pod, reason: str) -> None:
        """The pod object is gone, or the pod has ended. `pod` is what was last known of it."""
        change = self.ledger.remove_pod(pod.uid)
        self._waits_no_more(pod.uid)
        if not self.in_charge:
            return
        if change.released is not None:
            holding = self.ledger.held_by(change.released, pod)
            self._publish(self._announcements.released(change.released, holding, self._clock.now(), reason))
            self._alarm.capacity_grew("pod-gone", watched=True)
        self._tell_expiry(change)

    def node_seen(self, node: kube.Node) -> None:
        change = self.ledger.upsert_node(node, self._clock.now())
        if self.in_charge:
            self._tell_node_change(node, change)

    def node_gone(self, name: str) -> None:
        self.ledger.remove_node(name)

    def quota_seen(self, quota: kube.ResourceQuota) -> None:
        if self.ledger.upsert_quota(quota):
            self._alarm.capacity_grew("quota-changed", watched=False)

    def quota_gone(self, quota: kube.ResourceQuota) -> None:
        if self.ledger.remove_quota(quota.metadata.namespace, quota.metadata.name):
            self._alarm.capacity_grew("quota-changed", watched=False)

    def card_health(self, node: str, card_id: str, *, healthy: bool, node_version: int) -> None:
        """What a node agent said on the bus: faster than the node's annotation."""
        if self.ledger.set_health(node, card_id, healthy=healthy, node_version=node_version):
            log.info("card-health", node=node, card=card_id, healthy=healthy)
            if healthy:
                self._alarm.capacity_grew("card-healthy", watched=False)

    def time_passed(self) -> None:
        """Ends reservations that are too old."""
        for reservation in self.ledger.expire_old(self._clock.now(), frozenset(self.binding)):
            self._end(reservation, ExpiryCause.TIMEOUT, "not bound in time")

    # ---- decisions ---------------------------------------------------------------------------------------------

    def filter(self, pod: kube.Pod, node_names: list[str]) -> FilterAnswer:
        """Decides and books. What is to be told follows by `tell_filter`, after the answer went out."""
        if pod.uid in self.binding:
            return FilterAnswer(error=f"a bind of pod {pod.key} is under way; its outcome must be known first")
        answer = filter_pod(
            self.ledger,
            pod,
            node_names,
            allocation_id=self._new_allocation_id(),
            now=self._clock.now(),
        )
        self._note_rejection(pod, node_names, answer)
        return answer

    def tell_filter(self, pod: kube.Pod, node_names: list[str], answer: FilterAnswer) -> None:
        """Events of a filter call."""
        for event in self._announcements.of_filter(pod, node_names, answer, self._clock.now()):
            self._publish(event)
        for notice in rejections.notices(answer, node_names):
            self._board.emit(_about(pod), reason=notice.reason, message=notice.message, event_type=notice.event_type)
        self._tell_rejection(pod, node_names, answer)
        self._tell_superseded(pod, answer)

    def _tell_rejection(self, pod: kube.Pod, node_names: list[str], answer: FilterAnswer) -> None:
        """With the smallest change that would help, as soon as that was looked for."""
        waiting = self.rejected.get(pod.uid)
        now = self._clock.now()
        if answer.rejection is None or waiting is None:
            return

        def tell(looked: Looked | None) -> None:
            advice = looked.sentence(self.ledger) if looked is not None else ""
            self._publish(self._announcements.unschedulable(pod, node_names, answer, now, advice))
            if advice and self.in_charge and pod.uid in self.rejected:  # it may have been placed since
                log.info("pod-waits", pod=pod.key, sentence=advice)
                self._board.emit(_about(pod), reason="FilteringFailed", message=advice, event_type="Warning")

        if not self._adviser.take(Case(waiting.request, waiting.candidates), tell):
            tell(None)

    def _tell_superseded(self, pod: kube.Pod, answer: FilterAnswer) -> None:
        if answer.superseded is None:
            return
        earlier, now = answer.superseded[0], answer.reservation
        self._metrics.expired.labels(ExpiryCause.SUPERSEDED).inc()
        if now is None or (now.node, now.slots) != (earlier.node, earlier.slots):
            self._alarm.capacity_grew("superseded", watched=False)
        if now is None:
            self._strip_if_written(pod.uid)

    def reserve_on(self, pod: kube.Pod, node: str) -> FilterAnswer:
        """Decides anew for one node: a bind found no reservation there."""
        answer = filter_pod(self.ledger, pod, [node], allocation_id=self._new_allocation_id(), now=self._clock.now())
        for event in self._announcements.of_filter(pod, [node], answer, self._clock.now()):
            self._publish(event)
        if answer.rejection is not None:
            self._publish(self._announcements.unschedulable(pod, [node], answer, self._clock.now()))
        self._tell_superseded(pod, answer)
        return answer

    def bound(self, reservation: Reservation) -> bool:
        """Our Binding was accepted. False when the book has no such reservation any more: ask the server."""
        if self.ledger.confirm(reservation.uid, reservation.allocation_id) is None:
            known = self.ledger.bound_pods.get(reservation.uid)
            if known is None or known.allocation_id != reservation.allocation_id:
                return False
        self._waits_no_more(reservation.uid)
        self._publish(self._announcements.allocating(reservation, self._clock.now()))
        return True

    def bind_failed(self, reservation: Reservation, cause: ExpiryCause, reason: str) -> None:
        """Our Binding certainly did not happen."""
        current = self.ledger.reservations.get(reservation.uid)
        if current is not None and current.allocation_id == reservation.allocation_id:
            self.ledger.expire(reservation.uid, cause)
            self._end(reservation, cause, reason)

    def lost_lock(self, pod: kube.Pod, node: str) -> None:
        """Another pod held the node's lock for too long, and the bind failed: this one is woken when it is free."""
        if not self.in_charge:
            return
        try:
            request = requests.pod_request(pod, self.ledger.config, self.ledger.policies)
        except (InvalidRequestError, MalformedAnnotation):
            return  # its annotations were changed: no lock keeps it from running any more
        self._lost_lock[pod.uid] = _waiting(pod, request, [node])
        seen = self.ledger.node(node)
        if seen is not None and keys.NODE_LOCK not in seen.annotations:
            self.lock_freed(node)  # since the last look

    def lock_freed(self, node: str) -> None:
        """The node's lock went away."""
        for uid, waiting in list(self._lost_lock.items()):
            if waiting.candidates == (node,):
                del self._lost_lock[uid]
                if uid not in self.ledger.reservations:
                    self.rejected.setdefault(uid, waiting)
        self._alarm.capacity_grew("lock-freed", watched=False)

    def forget(self, uid: str) -> None:
        """The server says that there is no such live pod, though no watch told of its end."""
        self._waits_no_more(uid)
        change = self.ledger.remove_pod(uid)
        self._tell_expiry(change)
        if change.released is not None and self.in_charge:
            holding = self.ledger.held_by(change.released, None)
            self._publish(self._announcements.released(change.released, holding, self._clock.now(), "gone"))
            self._alarm.capacity_grew("pod-gone", watched=False)

    def notice(self, pod: ObjectReference, notice: rejections.Notice) -> None:
        self._board.emit(pod, reason=notice.reason, message=notice.message, event_type=notice.event_type)

    # ---- telling -----------------------------------------------------------------------------------------------

    def _waits_no_more(self, uid: str) -> None:
        self.rejected.pop(uid, None)
        self._lost_lock.pop(uid, None)

    def _note_rejection(self, pod: kube.Pod, node_names: list[str], answer: FilterAnswer) -> None:
        if answer.rejection is None:
            self.rejected.pop(pod.uid, None)
            return
        request = requests.pod_request(pod, self.ledger.config, self.ledger.policies)
        self.rejected[pod.uid] = _waiting(pod, request, node_names)

    def _tell_pod_change(self, pod: kube.Pod, change: PodChange) -> None:
        if change.bound is not None and change.first_seen and change.bound.holds_cards:
            self._tell_found_bound(pod, change.bound)
        if change.bound is not None and change.bound.holds_cards:
            self._chores.label_bound(pod)
        self._tell_pod_problem(pod, change.new_problem)
        if change.init_finished:
            self._alarm.capacity_grew("init-over", watched=False)
        if change.stale_annotations:
            self._chores.strip_allocation(pod)
        self._tell_expiry(change)

    def _tell_pod_problem(self, pod: kube.Pod, problem: str | None) -> None:
        if problem is not None:
            log.warning("pod-annotation-unreadable", pod=pod.key, problem=problem)
            self._board.emit(_about(pod), reason="AllocationUnreadable", message=problem, event_type="Warning")

    def _tell_node_problem(self, node: kube.Node, vendor: str, problem: str | None) -> None:
        if problem is not None:
            log.warning("node-annotation-unreadable", node=node.name, vendor=vendor, problem=problem)
            about = ObjectReference(kind="Node", name=node.name, uid=node.name)
            self._board.emit(about, reason="InventoryUnreadable", message=problem, event_type="Warning")

    def _tell_found_bound(self, pod: kube.Pod, bound: BoundPod) -> None:
        holding = holdings.read(pod, self.ledger.config)
        self._publish(self._announcements.seen_allocating(bound, holding, self._clock.now()))

    def _tell_expiry(self, change: PodChange) -> None:
        if change.expired is not None:
            reservation, cause = change.expired
            self._end(reservation, cause, "")

    def _tell_node_change(self, node: kube.Node, change: NodeChange) -> None:
        for vendor, problem in change.problems.items():
            self._tell_node_problem(node, vendor, problem)
        if change.stamps:
            self._chores.stamp_node(node.name, change.stamps)
        if change.capacity_changed:
            self._alarm.capacity_grew("inventory", watched=True)

    def _end(self, reservation: Reservation, cause: ExpiryCause, reason: str) -> None:
        """A reservation ended without a bind."""
        self._metrics.expired.labels(cause).inc()
        if not self.in_charge:
            return
        self._publish(self._announcements.expired(reservation, cause, self._clock.now(), reason))
        log.info("reservation-expired", pod=f"{reservation.namespace}/{reservation.name}", cause=cause, reason=reason)
        self._alarm.capacity_grew(f"reservation-{cause}", watched=False)
        self._strip_if_written(reservation.uid)

    def _strip_if_written(self, uid: str) -> None:
        """Where `annotate_at=filter`, or HAMi, wrote the reservation to its pod. What is not seen yet follows later."""
        pod = self._pod_of(uid)
        if pod is not None and not pod.assigned_node and holdings.written_keys(pod, self.ledger.config):
            self._chores.strip_allocation(pod)

    def _publish(self, event: events.Event | None) -> None:
        if event is not None and self.in_charge:
            self._sink.publish(event.subject(self._prefix), events.encode(event), events.headers(event))

    def publish_all(self, told: Iterable[events.Event]) -> int:
        """Publishes what a reader of the streams lacks. Returns how many there were."""
        count = 0
        for event in told:
            self._publish(event)
            count += 1
        return count


def _waiting(pod: kube.Pod, request: requests.PodRequest, candidates: list[str]) -> RejectedPod:
    return RejectedPod(
        request=request,
        candidates=tuple(candidates),
        priority=pod.spec.priority or 0,
        created_at=pod.metadata.creation_timestamp or "",
    )


def _about(pod: kube.Pod) -> ObjectReference:
    return ObjectReference(kind="Pod", namespace=pod.metadata.namespace, name=pod.metadata.name, uid=pod.uid)
