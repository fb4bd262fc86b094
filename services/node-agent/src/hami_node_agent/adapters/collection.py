"""Removes what is left of pods that are certainly gone: specifications, folders, and what the book says of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from hami_chassis.clock import Clock
from hami_chassis.errors import Permanent, Transient
from hami_chassis.log import get_logger
from hami_model import kube

from hami_node_agent.adapters.host_files import in_thread
from hami_node_agent.core import handed_out
from hami_node_agent.core.backends import libraries_in_use
from hami_node_agent.core.entitlement import is_mirror, kubelet_uid
from hami_node_agent.core.handed_out import HandedOut
from hami_node_agent.ports import CdiDirectory, HostFiles, KubeletCheckpoint, OwnCheckpoint, PodLedger

log = get_logger("collection")

_PERIOD_SECONDS = 60.0
_HELD_SECONDS = 600.0
"""Kubelet's checkpoint names a pod until the next one asks for devices, which may be never: then this long is enough
for a pod that was deleted by force, for whose processes kubelet waits at most their grace period."""
_IN_USE_PERIOD_SECONDS = 1.0
"""While MIG instances of gone pods are in use: nobody tells when that ends, and others wait for them."""


class Collection:
    """Root task `run`. `pod_gone` is told by the watch; leftovers of before the start are looked for."""

    def __init__(
        self,
        book: HandedOut,
        *,
        ledger: PodLedger,
        cdi: CdiDirectory,
        files: HostFiles,
        own: OwnCheckpoint,
        checkpoint: KubeletCheckpoint,
        forget: Callable[[str], None],
        pods_synced: asyncio.Event,
        clock: Clock,
        release_mig: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """`release_mig` destroys the MIG instances of a pod that is over, by its UID; raises Transient while in use."""
        self._book = book
        self._ledger = ledger
        self._cdi = cdi
        self._files = files
        self._own = own
        self._checkpoint = checkpoint
        self._forget = forget
        self._pods_synced = pods_synced
        self._clock = clock
        self._unsaved = False
        self._release_mig = release_mig
        self._gone: set[str] = set()
        """UIDs do not come back: who was gone once needs no second look."""
        self._over: set[str] = set()
        """Of these, those whose last version showed that every container had ended."""
        self._held_until: dict[str, float] = {}
        """For gone pods that kubelet's checkpoint still names: when that counts no longer, by UID."""
        self._work = asyncio.Event()
        self._in_use: frozenset[str] = frozenset()
        """Pods that ended or are gone, and whose MIG instances could not go yet."""

    def pod_seen(self, pod: kube.Pod) -> None:
        """Once its one-shot init containers have ended, the book remembers that: a new sandbox's status does not."""
        uid = kubelet_uid(pod)
        if pod.one_shot_init_done and handed_out.is_of(self._book.get(uid), pod) and self._book.mark_init_over(uid):
            self._unsaved = True
            self._work.set()
        if pod.is_finished and self._release_mig is not None and self._book.get(uid) is not None:
            self._work.set()

    def pod_gone(self, pod: kube.Pod) -> None:
        if not is_mirror(pod):  # the UID that a mirror claims may be another pod's: a list is to prove its absence
            self._gone.add(pod.uid)
            if has_ended(pod):
                self._over.add(pod.uid)
            else:
                grace = pod.spec.termination_grace_period_seconds or 0
                self._held_until[pod.uid] = self._clock.monotonic() + max(_HELD_SECONDS, grace + _PERIOD_SECONDS)
        self._work.set()

    async def run(self) -> None:
        await self._pods_synced.wait()
        while True:
            self._work.clear()
            try:
                await self.collect()
                await self._collect_libraries()
            except (Transient, Permanent) as error:
                log.warning("collection-failed", reason=str(error))
            await self._wait()

    async def _wait(self) -> None:
        tasks = {
            asyncio.ensure_future(self._clock.sleep(_IN_USE_PERIOD_SECONDS if self._in_use else _PERIOD_SECONDS)),
            asyncio.ensure_future(self._work.wait()),
        }
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def collect(self) -> None:
        """One pass. Raises Transient."""
        if self._unsaved or (self._book.uids() and await in_thread(self._own.is_missing)):
            await self._own.write(self._book)
            self._unsaved = False
        with_specs, with_folders = await self._cdi.owners(), await self._files.owners()
        pods = tuple(self._ledger.all_cached())
        living = {kubelet_uid(pod) for pod in pods}
        finished = {kubelet_uid(pod) for pod in pods if pod.is_finished} & self._book.uids()
        left = (with_specs | with_folders | self._book.uids()) - living
        if not left:
            self._gone.clear()
            self._over.clear()
            self._held_until.clear()
            self._in_use = await self._still_in_use(finished)
            return
        if left - self._gone:
            # The watch may lag behind a pod that was read by name, so only a consistent list proves absence.
            there = {kubelet_uid(pod) for pod in await self._ledger.read_all()}
            self._gone |= left - there
        self._in_use = await self._still_in_use((left & self._gone & self._book.uids()) | finished)
        gone = (left & self._gone) - self._in_use
        for uid in gone & with_specs:
            await self._cdi.remove_pod(uid)
        if gone & self._book.uids():
            for uid in gone:
                self._book.drop(uid)
            await self._own.write(self._book)
        for uid in gone:
            self._forget(uid)
        await self._remove_folders(gone & with_folders)

    async def _collect_libraries(self) -> None:
        used = libraries_in_use(self._book)
        if used is not None:
            await self._files.remove_libraries(used)

    async def _still_in_use(self, over: frozenset[str] | set[str]) -> frozenset[str]:
        """Pods that ended or are gone, and of which MIG instances are left, since the driver says that they are in use.

        Kubelet's checkpoint is not asked: it keeps what a pod held until the next pod asks for devices.
        """
        if self._release_mig is None or not over:
            return frozenset()
        kept: set[str] = set()
        for uid in sorted(over):
            try:
                await self._release_mig(uid)
            except Transient as error:
                log.info("mig-instances-left", pod_uid=uid, reason=str(error))
                kept.add(uid)
        return frozenset(kept)

    async def _remove_folders(self, gone: frozenset[str] | set[str]) -> None:
        """Kubelet's word counts too: a pod deleted by force may still have processes."""
        if not gone:
            return
        held = {entry.pod_uid for entry in (await self._checkpoint.read()).entries} if gone - self._over else set()
        for uid in gone:
            if uid in held - self._over and self._clock.monotonic() < self._wait_for(uid):
                continue
            try:
                await self._files.remove_pod(uid)
            except Transient as error:
                # A tenant whose processes still fill its folder must not keep the others' from going.
                log.warning("folders-left", pod_uid=uid, reason=str(error))
            else:
                log.info("folders-removed", pod_uid=uid)

    def _wait_for(self, uid: str) -> float:
        return self._held_until.setdefault(uid, self._clock.monotonic() + _HELD_SECONDS)


def has_ended(pod: kube.Pod) -> bool:
    """Whether kubelet wrote, as it does before it lets the object go, that nothing of the pod is at work any more."""
    statuses = [*(pod.status.init_container_statuses or []), *(pod.status.container_statuses or [])]
    at_work = any(status.state is not None and status.state.running is not None for status in statuses)
    return pod.is_finished and not at_work
