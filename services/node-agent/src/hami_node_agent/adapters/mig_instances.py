"""Makes the MIG instances of containers before they start, and takes them back when their pods are over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import msgspec
from hami_chassis.errors import Transient
from hami_chassis.log import get_logger
from hami_model.mig_allocations import MigInstance

from hami_node_agent.core import mig_instances
from hami_node_agent.core.handed_out import HandedContainer, HandedOut, HandedSlice
from hami_node_agent.core.mig_instances import LiveInstance, Place, Taken
from hami_node_agent.ports import MigDriver, PodLedger

log = get_logger("mig-instances")

Save = Callable[[], Awaitable[None]]


class MigInstances:
    """One object for the process. On one card one thing is done after the other; no card waits for another."""

    def __init__(
        self,
        driver: MigDriver,
        book: HandedOut,
        *,
        ledger: PodLedger,
        is_hidden: Callable[[str], bool] = lambda _card_id: False,
    ) -> None:
        """`is_hidden`: cards that the node's configuration takes away from HAMi; nothing is done on them."""
        self._driver = driver
        self._book = book
        self._ledger = ledger
        self._is_hidden = is_hidden
        self._one_at_a_time: dict[str, asyncio.Lock] = {}

    async def make(self, uid: str, container: str, save: Save, *, one_after_the_other: bool = True) -> HandedContainer:
        """The container with an instance for each slice, all of them saved. Raises Transient.

        `one_after_the_other`: the pod's containers are asked for as they start, so what an earlier one had, where this
        one's reservation lies, is over.
        """
        for number in range(len(self._handed(uid, container).slices)):
            place = Place(uid=uid, container=container, number=number)
            async with self._lock(self._slice(place).card_id):
                await self._make(place, save, one_after_the_other=one_after_the_other)
        return self._handed(uid, container)

    async def release(self, uid: str, save: Save) -> None:
        """Destroys the instances of a pod that is over. Raises Transient while one is in use; then it stays ours."""
        trouble: Transient | None = None
        for place, piece in tuple(self._pieces()):
            if place.uid != uid:
                continue
            async with self._lock(piece.card_id):
                try:
                    await self._unmake(place, save)
                except Transient as error:
                    trouble = trouble or error
        if trouble is not None:
            raise trouble

    def _lock(self, card_id: str) -> asyncio.Lock:
        return self._one_at_a_time.setdefault(card_id, asyncio.Lock())

    def _handed(self, uid: str, container: str) -> HandedContainer:
        known = self._book.get(uid)
        if known is None or container not in known.containers:
            raise Transient(f"pod {uid} was given up while its MIG instances were being made")
        return known.containers[container]

    def _slice(self, place: Place) -> HandedSlice:
        return self._handed(place.uid, place.container).slices[place.number]

    def _pieces(self) -> Iterator[tuple[Place, HandedSlice]]:
        """Slices that have an instance, or may have one."""
        for uid, pod in self._book.items():
            for container, handed in pod.containers.items():
                for number, piece in enumerate(handed.slices):
                    if piece.placement is not None and (piece.instance is not None or piece.making):
                        yield Place(uid=uid, container=container, number=number), piece

    async def _make(self, place: Place, save: Save, *, one_after_the_other: bool) -> None:
        wanted = self._slice(place)
        if wanted.placement is None:
            return
        kind = await self._driver.kind_of(wanted.card_id, wanted.profile)
        found = mig_instances.standing(wanted, kind, await self._driver.instances(wanted.card_id))
        if isinstance(found, Taken):
            shared = self._same_pod_s(place, kind, found)
            if shared is not None:
                await self._has(place, shared, save)
                return
            await self._make_room(place, found, save, one_after_the_other=one_after_the_other)
            found = None
        if found is not None and found.made is not None and found.made == wanted.instance:
            return
        if found is None:
            self._replace(place, msgspec.structs.replace(wanted, making=True, instance=None))
            await save()
            try:
                found = await self._driver.create(wanted.card_id, kind, wanted.placement)
            except Transient:
                live = await self._driver.instances(wanted.card_id)
                if mig_instances.standing(wanted, kind, live) is None:  # what stands there later is not ours
                    self._replace(place, msgspec.structs.replace(wanted, making=False, instance=None))
                    await save()
                raise
        if found.made is None:
            found = await self._driver.complete(wanted.card_id, found)
        if found.made is not None:
            await self._has(place, found.made, save)

    async def _has(self, place: Place, made: MigInstance, save: Save) -> None:
        piece = self._slice(place)
        self._replace(place, msgspec.structs.replace(piece, making=False, instance=made))
        for other, theirs in tuple(self._pieces()):
            if other.uid != place.uid and theirs.card_id == piece.card_id and mig_instances.collide(theirs, piece):
                # Theirs cannot stand where ours does. Drivers give a UUID again, so theirs might name ours later.
                self._replace(other, msgspec.structs.replace(theirs, making=False, instance=None))
        await save()
        log.info(
            "mig-instance-made", pod_uid=place.uid, container=place.container, card=piece.card_id, instance=made.uuid
        )

    def _same_pod_s(self, place: Place, kind: int, taken: Taken) -> MigInstance | None:
        """An instance of just this kind and place that another container of the pod has: they share it."""
        wanted = self._slice(place)
        if len(taken.by) != 1 or taken.by[0].kind != kind or taken.by[0].placement != wanted.placement:
            return None
        is_own = any(owner.uid == place.uid for owner in self._owners_of(wanted.card_id, taken.by[0]))
        return taken.by[0].made if is_own else None

    async def _make_room(self, place: Place, taken: Taken, save: Save, *, one_after_the_other: bool) -> None:
        """Only what a finished or vanished pod of ours left behind goes; every other instance stays."""
        wanted = self._slice(place)
        for instance in taken.by:
            owners = self._owners_of(wanted.card_id, instance)
            if not owners:
                raise Transient(
                    f"card {wanted.card_id}: a MIG instance that is not HAMi's stands at {instance.placement}, where "
                    f"{wanted.profile} was reserved; remove it or take the card away from HAMi with filterdevices"
                )
            for owner in owners:
                if owner.uid != place.uid or not one_after_the_other:
                    await self._must_be_over(owner.uid, wanted, instance)
                await self._unmake(owner, save)

    async def _must_be_over(self, uid: str, wanted: HandedSlice, instance: LiveInstance) -> None:
        pod = self._ledger.cached(uid)
        if pod is None:
            pod = await self._ledger.read(uid)
        if pod is not None and not pod.is_finished:
            raise Transient(
                f"card {wanted.card_id}: the MIG instance at {instance.placement} is that of pod "
                f"{pod.key}, where {wanted.profile} was reserved"
            )

    def _owners_of(self, card_id: str, instance: LiveInstance) -> tuple[Place, ...]:
        """Containers of one pod may share an instance."""
        return tuple(
            place
            for place, piece in self._pieces()
            if piece.card_id == card_id
            and piece.placement == instance.placement
            and (piece.making or piece.instance == instance.made)
        )

    async def _unmake(self, place: Place, save: Save) -> None:
        piece = self._slice(place)
        if self._is_hidden(piece.card_id):
            log.warning("mig-instance-left", pod_uid=place.uid, card=piece.card_id, reason="the card is filtered out")
        else:
            live = await self._driver.instances(piece.card_id)
            kind = await self._driver.kind_of(piece.card_id, piece.profile) if live else 0
            found = mig_instances.standing(piece, kind, live)
            if isinstance(found, LiveInstance):
                # Should we end between its two halves, what is left there is still known to be ours.
                self._replace(place, msgspec.structs.replace(piece, making=True))
                await save()
                await self._driver.destroy(piece.card_id, found)
                log.info("mig-instance-destroyed", pod_uid=place.uid, container=place.container, card=piece.card_id)
        self._replace(place, msgspec.structs.replace(piece, making=False, instance=None))
        await save()

    def _replace(self, place: Place, piece: HandedSlice) -> None:
        handed = self._handed(place.uid, place.container)
        slices = (*handed.slices[: place.number], piece, *handed.slices[place.number + 1 :])
        self._book.replace_container(place.uid, place.container, msgspec.structs.replace(handed, slices=slices))
