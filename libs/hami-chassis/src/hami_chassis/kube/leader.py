"""Leader election by a Lease.

A leader knows until which moment of its own monotonic clock the lease certainly holds (`valid_until`): what must not
happen under another leader gets a deadline before it. The rest of the lease's duration after that moment is the margin
for clocks that run differently and for requests that the server still carries out.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from datetime import datetime

import msgspec

from hami_chassis.clock import Clock
from hami_chassis.errors import Permanent, Transient
from hami_chassis.kube.client import KubeClient
from hami_chassis.kube.errors import AlreadyExists, Conflict, NotFound
from hami_chassis.kube.resources import LEASES
from hami_chassis.log import get_logger
from hami_chassis.metrics import ChassisMetrics

log = get_logger("leader")

_SHORTEST_CALL_SECONDS = 0.1
_RELEASE_CALL_SECONDS = 3.0
_RELEASE_TRIES = 3


class LeaderSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lease, and how long it holds."""

    namespace: str = "kube-system"
    """Namespace of the Lease."""
    name: str = "hami-scheduler"
    """Name of the Lease."""
    lease_seconds: float = 15.0
    """How long others wait after the last renewal they saw before they take over. Whole seconds on the wire."""
    renew_seconds: float = 10.0
    """How long a leader acts on its last renewal. Shorter than the lease by the margin for unlike clocks."""
    retry_seconds: float = 2.0
    """How often the leader renews and the others look."""

    def faults(self) -> Iterable[tuple[str, str]]:
        if self.lease_seconds < 1 or self.lease_seconds != int(self.lease_seconds):
            yield "lease_seconds", "must be whole seconds, at least 1"
        if not self.retry_seconds < self.renew_seconds < self.lease_seconds:
            yield "renew_seconds", "must lie between retry_seconds and lease_seconds"


class Leadership(msgspec.Struct, frozen=True, kw_only=True):
    """What a new leader has to know."""

    previous_holder: str
    """Who held the lease before; empty when nobody did or when it was given back."""
    was_released: bool
    """True when nobody can still be acting: the lease was new, or its holder had given it back."""


class _LeaseMeta(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The part of a Lease that decides. Times are RFC 3339 with microseconds, as the API wants them."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct, frozen=True, rename="camel"):
    """A coordination.k8s.io/v1 Lease."""

    metadata: _LeaseMeta
    spec: LeaseSpec = LeaseSpec()
    api_version: str = "coordination.k8s.io/v1"
    kind: str = "Lease"


class LeaderElector:
    """Root task `run`. The callbacks run on the loop and return at once.

    `identity` is unique to the process, not to the machine: a restarted process is another candidate.
    """

    def __init__(
        self,
        client: KubeClient,
        settings: LeaderSettings,
        *,
        identity: str,
        metrics: ChassisMetrics,
        clock: Clock,
        on_started: Callable[[Leadership], None] = lambda _leadership: None,
        on_stopped: Callable[[], None] = lambda: None,
        random_unit: Callable[[], float] = random.random,
    ) -> None:
        self._client = client
        self._settings = settings
        self._identity = identity
        self._clock = clock
        self._on_started = on_started
        self._on_stopped = on_stopped
        self._random_unit = random_unit
        self._gauge = metrics.leader.labels(f"{settings.namespace}/{settings.name}")
        self._gauge.set(0)
        self._valid_until = float("-inf")
        self._leading = False
        self._seen_spec: LeaseSpec | None = None
        self._seen_at = 0.0
        self._lease: Lease | None = None
        self.holder = ""
        """Who holds the lease as far as was last seen; empty when nobody."""

    @property
    def is_leader(self) -> bool:
        """True while the lease certainly holds."""
        return self._leading and self._clock.monotonic() < self._valid_until

    @property
    def valid_until(self) -> float:
        """The moment of the clock's monotonic time until which the lease certainly holds; -inf without it."""
        return self._valid_until if self._leading else float("-inf")

    def remaining_seconds(self) -> float:
        """How long the lease certainly holds from now on; 0 without it."""
        return max(0.0, self.valid_until - self._clock.monotonic())

    async def run(self) -> None:
        """Acquires and renews until cancelled, then gives the lease back."""
        try:
            while True:
                await self._try_once()
                await self._clock.sleep(self._pause_seconds())
        finally:
            # The loss is told first: from here on nothing may be done in the name of the lease.
            was_leading = self._leading
            self._stop_leading("stopping")
            if was_leading:
                await asyncio.shield(self._release())

    def _pause_seconds(self) -> float:
        pause = self._settings.retry_seconds * (0.9 + 0.2 * self._random_unit())
        # A leader that could not renew wakes at the latest when its time is over, to say so.
        return min(pause, max(0.0, self._valid_until - self._clock.monotonic())) if self._leading else pause

    def _call_seconds(self) -> float:
        """A call of a leader ends with its validity, so that the loss is told in time and not when the call ends."""
        usual = 2 * self._settings.retry_seconds
        return max(_SHORTEST_CALL_SECONDS, min(usual, self.remaining_seconds())) if self._leading else usual

    async def _try_once(self) -> None:
        began = self._clock.monotonic()
        try:
            await self._acquire_or_renew(began)
        except (Transient, Permanent) as error:
            log.warning("lease-not-renewed" if self._leading else "lease-not-acquired", error=str(error))
            self._lease = None  # read it anew: the write may have happened
        if self._leading and self._clock.monotonic() >= self._valid_until:
            self._stop_leading("not renewed in time")

    async def _acquire_or_renew(self, began: float) -> None:
        lease = self._lease if self._leading and self._lease is not None else await self._read()
        if lease is None:
            await self._create(began)
            return
        spec = lease.spec
        if spec != self._seen_spec:
            self._seen_spec, self._seen_at = spec, began
        self.holder = spec.holder_identity or ""
        if self.holder != self._identity:
            if self._leading:
                self._stop_leading(f"taken by {self.holder or 'nobody'}")
            if self.holder and began < self._seen_at + float(spec.lease_duration_seconds or 0):
                return
        await self._write(lease, began)

    async def _read(self) -> Lease | None:
        try:
            return await self._client.get(
                LEASES,
                self._settings.name,
                namespace=self._settings.namespace,
                into=Lease,
                timeout_seconds=self._call_seconds(),
            )
        except NotFound:
            return None

    async def _create(self, began: float) -> None:
        now = _micro_time(self._clock.now())
        lease = Lease(
            metadata=_LeaseMeta(name=self._settings.name, namespace=self._settings.namespace),
            spec=LeaseSpec(self._identity, int(self._settings.lease_seconds), now, now, 0),
        )
        try:
            written = await self._client.create(
                LEASES,
                lease,
                namespace=self._settings.namespace,
                into=Lease,
                timeout_seconds=self._call_seconds(),
            )
        except AlreadyExists:
            return  # another one was first: looked at in the next round
        self._hold(written, began, Leadership(previous_holder="", was_released=True))

    async def _write(self, lease: Lease, began: float) -> None:
        now = _micro_time(self._clock.now())
        spec = lease.spec
        ours = spec.holder_identity == self._identity
        changed = msgspec.structs.replace(
            lease,
            spec=LeaseSpec(
                holder_identity=self._identity,
                lease_duration_seconds=int(self._settings.lease_seconds),
                acquire_time=spec.acquire_time if ours and self._leading else now,
                renew_time=now,
                lease_transitions=(spec.lease_transitions or 0) + (0 if ours else 1),
            ),
        )
        try:
            written = await self._client.replace(
                LEASES,
                self._settings.name,
                changed,
                namespace=self._settings.namespace,
                into=Lease,
                timeout_seconds=self._call_seconds(),
            )
        except Conflict:
            self._lease = None  # another one was first: looked at in the next round
            return
        previous = spec.holder_identity or ""
        self._hold(written, began, Leadership(previous_holder=previous, was_released=not previous))

    def _hold(self, lease: Lease, began: float, leadership: Leadership) -> None:
        """The lease counts from before the request: others count from when they saw its result."""
        self._lease = lease
        self._seen_spec, self._seen_at = lease.spec, began
        self.holder = self._identity
        self._valid_until = began + self._settings.renew_seconds
        if not self._leading:
            self._leading = True
            self._gauge.set(1)
            log.info("leading", lease=self._settings.name, previous_holder=leadership.previous_holder)
            self._on_started(leadership)

    def _stop_leading(self, cause: str) -> None:
        if not self._leading:
            return
        self._leading = False
        self._valid_until = float("-inf")
        self._gauge.set(0)
        log.warning("not-leading", lease=self._settings.name, cause=cause)
        self._on_stopped()

    async def _release(self) -> None:
        """A renewal without an answer may have been written: then the lease is ours in a version that is not known."""
        lease = self._lease
        for _ in range(_RELEASE_TRIES):
            try:
                lease = lease or await self._read()
                if lease is None or lease.spec.holder_identity != self._identity:
                    return
                await self._give_back(lease)
            except Conflict:
                lease = None
            except (Transient, Permanent) as error:
                log.warning("lease-not-released", error=str(error))
                return
            else:
                self.holder = ""
                log.info("lease-released", lease=self._settings.name)
                return
        log.warning("lease-not-released", error=f"it was another one at each of {_RELEASE_TRIES} tries")

    async def _give_back(self, lease: Lease) -> None:
        spec = msgspec.structs.replace(
            lease.spec, holder_identity="", lease_duration_seconds=1, renew_time=_micro_time(self._clock.now())
        )
        await self._client.replace(
            LEASES,
            self._settings.name,
            msgspec.structs.replace(lease, spec=spec),
            namespace=self._settings.namespace,
            into=Lease,
            timeout_seconds=max(self._call_seconds(), _RELEASE_CALL_SECONDS),
        )


def _micro_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
