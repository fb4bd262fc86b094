"""The status a kubelet writes for a pod. Pure; times go in as seconds since the epoch."""

from datetime import UTC, datetime
from typing import Any

from hami_sim.kubelet.objects import Container, Pod
from hami_sim.kubelet.pod_plan import ContainerState, Exit


def timestamp(seconds: float) -> str:
    """RFC 3339 with whole seconds, as metav1.Time."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def live_status(
    pod: Pod, states: dict[str, ContainerState], started_at: float, node_address: str, now: float
) -> dict[str, Any]:
    """Of a pod that was admitted and has not finished."""
    initialized = _initialized(pod, states)
    ready = initialized and all(states[c.name].running for c in pod.spec.containers)
    sidecars_ready = all(states[c.name].running for c in pod.spec.init_containers if c.is_sidecar)
    return _status(
        pod,
        states,
        phase=_live_phase(pod, states),
        started_at=started_at,
        node_address=node_address,
        now=now,
        initialized=initialized,
        ready=ready and sidecars_ready,
    )


def finished_status(
    pod: Pod,
    states: dict[str, ContainerState],
    *,
    phase: str,
    started_at: float,
    node_address: str,
    now: float,
    reason: str = "",
    message: str = "",
) -> dict[str, Any]:
    """Of a pod whose containers are over."""
    status = _status(
        pod,
        states,
        phase=phase,
        started_at=started_at,
        node_address=node_address,
        now=now,
        initialized=_initialized(pod, states),
        ready=False,
    )
    if reason:
        status |= {"reason": reason, "message": message}
    return status


def refused_status(pod: Pod, reason: str, message: str, node_address: str, now: float) -> dict[str, Any]:
    """Of a pod that was not admitted: it has no containers."""
    return {
        "phase": "Failed",
        "reason": reason,
        "message": f"Pod was rejected: {message}",
        "startTime": pod.status.start_time or timestamp(now),
        "hostIP": node_address,
        "hostIPs": [{"ip": node_address}],
    }


def _live_phase(pod: Pod, states: dict[str, ContainerState]) -> str:
    """Pending until every container of the pod has run at least once, init containers included."""
    began = all(states[c.name].starts for c in pod.spec.containers)
    return "Running" if began and _initialized(pod, states) else "Pending"


def _initialized(pod: Pod, states: dict[str, ContainerState]) -> bool:
    if any(states[c.name].starts for c in pod.spec.containers):
        return True
    for container in pod.spec.init_containers:
        state = states[container.name]
        last = state.last_exit
        if container.is_sidecar:
            if not state.starts:
                return False
        elif last is None or last.code != 0:
            return False
    return True


def _status(
    pod: Pod,
    states: dict[str, ContainerState],
    *,
    phase: str,
    started_at: float,
    node_address: str,
    now: float,
    initialized: bool,
    ready: bool,
) -> dict[str, Any]:
    completed = phase == "Succeeded"
    waiting = [c.name for c in pod.spec.containers if not states[c.name].running]
    not_ready = {"reason": "ContainersNotReady", "message": f"containers with unready status: [{' '.join(waiting)}]"}
    why = {} if ready else ({"reason": "PodCompleted"} if completed else not_ready)
    init_why: dict[str, str] = {}
    if completed:
        init_why = {"reason": "PodCompleted"}
    elif not initialized:
        init_why = {"reason": "ContainersNotInitialized"}
    conditions = [
        _condition(pod, "PodReadyToStartContainers", phase in ("Pending", "Running"), now, {}),
        _condition(pod, "Initialized", initialized, now, init_why),
        _condition(pod, "Ready", ready, now, why),
        _condition(pod, "ContainersReady", ready, now, why),
    ]
    status: dict[str, Any] = {
        "phase": phase,
        "conditions": conditions,
        "startTime": timestamp(started_at),
        "hostIP": node_address,
        "hostIPs": [{"ip": node_address}],
        "podIP": node_address,
        "podIPs": [{"ip": node_address}],
        "containerStatuses": [_container(pod, c, states, init=False) for c in pod.spec.containers],
    }
    if pod.spec.init_containers:
        status["initContainerStatuses"] = [_container(pod, c, states, init=True) for c in pod.spec.init_containers]
    return status


def _condition(pod: Pod, kind: str, value: bool, now: float, why: dict[str, str]) -> dict[str, Any]:
    text = "True" if value else "False"
    before = next((c for c in pod.status.conditions if c.get("type") == kind), None)
    changed = before is None or before.get("status") != text
    since = timestamp(now) if changed or before is None else before.get("lastTransitionTime") or timestamp(now)
    # A merge keeps what is not named: reason and message of an earlier value go with null.
    return {
        "type": kind,
        "status": text,
        "lastTransitionTime": since,
        "lastProbeTime": None,
        "reason": why.get("reason"),
        "message": why.get("message"),
    }


def _container(pod: Pod, container: Container, states: dict[str, ContainerState], *, init: bool) -> dict[str, Any]:
    state = states[container.name]
    identity = f"sim://{pod.uid}/{container.name}/{state.starts - 1}" if state.starts else ""
    status: dict[str, Any] = {
        "name": container.name,
        "image": container.image,
        "imageID": f"sim://{container.image}" if state.starts else "",
        "containerID": identity,
        "restartCount": max(state.starts - 1, 0),
        "ready": state.running or (init and _succeeded(state)),
        "started": state.running,
        "state": _state(pod, state, init=init),
    }
    previous = _previous(state)
    if previous:
        status["lastState"] = {"terminated": _terminated(previous)}
    return status


def _succeeded(state: ContainerState) -> bool:
    return state.last_exit is not None and state.last_exit.code == 0


def _previous(state: ContainerState) -> Exit | None:
    """The run before the one that `state` shows."""
    if state.running or state.waiting_reason:
        return state.last_exit
    return state.exits[-2] if len(state.exits) > 1 else None


def _state(pod: Pod, state: ContainerState, *, init: bool) -> dict[str, Any]:
    if state.running_since is not None:
        return {"running": {"startedAt": timestamp(state.running_since)}}
    if state.last_exit and not state.waiting_reason:
        return {"terminated": _terminated(state.last_exit)}
    reason, message = state.waiting_reason, state.waiting_message
    if reason == "CrashLoopBackOff":
        message = (
            f"back-off {state.backoff_seconds:g}s restarting failed container={state.name} "
            f"pod={pod.metadata.name}_{pod.metadata.namespace}({pod.uid})"
        )
    elif reason == "ContainerCreating" and not init and pod.spec.init_containers:
        reason = "PodInitializing"
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


def _terminated(exit_: Exit) -> dict[str, Any]:
    return {
        "exitCode": exit_.code,
        "reason": exit_.reason,
        "startedAt": timestamp(exit_.started_at),
        "finishedAt": timestamp(exit_.finished_at),
        **({"message": exit_.message} if exit_.message else {}),
        **({"signal": exit_.signal} if exit_.signal is not None else {}),
    }
