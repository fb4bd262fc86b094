"""What a pod's containers should do next: kubelet's rules as a function of spec, container states and time. Pure.

Times are seconds since the epoch.
"""

from typing import Literal

import msgspec

from hami_sim.kubelet.objects import Container, Pod

BACKOFF_FIRST_SECONDS = 10.0
BACKOFF_LAST_SECONDS = 300.0
BACKOFF_FORGET_SECONDS = 600.0
"""A run this long starts the back-off anew."""
START_RETRY_SECONDS = 10.0
"""After a start that failed before there was a container."""


class Exit(msgspec.Struct, frozen=True):
    """How a run of a container ended."""

    code: int
    started_at: float
    finished_at: float
    reason: str
    message: str = ""
    signal: int | None = None


class ContainerState(msgspec.Struct):
    """One container of a pod as the node knows it."""

    name: str
    starts: int = 0
    """Runs so far, the present one included."""
    running_since: float | None = None
    exits: list[Exit] = []
    """The last two at most, newest last."""
    waiting_reason: str = "ContainerCreating"
    waiting_message: str = ""
    retry_at: float = 0.0
    """No start before this, after a failed one."""
    backoff_seconds: float = 0.0

    @property
    def running(self) -> bool:
        return self.running_since is not None

    @property
    def last_exit(self) -> Exit | None:
        return self.exits[-1] if self.exits else None

    def started(self, at: float) -> None:
        """A run begins."""
        self.starts += 1
        self.running_since = at
        self.waiting_reason = self.waiting_message = ""
        self.retry_at = 0.0

    def ended(self, exit_: Exit, scale: float) -> None:
        """A run is over; back-off grows from nothing to ten seconds and then doubles."""
        self.running_since = None
        self.exits = [*self.exits, exit_][-2:]
        if self.starts <= 1 or exit_.finished_at - exit_.started_at > BACKOFF_FORGET_SECONDS * scale:
            self.backoff_seconds = 0.0
        else:
            grown = max(self.backoff_seconds * 2, BACKOFF_FIRST_SECONDS * scale)
            self.backoff_seconds = min(grown, BACKOFF_LAST_SECONDS * scale)
        self.waiting_reason = "CrashLoopBackOff" if self.backoff_seconds else ""

    def not_started(self, reason: str, message: str, at: float, scale: float) -> None:
        """There is no container to run; it will be tried again."""
        self.waiting_reason, self.waiting_message = reason, message
        self.retry_at = at + START_RETRY_SECONDS * scale

    def startable_at(self) -> float:
        """The earliest moment of the next start."""
        resting = self.last_exit.finished_at + self.backoff_seconds if self.last_exit else 0.0
        return max(resting, self.retry_at)


class Plan(msgspec.Struct, frozen=True):
    """The next steps of one pod."""

    start: tuple[str, ...] = ()
    """Containers to start now, in order."""
    stop: tuple[str, ...] = ()
    """Containers to end, together."""
    wake_at: float | None = None
    """Look again then, if nothing happens before."""
    finished: Literal["Succeeded", "Failed"] | None = None
    """Nothing runs any more and nothing will."""
    reason: str = ""
    message: str = ""


def plan_pod(pod: Pod, states: dict[str, ContainerState], started_at: float, now: float) -> Plan:
    """For a pod that is admitted and not being deleted."""
    deadline = pod.spec.active_deadline_seconds
    if deadline is not None and now >= started_at + deadline:
        return _end(pod, states, "DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
    plan = _plan_init(pod, states, now)
    if plan is None:
        plan = _plan_apps(pod, states, now)
    if deadline is not None and plan.finished is None:
        ends_at = started_at + deadline
        return msgspec.structs.replace(plan, wake_at=min(plan.wake_at or ends_at, ends_at))
    return plan


def plan_deletion(pod: Pod, states: dict[str, ContainerState]) -> tuple[str, ...]:
    """Containers to end now: all others first, then sidecars from the last to the first; empty when none runs."""
    sidecars = [c.name for c in pod.spec.init_containers if c.is_sidecar and states[c.name].running]
    others = [name for name, state in states.items() if state.running and name not in sidecars]
    return tuple(others) if others else tuple(sidecars[-1:])


def _plan_init(pod: Pod, states: dict[str, ContainerState], now: float) -> Plan | None:
    """None: every init container did its part and every sidecar runs or will be started beside the others."""
    apps_began = any(states[c.name].starts for c in pod.spec.containers)
    for container in pod.spec.init_containers:
        state = states[container.name]
        if container.is_sidecar:
            if not state.running and not apps_began:
                return _start_when_ready([state], now)
            continue
        if apps_began:
            continue
        if state.running:
            return _restart_sidecars(pod, states, now)
        if state.last_exit is None:
            return _start_when_ready([state], now)
        if state.last_exit.code == 0:
            continue
        if pod.spec.restart_policy == "Never":
            return _end(pod, states, "", "")
        return _start_when_ready([state], now)
    return None


def _restart_sidecars(pod: Pod, states: dict[str, ContainerState], now: float) -> Plan:
    """Those that ran before and ended come back while an init container runs."""
    ended = [
        states[c.name]
        for c in pod.spec.init_containers
        if c.is_sidecar and states[c.name].starts and not states[c.name].running
    ]
    return _start_when_ready(ended, now)


def _plan_apps(pod: Pod, states: dict[str, ContainerState], now: float) -> Plan:
    apps = [states[c.name] for c in pod.spec.containers]
    wanted = [state for state in apps if not state.running and _should_run(state, pod.spec.restart_policy)]
    if not wanted and not any(state.running for state in apps):
        return _end(pod, states, "", "")
    sidecars = [states[c.name] for c in pod.spec.init_containers if c.is_sidecar and not states[c.name].running]
    return _start_when_ready([*sidecars, *wanted], now)


def _should_run(state: ContainerState, policy: str) -> bool:
    if state.last_exit is None or policy == "Always":
        return True
    return policy == "OnFailure" and state.last_exit.code != 0


def _start_when_ready(wanted: list[ContainerState], now: float) -> Plan:
    later = [state.startable_at() for state in wanted if state.startable_at() > now]
    return Plan(
        start=tuple(state.name for state in wanted if state.startable_at() <= now),
        wake_at=min(later) if later else None,
    )


def _end(pod: Pod, states: dict[str, ContainerState], reason: str, message: str) -> Plan:
    """End what still runs, then the pod."""
    stop = plan_deletion(pod, states)
    if stop:
        return Plan(stop=stop, reason=reason, message=message)
    return Plan(finished=final_phase(pod, states, reason), reason=reason, message=message)


def final_phase(pod: Pod, states: dict[str, ContainerState], reason: str = "") -> Literal["Succeeded", "Failed"]:
    """Succeeded when every container did its work; sidecars' exit codes do not count."""

    def done(container: Container) -> bool:
        last = states[container.name].last_exit
        return last is not None and last.code == 0

    work = [*(c for c in pod.spec.init_containers if not c.is_sidecar), *pod.spec.containers]
    return "Succeeded" if not reason and all(done(container) for container in work) else "Failed"
