"""Keeps the Node object and its Lease up to date."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from hami_chassis.clock import Clock
from hami_chassis.errors import Permanent, Transient
from hami_chassis.kube.errors import AlreadyExists, NotFound
from hami_chassis.log import get_logger

from hami_sim.kubelet.node_status import lease_object, lease_spec, node_labels, node_object, node_status
from hami_sim.kubelet.ports import KubeApi
from hami_sim.kubelet.settings import KubeletSettings

_RETRY_SECONDS = 1.0
_log = get_logger("kubelet")


class NodeReporter:
    """Two tasks: status at every change and now and then, lease on a timer."""

    def __init__(
        self,
        settings: KubeletSettings,
        kube: KubeApi,
        *,
        mode: str,
        log_port: int,
        devices: Callable[[], dict[str, tuple[int, int]]],
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._kube = kube
        self._mode = mode
        self._log_port = log_port
        self._devices = devices
        self._clock = clock
        self._changed = asyncio.Event()
        self._ready_since = clock.now()
        self.registered = asyncio.Event()
        """Set once the Node exists and says Ready."""

    def devices_changed(self) -> None:
        """Write the status soon."""
        self._changed.set()

    async def run_status(self) -> None:
        """For ever."""
        while True:
            self._changed.clear()
            try:
                await self._write_status()
            except (Transient, Permanent) as error:
                _log.warning("node-status-not-written", node=self._settings.node_name, reason=str(error))
                await self._clock.sleep(_RETRY_SECONDS)
                continue
            self.registered.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.status_resync_seconds):
                    await self._changed.wait()

    async def run_lease(self) -> None:
        """For ever."""
        await self.registered.wait()
        renewed_at = self._clock.monotonic()
        while True:
            try:
                await self._renew()
            except (Transient, Permanent) as error:
                _log.warning("lease-not-renewed", node=self._settings.node_name, reason=str(error))
                if isinstance(error, NotFound):
                    self.registered.clear()
                    self._changed.set()
                await self._clock.sleep(_RETRY_SECONDS)
                continue
            now = self._clock.monotonic()
            if now - renewed_at > self._settings.lease_duration_seconds / 2:
                self._changed.set()  # the controller may have called the node not ready meanwhile
            renewed_at = now
            await self._clock.sleep(self._settings.lease_renew_seconds)

    async def _write_status(self) -> None:
        name = self._settings.node_name
        if not self.registered.is_set():
            try:
                await self._kube.create_node(node_object(self._settings))
            except AlreadyExists:
                await self._kube.patch_node(name, {"metadata": {"labels": node_labels(self._settings)}})
        status = node_status(
            self._settings,
            devices=self._devices(),
            log_port=self._log_port,
            mode=self._mode,
            now=self._clock.now(),
            ready_since=self._ready_since,
        )
        try:
            await self._kube.patch_node_status(name, status)
        except NotFound:
            self.registered.clear()
            raise

    async def _renew(self) -> None:
        name, now = self._settings.node_name, self._clock.now()
        try:
            await self._kube.patch_lease(name, lease_spec(self._settings, now))
        except NotFound:
            uid = await self._kube.get_node_uid(name)
            await self._kube.create_lease(lease_object(self._settings, uid, now))
