"""The loop that takes away folders of pods that are gone; see core.folder_removal."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from hami_chassis.clock import Clock
from hami_chassis.errors import Permanent, Transient
from hami_chassis.log import get_logger

from hami_monitor.core.container_folder import FolderOwner
from hami_monitor.core.folder_removal import UnremovableFolderError, stale
from hami_monitor.core.pods import without_impostors
from hami_monitor.ports import FolderStore, FolderUsers, PodList, PodSource
from hami_monitor.rounds import look_for_ever

log = get_logger("folders")

_PERIOD_SECONDS: Final = 60.0


class FolderRemoval:
    """Root task `run`."""

    def __init__(
        self,
        *,
        keep_seconds: float,
        folders: FolderStore,
        users: FolderUsers,
        pods: PodSource,
        pods_known: asyncio.Event,
        pod_list: PodList,
        clock: Clock,
    ) -> None:
        self._keep_seconds = keep_seconds
        self._folders = folders
        self._users = users
        self._pods = pods
        self._pods_known = pods_known
        self._pod_list = pod_list
        self._clock = clock
        self._told: set[FolderOwner] = set()

    async def run(self) -> None:
        await look_for_ever(self.look, period_seconds=_PERIOD_SECONDS, once=self._pods_known, clock=self._clock)

    async def look(self) -> None:
        """One look. What is not certain stays until the next."""
        known = {pod.kubelet_uid for pod in without_impostors(self._pods.values())}
        try:
            ages = await asyncio.to_thread(self._folders.ages)
        except OSError as error:
            log.warning("folders-not-read", why=str(error))
            return
        left = stale(ages, known_uids=known, keep_seconds=self._keep_seconds)
        if not left:
            return
        try:
            # The watch may lag, or not reach the API server: only a list that was answered now proves absence.
            there = await self._pod_list.kubelet_uids()
        except (Transient, Permanent) as error:
            log.info("folders-kept", folders=len(left), why=str(error))
            return
        gone = [owner for owner in left if owner.pod_uid not in there]
        try:
            await asyncio.to_thread(self._remove, gone)
        except OSError as error:  # nobody can tell whether somebody still runs in them
            log.warning("folders-kept", folders=len(gone), why=str(error))

    def _remove(self, owners: Iterable[FolderOwner]) -> None:
        owners = tuple(owners)
        used = self._users.using(owners) if owners else frozenset()
        for owner in owners:
            who = {"pod_uid": owner.pod_uid, "container": owner.container}
            if owner in used:
                self._say_once(owner, "folder-kept", why="processes of the pod still run", **who)
                continue
            try:
                self._folders.remove(owner)
                log.info("folder-removed", **who)
            except UnremovableFolderError as error:
                self._say_once(owner, "folder-kept", why=str(error), **who)

    def _say_once(self, owner: FolderOwner, event: str, **fields: str) -> None:
        if owner not in self._told:
            self._told.add(owner)
            log.warning(event, **fields)
