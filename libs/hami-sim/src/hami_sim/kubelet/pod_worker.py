"""The life of one pod on the node: admitted, started, watched, restarted, ended, deleted.

One task per pod. It decides with `pod_plan`, acts through its collaborators and writes the status that follows. When
the stand-in stops, the task is cancelled and the processes go on; the next life finds them again.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import msgspec
from hami_chassis.clock import Clock
from hami_chassis.errors import Permanent, Transient
from hami_chassis.kube.errors import Conflict, NotFound
from hami_chassis.log import get_logger
from hami_chassis.untrusted_folders import remove_tree

from hami_sim.kubelet.admission import Refusal
from hami_sim.kubelet.container_starter import ContainerStarter, StartFault
from hami_sim.kubelet.objects import Container, Pod
from hami_sim.kubelet.pod_plan import ContainerState, Exit, final_phase, plan_deletion, plan_pod
from hami_sim.kubelet.pod_status import finished_status, live_status, refused_status
from hami_sim.kubelet.ports import KubeApi, PodEvents
from hami_sim.kubelet.processes import ContainerProcess, ContainerProcesses, ProcessEnd
from hami_sim.kubelet.settings import KubeletSettings

_API_RETRY_SECONDS = 1.0
Spawn = Callable[[Coroutine[Any, Any, None], str], object]
"""Runs a coroutine as a task whose failure ends the stand-in."""
_log = get_logger("kubelet")


class PodWorker:
    """Owner of one pod's processes and status."""

    def __init__(
        self,
        pod: Pod,
        *,
        settings: KubeletSettings,
        kube: KubeApi,
        admit: Callable[[Pod], Awaitable[Refusal | None]],
        starter: ContainerStarter,
        processes: ContainerProcesses,
        events: PodEvents,
        clock: Clock,
        spawn: Spawn,
        on_done: Callable[[str], None],
    ) -> None:
        self._pod = pod
        self._settings = settings
        self._kube = kube
        self._admit = admit
        self._starter = starter
        self._processes = processes
        self._events = events
        self._clock = clock
        self._spawn = spawn
        self._on_done = on_done
        self._states = {c.name: ContainerState(name=c.name) for c in pod.in_start_order()}
        self._running: dict[str, ContainerProcess] = {}
        self._started_at = self._now()
        self._wake = asyncio.Event()
        self._ending = asyncio.Event()
        self._object_gone = False
        self._sent: dict[str, Any] | None = None
        self._sent_at = 0.0
        self._finished = pod.is_terminal

    @property
    def pod(self) -> Pod:
        return self._pod

    @property
    def active(self) -> bool:
        """Its devices are its own: something of it runs or will run."""
        return not self._finished or bool(self._running)

    @property
    def running(self) -> frozenset[str]:
        """Names of its containers that run now."""
        return frozenset(self._running)

    # ---- what others tell ----

    def begin(self) -> None:
        """Start the task."""
        if self._pod.metadata.deletion_timestamp:
            self._ending.set()
        self._spawn(self._live(), f"pod {self._pod.key}")

    def update(self, pod: Pod) -> None:
        """A newer version of the object."""
        self._pod = pod
        if self._sent and self._now() - self._sent_at > self._settings.reconcile_seconds:
            # Others write it too: the node controller calls pods of a silent node not ready.
            wanted = _ready(self._sent.get("conditions", []))
            if _ready(pod.status.conditions) != wanted:
                self._sent = None
        if pod.metadata.deletion_timestamp:
            self._ending.set()
        self._wake.set()

    def object_gone(self) -> None:
        """The object was deleted without waiting for us."""
        self._object_gone = True
        self._ending.set()
        self._wake.set()

    # ---- the life ----

    async def _live(self) -> None:
        self._find_processes()
        goes_on = self._anything_started() and not self._settings.admits_started_pods_anew
        if not self._finished and not self._ending.is_set() and not goes_on:
            refusal = await self._admit(self._pod)
            if refusal:
                self._finished = True
                self._events.warn(self._pod, refusal.reason, refusal.message)
                await self._write_certainly(
                    refused_status(self._pod, refusal.reason, refusal.message, self._settings.node_address, self._now())
                )
        if self._finished and self._running:
            await self._stop_together(
                plan_deletion(self._pod, self._states), self._pod.spec.termination_grace_period_seconds
            )
        await self._run_containers()
        await self._ending.wait()
        await self._end_containers()
        await self._delete()
        self._processes.remove_pod(self._pod.uid)
        with suppress(OSError):
            remove_tree(self._starter.forget_pod(self._pod.uid))
        self._on_done(self._pod.uid)

    async def _run_containers(self) -> None:
        while not self._finished and not self._ending.is_set():
            self._wake.clear()
            plan = plan_pod(self._pod, self._states, self._started_at, self._now())
            if plan.finished:
                self._finished = True
                await self._write_certainly(self._finished_status(plan.finished, plan.reason, plan.message))
                return
            if plan.stop:
                await self._stop_together(plan.stop, self._pod.spec.termination_grace_period_seconds)
                continue
            for name in plan.start:
                await self._start(name)
                if self._ending.is_set():
                    return
            written = await self._write(self._live_status())
            if not plan.start:
                retry_at = None if written else self._now() + _API_RETRY_SECONDS
                await self._sleep_until(min(filter(None, (plan.wake_at, retry_at)), default=None))

    async def _start(self, name: str) -> None:
        """One attempt. It is given up when the pod is to end: PreStartContainer may hang."""
        state = self._states[name]
        attempt = asyncio.create_task(self._starter.start(self._pod, self._container(name), state.starts))
        ending = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait({attempt, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not attempt.done() and not self._processes.began(self._pod.uid, name, state.starts):
                attempt.cancel()
            await asyncio.wait({attempt})
        finally:
            ending.cancel()
            attempt.cancel()
        if attempt.cancelled():
            return
        try:
            process = attempt.result()
        except StartFault as fault:
            repeated = state.waiting_message == fault.message
            state.not_started(fault.reason, fault.message, self._now(), self._settings.time_scale)
            if not repeated:
                self._events.warn(self._pod, "Failed", f"Error: {fault}")
            return
        self._follow(name, process)

    def _follow(self, name: str, process: ContainerProcess) -> None:
        """Take note of a start and wait for its end beside everything else."""
        begin, end = process.begin(), process.end()
        since = begin.started_at if begin else (end.started_at if end else self._now())
        self._states[name].started(since)
        self._running[name] = process
        self._spawn(self._watch(name, process), f"container {self._pod.key}/{name}")

    async def _watch(self, name: str, process: ContainerProcess) -> None:
        end = await process.ended()
        del self._running[name]
        self._states[name].ended(_exit(end), self._settings.time_scale)
        if not self._will_restart(name):
            self._states[name].waiting_reason = ""
        elif self._states[name].backoff_seconds:
            self._events.warn(
                self._pod, "BackOff", f"Back-off restarting failed container {name} in pod {self._pod.key}"
            )
        self._wake.set()

    def _will_restart(self, name: str) -> bool:
        last = self._states[name].last_exit
        container = self._container(name)
        init = container in self._pod.spec.init_containers
        if self._ending.is_set() or last is None:
            return False
        if init and container.is_sidecar:
            return True
        if self._pod.spec.restart_policy == "Never" or (last.code == 0 and init):
            return False
        return self._pod.spec.restart_policy == "Always" or last.code != 0

    def _find_processes(self) -> None:
        """What an earlier life of the stand-in left: processes that run, and how others ended."""
        for name, state in self._states.items():
            attempts = self._processes.attempts(self._pod.uid, name)
            for process in attempts:
                state.starts = process.attempt
                end = process.end()
                if end is None:
                    self._follow(name, process)
                    break
                state.started(end.started_at)
                state.ended(_exit(end), self._settings.time_scale)
                if not self._will_restart(name):
                    state.waiting_reason = ""
        starts = [s.running_since or (s.exits[0].started_at if s.exits else 0) for s in self._states.values()]
        self._started_at = min((at for at in starts if at), default=self._started_at)

    # ---- ending ----

    async def _end_containers(self) -> None:
        grace = self._pod.metadata.deletion_grace_period_seconds
        if self._object_gone or grace is None:
            grace = self._pod.spec.termination_grace_period_seconds
        await self._stop_together(
            plan_deletion(self._pod, self._states), max(grace, self._settings.graceful_floor_seconds)
        )
        self._finished = True

    async def _stop_together(self, first: tuple[str, ...], grace_seconds: float) -> None:
        """SIGTERM step by step (sidecars last), SIGKILL for everything when the grace is over."""
        deadline = self._now() + grace_seconds
        signalled: set[str] = set()
        names = first
        while names:
            self._wake.clear()
            for name in names:
                if name not in signalled and name in self._running:
                    signalled.add(name)
                    self._running[name].signal(signal.SIGTERM)
            deadline = min(deadline, self._deadline(deadline))
            if self._now() >= deadline:
                for process in self._running.values():
                    process.kill()
                await self._sleep_until(None)
            else:
                await self._sleep_until(deadline)
            names = plan_deletion(self._pod, self._states)

    def _deadline(self, present: float) -> float:
        """A later deletion may shorten the grace."""
        grace = self._pod.metadata.deletion_grace_period_seconds
        if grace is None:
            return present
        return min(present, self._now() + max(grace, self._settings.graceful_floor_seconds))

    async def _delete(self) -> None:
        if not self._pod.is_terminal:
            await self._write_certainly(self._finished_status(final_phase(self._pod, self._states)))
        while not self._object_gone:
            try:
                await self._kube.delete_pod(self._pod.metadata.namespace, self._pod.metadata.name, self._pod.uid)
            except (NotFound, Conflict):
                return
            except (Transient, Permanent) as error:
                _log.warning("pod-not-deleted", pod=self._pod.key, reason=str(error))
                await self._clock.sleep(_API_RETRY_SECONDS)
            else:
                return

    # ---- status ----

    def _live_status(self) -> dict[str, Any]:
        return live_status(self._pod, self._states, self._started_at, self._settings.node_address, self._now())

    def _finished_status(self, phase: str, reason: str = "", message: str = "") -> dict[str, Any]:
        return finished_status(
            self._pod,
            self._states,
            phase=phase,
            started_at=self._started_at,
            node_address=self._settings.node_address,
            now=self._now(),
            reason=reason,
            message=message,
        )

    async def _write(self, status: dict[str, Any]) -> bool:
        """False: not now, try again. A status that is there already is not sent.

        A conflict may be that of many writers; where it is that of another UID, the feed says that this pod is gone.
        """
        if self._object_gone or status == self._sent:
            return True
        try:
            await self._kube.patch_pod_status(
                self._pod.metadata.namespace, self._pod.metadata.name, self._pod.uid, status
            )
        except NotFound:
            self._object_gone = True
            self._ending.set()
            return True
        except (Transient, Permanent) as error:
            _log.warning("pod-status-not-written", pod=self._pod.key, reason=str(error))
            return False
        self._sent, self._sent_at = status, self._now()
        self._pod = msgspec.structs.replace(
            self._pod,
            status=msgspec.structs.replace(
                self._pod.status, conditions=status.get("conditions", self._pod.status.conditions)
            ),
        )
        return True

    async def _write_certainly(self, status: dict[str, Any]) -> None:
        while not await self._write(status):
            await self._clock.sleep(_API_RETRY_SECONDS)

    # ---- small things ----

    async def _sleep_until(self, moment: float | None) -> None:
        """Until then, or until something happens."""
        timeout = None if moment is None else max(moment - self._now(), 0)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._wake.wait()

    def _now(self) -> float:
        return self._clock.now().timestamp()

    def _anything_started(self) -> bool:
        return any(state.starts for state in self._states.values())

    def _container(self, name: str) -> Container:
        return next(c for c in self._pod.in_start_order() if c.name == name)


def _exit(end: ProcessEnd) -> Exit:
    if end.fault is not None:
        return Exit(end.exit_code, end.started_at, end.finished_at, "StartError", end.fault)
    reason = "Completed" if end.exit_code == 0 else "Error"
    return Exit(end.exit_code, end.started_at, end.finished_at, reason, signal=end.signal)


def _ready(conditions: list[dict[str, Any]]) -> str | None:
    return next((c.get("status") for c in conditions if c.get("type") == "Ready"), None)
