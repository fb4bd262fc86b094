"""List and watch one kind of object, and keep what a projection leaves of each.

    list (pages) ──▶ synced ──▶ watch ──▶ connection ends or falls silent: watch on from the last version
         ▲                        │
         └──── version too old, unreadable stream, or resync() ◀──┘

A new list is compared with what is held, so that deletions, changes and additions missed in between are delivered,
deletions first. Everything is delivered once and in order, to a synchronous handler on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import aclosing
from typing import Generic, Literal, Protocol, TypeVar

import msgspec

from hami_chassis.clock import Clock
from hami_chassis.errors import Permanent, Transient
from hami_chassis.kube.client import SILENCE_SECONDS, KubeClient, ListPage, Undecodable, WatchEvent
from hami_chassis.kube.errors import Gone
from hami_chassis.kube.objects import KubeObject, MetadataOnly
from hami_chassis.kube.resources import Resource
from hami_chassis.log import get_logger
from hami_chassis.metrics import ChassisMetrics
from hami_chassis.retry import DEFAULT_BACKOFF, Backoff, Retries

log = get_logger("informer")

T = TypeVar("T", bound=KubeObject)
P = TypeVar("P")
Q = TypeVar("Q")
P_contra = TypeVar("P_contra", contravariant=True)

Cause = Literal["start", "gone", "unreadable", "resync"]
_WATCH_SECONDS = 300.0
_MIN_WATCH_SECONDS = 1.0  # a server that ends watches at once is not asked again at once


class InformerHandler(Protocol[P_contra]):
    """Is told every change, in order. What it raises ends the informer, so it raises only for defects."""

    def added(self, new: P_contra) -> None: ...
    def modified(self, old: P_contra, new: P_contra) -> None: ...
    def deleted(self, last: P_contra) -> None: ...


class Informer(Generic[T, P]):
    """Root task `run`. Holds `project(object)` by UID; an object whose projection is None is not held."""

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        *,
        into: type[T],
        project: Callable[[T], P | None],
        handler: InformerHandler[P],
        metrics: ChassisMetrics,
        clock: Clock,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        page_limit: int = 500,
        silence_seconds: float = SILENCE_SECONDS,
        backoff: Backoff = DEFAULT_BACKOFF,
    ) -> None:
        self._client = client
        self._resource = resource
        self._into = into
        self._decoder = msgspec.json.Decoder(into)
        self._project = project
        self._handler = handler
        self._metrics = metrics
        self._clock = clock
        self._namespace = namespace
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._page_limit = page_limit
        self._silence_seconds = silence_seconds
        self._retries = Retries(backoff)
        self._held: dict[str, tuple[str, P]] = {}
        self._version: str | None = None
        self._cause: Cause = "start"
        self._resync_waiters: list[asyncio.Future[None]] = []
        self._interrupt = asyncio.Event()
        self._size = metrics.informer_objects.labels(resource.plural)
        self.synced = asyncio.Event()
        """Set once the first complete list was delivered; it stays set."""

    def __len__(self) -> int:
        return len(self._held)

    def get(self, uid: str) -> P | None:
        """What is held of the object with that UID."""
        entry = self._held.get(uid)
        return None if entry is None else entry[1]

    def values(self) -> Iterator[P]:
        """Everything that is held, in order of arrival."""
        return (projection for _, projection in self._held.values())

    @property
    def resource_version(self) -> str:
        """The version up to which everything has been delivered; empty before the first list."""
        return self._version or ""

    async def resync(self) -> None:
        """Returns when a consistent list that began after this call has been compared and delivered."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._resync_waiters.append(waiter)
        self._interrupt.set()
        await waiter

    async def run(self) -> None:
        """Lists and watches until cancelled. Errors of the server are logged and tried again for ever."""
        while True:
            error: Transient | Permanent | None = None
            began = self._clock.monotonic()
            try:
                if self._version is None or self._resync_waiters:
                    await self._list()
                    self._retries.succeeded()
                await self._watch_until_interrupted()
            except (Gone, Undecodable) as found:
                error = found
                self._version = None
                self._cause = "gone" if isinstance(found, Gone) else "unreadable"
            except (Transient, Permanent) as found:
                error = found
            if error is None and self._clock.monotonic() - began >= _MIN_WATCH_SECONDS:
                self._retries.succeeded()
                continue
            if self._resync_waiters and error is None:
                continue
            delay = self._retries.delay_after(error)
            if error is not None:
                log.warning(
                    "informer-interrupted",
                    resource=self._resource.plural,
                    error=str(error),
                    retry_seconds=round(delay, 3),
                )
            await self._clock.sleep(delay)

    # ---- list ------------------------------------------------------------------------------------------------

    async def _list(self) -> None:
        waiters, self._resync_waiters = self._resync_waiters, []
        self._interrupt.clear()
        cause: Cause = "resync" if waiters and self._version is not None else self._cause
        self._metrics.informer_relists.labels(self._resource.plural, cause).inc()
        try:
            await self._list_pages()
        except BaseException:
            self._resync_waiters += waiters
            raise
        self._size.set(len(self._held))
        if not self.synced.is_set():
            log.info("informer-synced", resource=self._resource.plural, objects=len(self._held))
            self.synced.set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _list_pages(self) -> None:
        """The first list is delivered page by page, so that it is never in memory as a whole."""
        fills_empty_store = not self._held and not self.synced.is_set()
        found: dict[str, tuple[str, P]] = {}
        unreadable: set[str] = set()
        page, limit, expired = "", self._page_limit, 0
        while True:
            try:
                got = await self._page(page, limit, unreadable)
            except Gone:
                if not page:
                    raise
                # The list took longer than the server keeps its version. Once more, then all in one piece.
                expired += 1
                page, limit = "", limit if expired == 1 else 0
                fills_empty_store = False
                found.clear()
                continue
            for item in got.items:
                self._take_listed(item, None if fills_empty_store else found)
            page = got.next_page
            if not page:
                break
        if not fills_empty_store:
            self._reconcile(found, unreadable)
        self._version = got.resource_version

    async def _page(self, page: str, limit: int, unreadable: set[str]) -> ListPage[T]:
        try:
            return await self._fetch(self._into, page, limit)
        except Undecodable:
            raw = await self._fetch(msgspec.Raw, page, limit)
        items: list[T] = []
        for one in raw.items:
            try:
                items.append(self._decoder.decode(one))
            except msgspec.DecodeError as error:
                unreadable.add(self._report_unreadable(one, error))
        return ListPage(items, raw.resource_version, raw.next_page)

    async def _fetch(self, into: type[Q], page: str, limit: int) -> ListPage[Q]:
        return await self._client.list_page(
            self._resource,
            into=into,
            namespace=self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            limit=limit,
            page=page,
        )

    def _take_listed(self, item: T, found: dict[str, tuple[str, P]] | None) -> None:
        uid, version = item.metadata.uid, item.metadata.resource_version
        if found is None:
            self._put(uid, version, self._project(item))
            return
        held = self._held.get(uid)
        if held is not None and held[0] == version:
            found[uid] = held
        elif (projection := self._project(item)) is not None:
            found[uid] = (version, projection)

    def _reconcile(self, found: dict[str, tuple[str, P]], unreadable: set[str]) -> None:
        for uid in [uid for uid in self._held if uid not in found and uid not in unreadable]:
            self._remove(uid, None)
        for uid, (version, projection) in found.items():
            held = self._held.get(uid)
            if held is None or held[0] != version:
                self._put(uid, version, projection)

    # ---- watch -----------------------------------------------------------------------------------------------

    async def _watch_until_interrupted(self) -> None:
        watch = asyncio.create_task(self._watch())
        interrupt = asyncio.create_task(self._interrupt.wait())
        try:
            await asyncio.wait([watch, interrupt], return_when=asyncio.FIRST_COMPLETED)
        finally:
            interrupt.cancel()
            if not watch.done():
                watch.cancel()
            await asyncio.wait([watch, interrupt])
            if not watch.cancelled():
                watch.exception()  # marks it as seen, should this task be cancelled itself
        if not watch.cancelled():
            watch.result()

    async def _watch(self) -> None:
        assert self._version is not None  # noqa: S101  # set by the list before
        events = self._client.watch(
            self._resource,
            resource_version=self._version,
            namespace=self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            timeout_seconds=_WATCH_SECONDS,
            silence_seconds=self._silence_seconds,
        )
        async with aclosing(events):
            async for event in events:
                self._apply(event)
                self._retries.succeeded()

    def _apply(self, event: WatchEvent) -> None:
        if event.type == "BOOKMARK":
            self._take_bookmark(msgspec.json.decode(event.raw, type=MetadataOnly).metadata.resource_version)
            return
        try:
            item = self._decoder.decode(event.raw)
        except msgspec.DecodeError as error:
            uid = self._report_unreadable(event.raw, error)
            if event.type == "DELETED":
                self._remove(uid, None)
            return
        uid, version = item.metadata.uid, item.metadata.resource_version
        if not _is_newer(version, self._version):
            return  # delivered before: by the list, or by the watch that broke
        self._version = version
        if event.type == "DELETED":
            self._remove(uid, self._project(item))
        else:
            self._put(uid, version, self._project(item))
        self._size.set(len(self._held))

    def _take_bookmark(self, version: str) -> None:
        if version != self._version and not _is_newer(version, self._version):
            # Versions went back: the server lost history (an older backup), and what we hold may be of the future.
            raise Gone(f"watch {self._resource.plural}: the server is at version {version}, before {self._version}")
        self._version = version

    # ---- what is held ----------------------------------------------------------------------------------------

    def _put(self, uid: str, version: str, projection: P | None) -> None:
        if projection is None:
            self._remove(uid, None)
            return
        held = self._held.get(uid)
        self._held[uid] = (version, projection)
        if held is None:
            self._handler.added(projection)
        else:
            self._handler.modified(held[1], projection)

    def _remove(self, uid: str, last: P | None) -> None:
        held = self._held.pop(uid, None)
        if held is not None:
            self._handler.deleted(held[1] if last is None else last)

    def _report_unreadable(self, raw: msgspec.Raw, error: msgspec.DecodeError) -> str:
        """Counts and logs an object that cannot be read; what is held of it stays, so it never reads as absent."""
        self._metrics.informer_undecodable.labels(self._resource.plural).inc()
        try:
            metadata = msgspec.json.decode(raw, type=MetadataOnly).metadata
        except msgspec.DecodeError as cause:
            raise Undecodable(f"watch {self._resource.plural}: an object without metadata: {cause}") from error
        log.error(
            "object-unreadable",
            resource=self._resource.plural,
            namespace=metadata.namespace,
            name=metadata.name,
            error=str(error),
        )
        return metadata.uid


def _is_newer(version: str, than: str | None) -> bool:
    """Versions of one collection are growing numbers; where they are not, everything counts as new."""
    if than is None or not (version.isdigit() and than.isdigit()):
        return True
    return int(version) > int(than)
