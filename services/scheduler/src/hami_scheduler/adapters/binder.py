"""Binds a pod: takes the node's lock where the node needs one, writes the Binding, and settles what came of it.

    reservation ─▶ (lock) ─▶ Binding ─┬─ accepted ─▶ bound
                                      ├─ refused, or nothing happened ─▶ reservation ends, lock given back
                                      └─ no answer, or a conflict ─▶ the server is asked until it tells

Until the outcome is known nothing else may touch the pod's slices.
"""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec
from hami_chassis.clock import Clock
from hami_chassis.errors import Permanent, Transient
from hami_chassis.kube import Conflict, KubeClient, NotFound, ObjectReference
from hami_chassis.kube.errors import KubeUnknown
from hami_chassis.kube.resources import PODS
from hami_chassis.log import get_logger
from hami_chassis.retry import DEFAULT_BACKOFF
from hami_model import kube
from hami_model.lifecycle import ExpiryCause
from hami_model.node_lock import PodName

from hami_scheduler.adapters.node_locks import LockNotTakenError, NodeLocks
from hami_scheduler.bookkeeper import Bookkeeper
from hami_scheduler.config import EXTENDER_TIMEOUT_SECONDS, BindSettings
from hami_scheduler.core import binding, rejections
from hami_scheduler.core.extender import BindArguments
from hami_scheduler.core.records import Reservation
from hami_scheduler.core.reduction import Reduction
from hami_scheduler.metrics import SchedulerMetrics
from hami_scheduler.ports import Leadership

log = get_logger("binder")

_CALL_MARGIN_SECONDS = 1.0

End = Literal["bound", "lock-timeout", "refused", "away", "unknown", "gone", "not-placed", "not-leading"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    end: End
    error: str = ""
    """For kube-scheduler and the pod's Event; empty when the pod is bound."""


class Binder:
    """Answers bind calls. Root task `run` settles those whose outcome stayed unknown."""

    def __init__(
        self,
        client: KubeClient,
        bookkeeper: Bookkeeper,
        locks: NodeLocks,
        *,
        settings: BindSettings,
        leadership: Leadership,
        metrics: SchedulerMetrics,
        clock: Clock,
    ) -> None:
        self._client = client
        self._bookkeeper = bookkeeper
        self._locks = locks
        self._settings = settings
        self._leadership = leadership
        self._metrics = metrics
        self._clock = clock
        self._reduction = Reduction(bookkeeper.ledger.config)
        self._unsettled: asyncio.Queue[tuple[Reservation, str]] = asyncio.Queue()

    async def bind(self, asked: BindArguments) -> str:
        """One bind call: why it failed, or an empty text. Never raises what the API server answers."""
        began = self._clock.monotonic()
        outcome = await self._guarded(asked, began)
        self._metrics.bind_seconds.observe(self._clock.monotonic() - began)
        self._metrics.binds.labels(outcome.end).inc()
        about = ObjectReference(kind="Pod", namespace=asked.pod_namespace, name=asked.pod_name, uid=asked.pod_uid)
        fields = {"pod": f"{asked.pod_namespace}/{asked.pod_name}", "pod_uid": asked.pod_uid, "node": asked.node}
        if outcome.error:
            log.warning("bind-failed", end=outcome.end, error=outcome.error, **fields)
            notice = rejections.Notice(reason="BindingFailed", message=outcome.error)
        else:
            log.info("pod-bound", **fields)
            text = f"Successfully binding node [{asked.node}] to {asked.pod_namespace}/{asked.pod_name}"
            notice = rejections.Notice(reason="BindingSucceed", message=text, event_type="Normal")
        self._bookkeeper.notice(about, notice)
        return outcome.error

    async def _guarded(self, asked: BindArguments, began: float) -> Outcome:
        uid = asked.pod_uid
        if uid in self._bookkeeper.binding:
            return Outcome(end="unknown", error="an earlier bind of this pod is under way; its outcome is awaited")
        self._bookkeeper.binding.add(uid)
        settled = True
        try:
            try:
                reservation = await self._reservation(asked)
            except (Transient, Permanent) as error:
                return Outcome(end="away", error=str(error))
            if isinstance(reservation, Outcome):
                return reservation
            outcome = await self._bind(asked, reservation, began)
            settled = outcome.end != "unknown"
            return outcome
        finally:
            if settled:
                self._bookkeeper.binding.discard(uid)

    async def _reservation(self, asked: BindArguments) -> Reservation | Outcome:
        """The reservation to bind, or what the call ends with where there is none to be had."""
        ledger = self._bookkeeper.ledger
        known = ledger.bound_pods.get(asked.pod_uid)
        if known is not None:
            if known.node == asked.node:
                return Outcome(end="bound")  # an earlier call did it, and its answer was lost
            return Outcome(end="refused", error=f"the pod is bound to node {known.node} already")
        reservation = ledger.reservations.get(asked.pod_uid)
        if reservation is not None and reservation.node == asked.node:
            return reservation
        return await self._reserve_now(asked)

    async def _reserve_now(self, asked: BindArguments) -> Reservation | Outcome:
        """Decides anew for the node of the call, and only for it."""
        pod = await self._read(asked.pod_namespace, asked.pod_name, asked.pod_uid)
        if pod is None:
            self._bookkeeper.forget(asked.pod_uid)
            return Outcome(end="gone", error=f"pod {asked.pod_namespace}/{asked.pod_name} does not exist any more")
        answer = self._bookkeeper.reserve_on(pod, asked.node)
        if answer.reservation is not None:
            return answer.reservation
        if answer.passes_through:
            return await self._bind_plain(asked)
        problem = answer.error or next(
            iter({**answer.failed_nodes, **answer.unresolvable_nodes}.values()), "it does not fit"
        )
        return Outcome(end="not-placed", error=f"no slice is reserved on node {asked.node}, and none fits: {problem}")

    async def _bind_plain(self, asked: BindArguments) -> Outcome:
        """A pod that asks for no card: nothing is written but the node."""
        try:
            await self._client.bind(
                namespace=asked.pod_namespace, name=asked.pod_name, uid=asked.pod_uid, node=asked.node
            )
        except Transient as error:
            return Outcome(end="away", error=str(error))
        except Permanent as error:
            return Outcome(end="refused", error=str(error))
        return Outcome(end="bound")

    async def _bind(self, asked: BindArguments, reservation: Reservation, began: float) -> Outcome:
        if self._bookkeeper.ledger.node(reservation.node) is None:
            # The API server would take a Binding to a node that does not exist.
            return self._failed(reservation, "gone", f"failed to get node {reservation.node}")
        owner = PodName(namespace=reservation.namespace, name=reservation.name)
        lock = ""
        if binding.needs_lock(self._bookkeeper.ledger, reservation):
            try:
                lock = await self._locks.take(reservation.node, owner, wait_seconds=self._settings.lock_wait_seconds)
            except LockNotTakenError as error:
                if not error.timed_out:
                    return self._failed(reservation, "gone", str(error))
                outcome = self._failed(reservation, "lock-timeout", str(error))
                await self._wait_for_lock(reservation)
                return outcome
            except (Transient, Permanent) as error:
                return self._failed(reservation, "away", str(error))
        outcome = await self._write(asked, reservation, began)
        if lock and outcome.end not in ("bound", "unknown"):
            self._locks.give_back(reservation.node, owner, lock)
        elif outcome.end == "unknown":
            self._unsettled.put_nowait((reservation, lock))
        return outcome

    async def _wait_for_lock(self, reservation: Reservation) -> None:
        """The pod is woken when the lock is free, unless it cannot be read: kube-scheduler tries it again by itself."""
        try:
            pod = await self._read(reservation.namespace, reservation.name, reservation.uid)
        except (Transient, Permanent) as error:
            log.warning("not-woken-by-lock", pod_uid=reservation.uid, reason=str(error))
            return
        if pod is not None and not pod.assigned_node:
            self._bookkeeper.lost_lock(pod, reservation.node)

    async def _write(self, asked: BindArguments, reservation: Reservation, began: float) -> Outcome:
        timeout = binding.bind_timeout_seconds(
            lease_seconds=self._leadership.remaining_seconds(),
            call_seconds=began + EXTENDER_TIMEOUT_SECONDS - _CALL_MARGIN_SECONDS - self._clock.monotonic(),
            limit_seconds=self._settings.timeout_seconds,
        )
        if timeout is None:
            return self._failed(reservation, "not-leading", "the leadership ends before a Binding could be written")
        current = self._bookkeeper.ledger.reservations.get(reservation.uid)
        if current is None or current.allocation_id != reservation.allocation_id:
            return Outcome(end="gone", error="the reservation ended while its bind waited")
        try:
            await self._post(asked, reservation, timeout)
        except (KubeUnknown, Conflict) as error:
            return await self._ask_once(reservation, str(error))
        except (Transient, Permanent) as error:
            return self._refused(reservation, error)
        if self._bookkeeper.bound(reservation):
            return Outcome(end="bound")
        return await self._ask_once(reservation, "the book changed while the Binding was written")

    async def _post(self, asked: BindArguments, reservation: Reservation, timeout_seconds: float) -> None:
        carried = binding.binding_map(reservation, self._bookkeeper.ledger.config, self._clock.now())
        await self._client.bind(
            namespace=asked.pod_namespace,
            name=asked.pod_name,
            uid=asked.pod_uid,
            node=asked.node,
            annotations=carried.annotations,
            labels=carried.labels,
            timeout_seconds=timeout_seconds,
        )

    def _refused(self, reservation: Reservation, error: Transient | Permanent) -> Outcome:
        """Certainly nothing was written."""
        if isinstance(error, NotFound):
            return self._failed(reservation, "gone", str(error), ExpiryCause.POD_GONE)
        return self._failed(reservation, "away" if isinstance(error, Transient) else "refused", str(error))

    def _failed(
        self, reservation: Reservation, end: End, error: str, cause: ExpiryCause = ExpiryCause.BIND_FAILED
    ) -> Outcome:
        self._bookkeeper.bind_failed(reservation, cause, error)
        return Outcome(end=end, error=error)

    # ---- what came of it ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Asks the server about unknown outcomes until it tells."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._settle(*await self._unsettled.get()))

    async def _settle(self, reservation: Reservation, lock: str) -> None:
        number = 0
        while (outcome := await self._ask_once(reservation, "no answer")).end == "unknown":
            number += 1
            await self._clock.sleep(DEFAULT_BACKOFF.delay_seconds(number))
        log.info("bind-settled", pod_uid=reservation.uid, end=outcome.end)
        if lock and outcome.end != "bound":
            owner = PodName(namespace=reservation.namespace, name=reservation.name)
            self._locks.give_back(reservation.node, owner, lock)
        self._bookkeeper.binding.discard(reservation.uid)

    async def _ask_once(self, reservation: Reservation, problem: str) -> Outcome:
        """What the server says of the pod, taken into the book."""
        try:
            pod = await self._read(reservation.namespace, reservation.name, reservation.uid)
        except (Transient, Permanent) as error:
            return Outcome(end="unknown", error=f"{problem}; the pod cannot be read: {error}")
        if pod is None:
            return self._failed(reservation, "gone", problem, ExpiryCause.POD_GONE)
        if not pod.assigned_node:
            return self._failed(reservation, "refused", problem)
        ours = binding.is_bound_by(pod, reservation)
        self._bookkeeper.pod_seen(pod)
        if ours:
            self._bookkeeper.bound(reservation)
            return Outcome(end="bound")
        return self._failed(reservation, "refused", f"{problem}; the pod is bound to node {pod.assigned_node}")

    async def _read(self, namespace: str, name: str, uid: str) -> kube.Pod | None:
        """The pod of exactly that UID, reduced; None when it is gone or has ended."""
        try:
            pod = await self._client.get(PODS, name, namespace=namespace, into=kube.Pod)
        except NotFound:
            return None
        if pod.uid != uid or pod.is_finished:
            return None
        return self._reduction.pod(pod) or pod
