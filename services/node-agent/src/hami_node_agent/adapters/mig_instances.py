"""Makes the MIG instances of containers before they start, and takes them back when their pods are over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from hami_chassis.errors import Transient
from hami_chassis.log import get_logger

from hami_node_agent.core import mig_instances
from hami_node_agent.core.handed_out import HandedContainer, HandedOut, HandedSlice
from hami_node_agent.core.mig_instances import LiveInstance, Taken
from hami_node_agent.ports import MigDriver, PodLedger

log = get_logger("mig-instances")

Save = Callable[[], Awaitable[None]]


class MigInstances:
    """One object for the process; instances are made and destroyed one at a time."""

    def __init__(self, driver: MigDriver, book: HandedOut, *, ledger: PodLedger) -> None:
        self._driver = driver
        self._book = book
        self._ledger = ledger
        self._one_at_a_time = asyncio.Lock()

    async def make(self, uid: str, container: str, save: Save) -> HandedContainer:
        """The container with an instance for each slice, all of them saved. Raises Transient."""
        async with self._one_at_a_time:
            handed = self._handed(uid, container)
            for number in range(len(handed.slices)):
                await self._make(uid, container, number, save)
            return self._handed(uid, container)

    async def release(self, uid: str, save: Save) -> None:
        """Destroys the instances of a pod that is over. Raises Transient while one is in use; then it stays ours."""
        async with self._one_at_a_time:
            await self._release(uid, save)

    def _handed(self, uid: str, container: str) -> HandedContainer:
        known = self._book.get(uid)
        if known is None or container not in known.containers:
            raise Transient(f"pod {uid} was given up while its MIG instances were being made")
        return known.containers[container]

    async def _make(self, uid: str, container: str, number: int, save: Save) -> None:
        wanted = self._handed(uid, container).slices[number]
        if wanted.placement is None:
            return
        kind = await self._driver.kind_of(wanted.card_id, wanted.profile)
        found = mig_instances.standing(wanted, kind, await self._driver.instances(wanted.card_id))
        if isinstance(found, Taken):
            await self._make_room(wanted, found, save)
            found = None
        if found is not None and found.made is not None and found.made == wanted.instance:
            return
        if found is None:
            self._replace(uid, container, number, msgspec.structs.replace(wanted, making=True, instance=None))
            await save()
            try:
                found = await self._driver.create(wanted.card_id, kind, wanted.placement)
            except Transient:
                live = await self._driver.instances(wanted.card_id)
                if mig_instances.standing(wanted, kind, live) is None:  # what stands there later is not ours
                    self._replace(uid, container, number, msgspec.structs.replace(wanted, making=False, instance=None))
                    await save()
                raise
        if found.made is None:
            found = await self._driver.complete(wanted.card_id, found)
        self._replace(uid, container, number, msgspec.structs.replace(wanted, making=False, instance=found.made))
        await save()
        log.info("mig-instance-made", pod_uid=uid, container=container, card=wanted.card_id, instance=str(found.made))

    async def _make_room(self, wanted: HandedSlice, taken: Taken, save: Save) -> None:
        """Only what a finished or vanished pod of ours left behind goes; every other instance stays."""
        for instance in taken.by:
            owner = self._owner_of(wanted.card_id, instance)
            if owner is None:
                raise Transient(
                    f"card {wanted.card_id}: a MIG instance that is not HAMi's stands at {instance.placement}, where "
                    f"{wanted.profile} was reserved; remove it or take the card away from HAMi with filterdevices"
                )
            pod = self._ledger.cached(owner)
            if pod is None:
                pod, _ = await self._ledger.read(owner)
            if pod is not None and not pod.is_finished:
                raise Transient(
                    f"card {wanted.card_id}: the MIG instance at {instance.placement} is that of pod "
                    f"{pod.key}, where {wanted.profile} was reserved"
                )
            await self._release(owner, save)

    def _owner_of(self, card_id: str, instance: LiveInstance) -> str | None:
        for uid, pod in self._book.items():
            for container in pod.containers.values():
                for piece in container.slices:
                    if piece.card_id != card_id or piece.placement != instance.placement:
                        continue
                    if piece.making or (piece.instance is not None and piece.instance == instance.made):
                        return uid
        return None

    async def _release(self, uid: str, save: Save) -> None:
        known = self._book.get(uid)
        for container, handed in known.containers.items() if known is not None else ():
            for number, piece in enumerate(handed.slices):
                if piece.placement is None or (piece.instance is None and not piece.making):
                    continue
                kind = await self._driver.kind_of(piece.card_id, piece.profile)
                found = mig_instances.standing(piece, kind, await self._driver.instances(piece.card_id))
                if isinstance(found, LiveInstance):
                    await self._driver.destroy(piece.card_id, found)
                    log.info("mig-instance-destroyed", pod_uid=uid, container=container, card=piece.card_id)
                self._replace(uid, container, number, msgspec.structs.replace(piece, making=False, instance=None))
                await save()

    def _replace(self, uid: str, container: str, number: int, piece: HandedSlice) -> None:
        handed = self._handed(uid, container)
        slices = (*handed.slices[:number], piece, *handed.slices[number + 1 :])
        self._book.replace_container(uid, container, msgspec.structs.replace(handed, slices=slices))
