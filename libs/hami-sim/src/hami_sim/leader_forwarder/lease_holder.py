"""Who holds the Lease now, and where that is."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping

import msgspec
from hami_chassis.clock import Clock
from hami_chassis.errors import Permanent, Transient
from hami_chassis.kube import KubeClient
from hami_chassis.kube.errors import NotFound
from hami_chassis.kube.resources import LEASES
from hami_chassis.log import get_logger

log = get_logger("lease-holder")

_UUID_LENGTH = 36
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


class _LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    holder_identity: str | None = None


class _Lease(msgspec.Struct, frozen=True):
    spec: _LeaseSpec = _LeaseSpec()


def replica_name(holder_identity: str) -> str:
    """`scheduler-0` of `scheduler-0-<uuid>`: replicas of a name follow each other with another uuid each."""
    if _UUID.fullmatch(holder_identity[-_UUID_LENGTH:]):
        return holder_identity[:-_UUID_LENGTH].rstrip("-_")
    return holder_identity


class LeaseHolder:
    """Looks at the Lease by the clock; `address` is None while nobody that is known holds it."""

    def __init__(
        self,
        kube: KubeClient,
        *,
        namespace: str,
        name: str,
        addresses: Mapping[str, str],
        look_seconds: float,
        clock: Clock,
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._addresses = addresses
        self._look_seconds = look_seconds
        self._clock = clock
        self.on_change: Callable[[], None] = lambda: None
        """Called when another replica, or nobody, holds the Lease."""
        self._identity = ""
        self.address: str | None = None
        self.known = asyncio.Event()
        """Set while there is an address."""

    async def run(self) -> None:
        """Until cancelled; while the API server is away the last holder counts."""
        while True:
            try:
                lease = await self._kube.get(LEASES, self._name, namespace=self._namespace, into=_Lease)
                self._learn(lease.spec.holder_identity or "")
            except NotFound:
                self._learn("")
            except (Transient, Permanent) as error:
                log.warning("lease-not-read", error=str(error))
            await self._clock.sleep(self._look_seconds)

    def _learn(self, identity: str) -> None:
        if identity == self._identity:
            return
        self._identity = identity
        self.address = self._addresses.get(replica_name(identity)) if identity else None
        if identity and self.address is None:
            log.warning("unknown-holder", holder=identity, known=sorted(self._addresses))
        log.info("leader", holder=identity, address=self.address)
        if self.address is None:
            self.known.clear()
        else:
            self.known.set()
        self.on_change()
