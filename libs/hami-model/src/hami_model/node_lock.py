"""The node lock: annotation `hami.io/mutex.lock` of a node whose hand-off is `lock`.

Its value is `<RFC 3339 time>,<namespace>,<pod name>`; older schedulers wrote the time alone. While it stands, kubelet's
Allocate calls on the node are taken to be for the pod it names, so it must never leave a pod that still waits for them.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

import msgspec

from hami_model import go_time, keys
from hami_model.errors import MalformedAnnotation

LEGACY_EXPIRY: Final = timedelta(minutes=5)
"""A lock without owner is honoured so long."""
OWNER_WAIT_MAX: Final = timedelta(minutes=15)
NODE_NOT_READY_MAX: Final = timedelta(seconds=60)
BIND_IN_FLIGHT_MAX: Final = timedelta(seconds=60)
"""The lock is taken before the Binding is written. Twice the longest bind: later the bind was given up."""

_SEPARATOR: Final = ","


class PodName(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds or wants the lock. The lock has no room for a UID."""

    namespace: str
    name: str


class NodeLock(msgspec.Struct, frozen=True, kw_only=True):
    """A lock as it stands."""

    time: datetime
    """UTC."""
    owner: PodName | None = None
    """None: written by a scheduler that named no owner."""


class OwnerView(msgspec.Struct, frozen=True, kw_only=True):
    """What a consistent read says of the pod that a lock names."""

    node_name: str
    """Empty while it is not bound."""
    phase: str
    """Of the pod's status."""
    bind_phase: str
    """Annotation `hami.io/bind-phase`, empty where there is none."""
    bound_at: datetime | None = None
    """Annotation `hami.io/bind-time`."""


class Step(StrEnum):
    """What the requester does next."""

    TAKE = "take"
    """Write its own lock, against the resource version that was read."""
    KEEP = "keep"
    """It holds the lock already."""
    WAIT = "wait"
    FAIL_OWNER = "fail-owner"
    """Write bind-phase `failed` to the owner first, then take the lock."""


class Why(StrEnum):
    """The reason of a step: a label of metrics, a word in logs."""

    FREE = "free"
    OURS = "ours"
    MALFORMED = "malformed"
    LEGACY_HELD = "legacy-held"
    LEGACY_EXPIRED = "legacy-expired"
    FROM_THE_FUTURE = "from-the-future"
    OWNER_GONE = "owner-gone"
    OWNER_ENDED = "owner-ended"
    OWNER_RUNS = "owner-runs"
    OWNER_ELSEWHERE = "owner-elsewhere"
    OWNER_FAILED = "owner-failed"
    OWNER_SERVED = "owner-served"
    """Its allocation is done; only the release of the lock is late or was lost."""
    BIND_IN_FLIGHT = "bind-in-flight"
    BIND_GIVEN_UP = "bind-given-up"
    OWNER_WAITS = "owner-waits"
    OWNER_WAITS_TOO_LONG = "owner-waits-too-long"
    NODE_NOT_READY = "node-not-ready"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    step: Step
    why: Why


def parse(text: str) -> NodeLock:
    """Raises MalformedAnnotation."""
    time_text, *owner = text.split(_SEPARATOR)
    if owner and len(owner) != 2:
        raise MalformedAnnotation(keys.NODE_LOCK, f"{text[:200]!r} has {len(owner) + 1} parts; 3 are expected")
    try:
        time = go_time.parse_rfc3339(time_text)
    except go_time.MalformedTime as error:
        raise MalformedAnnotation(keys.NODE_LOCK, str(error)) from error
    return NodeLock(time=time, owner=PodName(namespace=owner[0], name=owner[1]) if owner else None)


def encode(owner: PodName, now: datetime) -> str:
    """The value by which a pod takes the lock. Raises ValueError for a name that no pod can have."""
    if _SEPARATOR in owner.namespace + owner.name or not (owner.namespace and owner.name):
        raise ValueError(f"no pod can be called {owner.namespace!r}/{owner.name!r}")
    return _SEPARATOR.join((go_time.format_rfc3339(now), owner.namespace, owner.name))


def may_take(
    value: str | None,
    *,
    requester: PodName,
    owner: OwnerView | None,
    node_name: str,
    node_not_ready_since: datetime | None,
    now: datetime,
) -> Decision:
    """Whether the requester may take the lock of a node.

    Never from an owner that is alive and waits; one that waits too long is marked failed first, so that what kubelet
    asks for it later is refused.

    `value` is the annotation or None; `owner` the pod it names, None where a consistent read found none (or the value
    names none); `node_not_ready_since` is None while the node is ready.
    """
    if value is None:
        return Decision(step=Step.TAKE, why=Why.FREE)
    try:
        lock = parse(value)
    except MalformedAnnotation:
        return Decision(step=Step.TAKE, why=Why.MALFORMED)
    if lock.owner is None:
        return _legacy(lock.time, now)
    if lock.owner == requester:
        return Decision(step=Step.KEEP, why=Why.OURS)
    return _against(lock, owner, node_name, node_not_ready_since, now)


def _against(
    lock: NodeLock, owner: OwnerView | None, node_name: str, node_not_ready_since: datetime | None, now: datetime
) -> Decision:
    """Of a lock that names another pod."""
    why_done = _why_owner_is_done(owner, node_name)
    if owner is None or why_done is not None:
        return Decision(step=Step.TAKE, why=why_done or Why.OWNER_GONE)
    if owner.node_name and node_not_ready_since is not None and now - node_not_ready_since > NODE_NOT_READY_MAX:
        return Decision(step=Step.FAIL_OWNER, why=Why.NODE_NOT_READY)
    return _waiting(lock.time, owner, now)


def may_release(value: str | None, requester: PodName) -> bool:
    """Whether a pod that is done takes the lock away: only its own, or one that names no owner."""
    if value is None:
        return False
    try:
        lock = parse(value)
    except MalformedAnnotation:
        return False
    return lock.owner is None or lock.owner == requester


def _legacy(time: datetime, now: datetime) -> Decision:
    if time - now > LEGACY_EXPIRY:
        return Decision(step=Step.TAKE, why=Why.FROM_THE_FUTURE)
    if now - time > LEGACY_EXPIRY:
        return Decision(step=Step.TAKE, why=Why.LEGACY_EXPIRED)
    return Decision(step=Step.WAIT, why=Why.LEGACY_HELD)


def _why_owner_is_done(owner: OwnerView | None, node_name: str) -> Why | None:
    """Why the owner waits for nothing on this node; None while it may."""
    if owner is None:
        return Why.OWNER_GONE
    done = {
        Why.OWNER_ENDED: owner.phase in ("Succeeded", "Failed"),
        Why.OWNER_ELSEWHERE: owner.node_name not in ("", node_name),
        Why.OWNER_FAILED: owner.bind_phase == keys.BIND_PHASE_FAILED,
        Why.OWNER_SERVED: owner.bind_phase == keys.BIND_PHASE_SUCCESS,
        Why.OWNER_RUNS: owner.phase == "Running",
    }
    return next((why for why, holds in done.items() if holds), None)


def _waiting(locked_at: datetime, owner: OwnerView, now: datetime) -> Decision:
    """Of an owner that may still wait on this node."""
    if not owner.node_name:
        if timedelta(0) <= now - locked_at <= BIND_IN_FLIGHT_MAX:
            return Decision(step=Step.WAIT, why=Why.BIND_IN_FLIGHT)
        return Decision(step=Step.TAKE, why=Why.BIND_GIVEN_UP)
    # A clock that ran ahead must not make others wait for ever.
    since = [time for time in (owner.bound_at, locked_at) if time is not None and time - now <= LEGACY_EXPIRY]
    if not since or now - max(since) > OWNER_WAIT_MAX:
        return Decision(step=Step.FAIL_OWNER, why=Why.OWNER_WAITS_TOO_LONG)
    return Decision(step=Step.WAIT, why=Why.OWNER_WAITS)
