"""Takes and gives back the lock of nodes whose hand-off is `lock` (`hami_model.node_lock` judges).

One patch against the version that the informer holds takes a free lock. One that is the pod's own already is written
anew: the informer's may be an old one, and whoever gives back what an earlier bind took leaves the new one alone. A
lock that others hold is waited for: each change of the node, and each word of a node agent that an allocation ended,
looks at it again.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import msgspec
from hami_chassis.clock import Clock
from hami_chassis.errors import Transient
from hami_chassis.kube import Conflict, KubeClient, NotFound
from hami_chassis.kube.errors import KubeUnknown
from hami_chassis.kube.resources import NODES, PODS
from hami_chassis.log import get_logger
from hami_chassis.retry import DEFAULT_BACKOFF, Retries
from hami_model import keys, kube, node_lock
from hami_model.errors import MalformedAnnotation
from hami_model.node_lock import Decision, OwnerView, PodName, Step, Why

from hami_scheduler.adapters.chores import ChoreList
from hami_scheduler.core.ledger import Ledger

log = get_logger("node-lock")

_LOOK_SECONDS = 1.0  # some reasons to take a lock come by the clock alone
_RACES_AT_ONCE = 3
"""Somebody changed the node between look and write so often, and it is looked at anew at once; then with pauses."""
_RELEASE_TRIES = 5
_UNREADABLE = frozenset({Why.MALFORMED, Why.FROM_THE_FUTURE})


class LockNotTakenError(Exception):
    """The lock could not be had. `timed_out`: somebody else held it all the time, or changed the node at every try."""

    def __init__(self, message: str, *, timed_out: bool) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class _Look(msgspec.Struct, frozen=True, kw_only=True):
    decision: Decision
    value: str | None = None
    """The requester's lock as it stands now."""
    raced: bool = False
    """It was to be taken, and the node was another by then."""


class NodeLocks:
    def __init__(self, client: KubeClient, ledger: Ledger, chores: ChoreList, *, clock: Clock) -> None:
        self._client = client
        self._ledger = ledger
        self._chores = chores
        self._clock = clock
        self._waiters: dict[str, set[asyncio.Event]] = {}

    def look_again(self, node: str) -> None:
        """Something about the node or a pod on it changed: whoever waits for its lock looks again."""
        for waiter in self._waiters.get(node, ()):
            waiter.set()

    async def take(self, node_name: str, requester: PodName, *, wait_seconds: float) -> str:
        """Returns the lock's value once it is the requester's. Raises LockNotTakenError, Transient and Permanent."""
        deadline = self._clock.monotonic() + wait_seconds
        changed = asyncio.Event()
        self._waiters.setdefault(node_name, set()).add(changed)
        node = self._ledger.node(node_name)
        races = Retries(DEFAULT_BACKOFF)
        try:
            if node is not None and (taken := await self._try(node, requester)).value is not None:
                return taken.value
            while True:
                changed.clear()
                taken = await self._try(await self._read(node_name), requester)
                if taken.value is not None:
                    return taken.value
                if taken.raced:
                    await self._pause(races, deadline, node_name)
                else:
                    await self._wait(changed, deadline, node_name, taken.decision)
        finally:
            waiters = self._waiters[node_name]
            waiters.discard(changed)
            if not waiters:
                del self._waiters[node_name]

    async def _try(self, node: kube.Node, requester: PodName) -> _Look:
        """One look: takes the lock where that is due."""
        value = node.annotations.get(keys.NODE_LOCK)
        owner_name = _owner_of(value)
        owner = await self._owner(owner_name) if owner_name is not None and owner_name != requester else None
        now = self._clock.now()
        decision = node_lock.may_take(
            value,
            requester=requester,
            owner=_view(owner) if owner is not None else None,
            node_name=node.name,
            node_not_ready_since=_not_ready_since(node),
            now=now,
        )
        if decision.step is Step.WAIT:
            return _Look(decision=decision)
        if owner is not None and decision.step is Step.FAIL_OWNER:
            await self._fail(owner, decision)
        ours = node_lock.encode(requester, now)
        try:
            await self._client.patch_annotations(
                NODES, node.name, {keys.NODE_LOCK: ours}, resource_version=node.metadata.resource_version
            )
        except Conflict:
            return _Look(decision=decision, raced=True)
        except KubeUnknown:
            self.give_back(node.name, requester, ours)
            raise
        if value is not None and decision.step is not Step.KEEP:
            say = log.warning if decision.why in _UNREADABLE else log.info
            say("lock-taken-over", node=node.name, why=decision.why, previous=value[:200])
        return _Look(decision=decision, value=ours)

    async def _wait(self, changed: asyncio.Event, deadline: float, node_name: str, decision: Decision) -> None:
        left = deadline - self._clock.monotonic()
        if left <= 0:
            raise LockNotTakenError(
                f"node {node_name} is locked by another pod that still waits for its cards ({decision.why}): "
                "node lock contention",
                timed_out=True,
            )
        look = asyncio.ensure_future(self._clock.sleep(min(left, _LOOK_SECONDS)))
        news = asyncio.ensure_future(changed.wait())
        try:
            await asyncio.wait([look, news], return_when=asyncio.FIRST_COMPLETED)
        finally:
            look.cancel()
            news.cancel()

    async def _pause(self, races: Retries, deadline: float, node_name: str) -> None:
        """A lost race is judged anew; a server that refuses every write must not be asked without end."""
        pause = races.delay_after()
        if races.failures <= _RACES_AT_ONCE:
            return
        left = deadline - self._clock.monotonic()
        if left <= 0:
            raise LockNotTakenError(
                f"node {node_name}: its lock could not be written in time, since the node was changed at every try",
                timed_out=True,
            )
        await self._clock.sleep(min(left, pause))

    async def _read(self, node_name: str) -> kube.Node:
        try:
            return await self._client.get(NODES, node_name, into=kube.Node)
        except NotFound as error:
            raise LockNotTakenError(f"failed to get node {node_name}", timed_out=False) from error

    async def _owner(self, name: PodName) -> kube.Pod | None:
        try:
            return await self._client.get(PODS, name.name, namespace=name.namespace, into=kube.Pod)
        except NotFound:
            return None

    async def _fail(self, owner: kube.Pod, decision: Decision) -> None:
        """Marks the owner, so that what kubelet asks for it later is refused."""
        log.warning("lock-owner-failed", pod=owner.key, why=decision.why)
        try:
            await self._client.patch_annotations(
                PODS,
                owner.metadata.name,
                {keys.BIND_PHASE: keys.BIND_PHASE_FAILED},
                namespace=owner.metadata.namespace,
                uid=owner.uid,
            )
        except (NotFound, Conflict):
            log.info("lock-owner-gone", pod=owner.key)

    # ---- giving back -------------------------------------------------------------------------------------------

    def give_back(self, node_name: str, owner: PodName, value: str) -> None:
        """The owner's bind failed: its lock goes, now or when the server is there again, whoever leads by then."""

        async def release() -> None:
            await self._release(node_name, owner, value)

        self._chores.add("unlock", f"{node_name} {owner.namespace}/{owner.name}", release, even_when_following=True)

    async def _release(self, node_name: str, owner: PodName, value: str) -> None:
        for _ in range(_RELEASE_TRIES):
            node = await self._client.get(NODES, node_name, into=kube.Node)
            standing = node.annotations.get(keys.NODE_LOCK)
            if standing != value or not node_lock.may_release(standing, owner):
                return
            try:
                await self._client.patch_annotations(
                    NODES, node_name, {keys.NODE_LOCK: None}, resource_version=node.metadata.resource_version
                )
            except Conflict:
                continue
            self.look_again(node_name)
            return
        raise Transient(f"node {node_name} changes too fast for its lock to be given back")


def _owner_of(value: str | None) -> PodName | None:
    if value is None:
        return None
    try:
        return node_lock.parse(value).owner
    except MalformedAnnotation:
        return None


def _view(owner: kube.Pod) -> OwnerView:
    return OwnerView(
        node_name=owner.assigned_node,
        phase=owner.status.phase,
        bind_phase=owner.annotations.get(keys.BIND_PHASE, ""),
        bound_at=_unix_time(owner.annotations.get(keys.BIND_TIME, "")),
    )


def _unix_time(text: str) -> datetime | None:
    if not (text.isascii() and text.isdigit() and len(text) <= len("9999999999")):
        return None
    return datetime.fromtimestamp(int(text), UTC)


def _not_ready_since(node: kube.Node) -> datetime | None:
    condition = next((c for c in node.status.conditions or [] if c.type == "Ready"), None)
    if condition is None or condition.status == "True" or condition.last_transition_time is None:
        return None
    try:
        return datetime.fromisoformat(condition.last_transition_time).astimezone(UTC)
    except ValueError:
        return None
