"""Typed calls to the API server. Bodies are decoded straight into the caller's structs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from hami_chassis.clock import Clock
from hami_chassis.errors import Permanent
from hami_chassis.kube.credentials import Endpoint, find_endpoint
from hami_chassis.kube.errors import Conflict, Invalid, decode_status, error_from_status
from hami_chassis.kube.objects import ListEnvelope, MetadataOnly, WatchLine
from hami_chassis.kube.resources import PODS, Resource
from hami_chassis.kube.transport import Call, Transport
from hami_chassis.metrics import ChassisMetrics

T = TypeVar("T")

_MERGE_PATCH = "application/merge-patch+json"
_WATCH_GRACE_SECONDS = 15.0  # the server ends a watch at its time-out; later than this it is dead
SILENCE_SECONDS: Final = 150.0
"""A server sends a bookmark about each minute. One that keeps a watch open and says nothing so long is asked anew."""


class KubeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the API server is found and how long a call may take."""

    kubeconfig: str = ""
    """Path of a kubeconfig, or the plain http(s) address of a server. Empty: $KUBECONFIG, else in-cluster."""
    context: str = ""
    """Context of the kubeconfig; empty takes its current one."""
    timeout_seconds: float = 10.0
    """Deadline of every call that names none; a page of a list gets three times as much."""


class ListPage(msgspec.Struct, Generic[T], frozen=True):
    """Some objects of a list. `resource_version` is that of the whole list; `next_page` is empty on the last page."""

    items: list[T]
    resource_version: str
    next_page: str


class WatchEvent(msgspec.Struct, frozen=True):
    """`type` is ADDED, MODIFIED, DELETED or BOOKMARK; `raw` is the object, still undecoded."""

    type: str
    raw: msgspec.Raw


class Undecodable(Permanent):
    """The server answered with something that does not have the shape that was asked for."""


class KubeClient:
    """Calls with a deadline each. Raises the errors of `hami_chassis.kube.errors`, and Undecodable."""

    def __init__(
        self, endpoint: Endpoint, *, metrics: ChassisMetrics, user_agent: str = "hami", timeout_seconds: float = 10.0
    ) -> None:
        self._transport = Transport(endpoint, user_agent=user_agent, metrics=metrics)
        self._timeout_seconds = timeout_seconds

    @classmethod
    async def connect(
        cls, settings: KubeSettings, *, metrics: ChassisMetrics, clock: Clock, user_agent: str = "hami"
    ) -> KubeClient:
        """Finds the server and the credentials; opens no connection yet. Raises CredentialsUnusable."""
        endpoint = await find_endpoint(kubeconfig=settings.kubeconfig, context=settings.context, clock=clock)
        return cls(endpoint, metrics=metrics, user_agent=user_agent, timeout_seconds=settings.timeout_seconds)

    async def close(self) -> None:
        """Closes all connections."""
        await self._transport.close()

    # ---- reading ---------------------------------------------------------------------------------------------

    async def get(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str = "",
        into: type[T],
        timeout_seconds: float | None = None,
    ) -> T:
        """The object, read consistently (never from a cache of the server)."""
        call = Call("get", resource.plural, _named(namespace, name))
        body = await self._transport.request(
            call, "GET", resource.path(namespace, name), timeout_seconds=self._deadline(timeout_seconds)
        )
        return _decode(body, into, call)

    async def list_page(
        self,
        resource: Resource,
        *,
        into: type[T],
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 500,
        page: str = "",
        timeout_seconds: float | None = None,
    ) -> ListPage[T]:
        """One page; `page` is `next_page` of the one before. `limit` 0 is everything at once.

        Raises Gone when the page token has become too old: list anew.
        """
        call = Call("list", resource.plural)
        query = {
            key: value for key, value in (("labelSelector", label_selector), ("fieldSelector", field_selector)) if value
        }
        if limit:
            query["limit"] = str(limit)
        if page:
            query["continue"] = page
        deadline = timeout_seconds if timeout_seconds is not None else 3 * self._timeout_seconds
        body = await self._transport.request(
            call, "GET", resource.path(namespace), query=query, timeout_seconds=deadline
        )
        envelope: ListEnvelope[T] = _decode(body, ListEnvelope[into], call)  # type: ignore[valid-type]
        return ListPage(envelope.items or [], envelope.metadata.resource_version, envelope.metadata.continue_)

    async def list_all(
        self,
        resource: Resource,
        *,
        into: type[T],
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 500,
    ) -> ListPage[T]:
        """All pages as one. Raises Gone when the list took longer than the server keeps its version."""
        items: list[T] = []
        page = ""
        while True:
            got = await self.list_page(
                resource,
                into=into,
                namespace=namespace,
                label_selector=label_selector,
                field_selector=field_selector,
                limit=limit,
                page=page,
            )
            items += got.items
            page = got.next_page
            if not page:
                return ListPage(items, got.resource_version, "")

    async def watch(
        self,
        resource: Resource,
        *,
        resource_version: str,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: float = 300.0,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> AsyncGenerator[WatchEvent]:
        """Changes after that version, with bookmarks, until the server ends the watch (a plain end of iteration).

        Raises Gone when the version is too old, KubeTransient when the connection breaks or is silent too long.
        """
        call = Call("watch", resource.plural)
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(int(timeout_seconds)),
        }
        query |= {
            key: value for key, value in (("labelSelector", label_selector), ("fieldSelector", field_selector)) if value
        }
        deadline = timeout_seconds + _WATCH_GRACE_SECONDS
        async with self._transport.stream(
            call, resource.path(namespace), query=query, timeout_seconds=deadline, silence_seconds=silence_seconds
        ) as content:
            rest = b""
            async for chunk in content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n") if rest else chunk.split(b"\n")
                for line in lines:
                    if line:
                        yield _watch_event(line, call)

    # ---- writing ---------------------------------------------------------------------------------------------

    async def create(
        self,
        resource: Resource,
        body: object,
        *,
        namespace: str = "",
        into: type[T],
        timeout_seconds: float | None = None,
    ) -> T:
        """Creates what `body` (a struct or mapping) says. Raises AlreadyExists."""
        call = Call("create", resource.plural, namespace)
        answer = await self._transport.request(
            call,
            "POST",
            resource.path(namespace),
            body=msgspec.json.encode(body),
            timeout_seconds=self._deadline(timeout_seconds),
        )
        return _decode(answer, into, call)

    async def replace(
        self,
        resource: Resource,
        name: str,
        body: object,
        *,
        namespace: str = "",
        subresource: str = "",
        into: type[T],
        timeout_seconds: float | None = None,
    ) -> T:
        """Replaces the object; with `metadata.resourceVersion` in the body only in that version (Conflict)."""
        call = Call("update", _with_subresource(resource, subresource), _named(namespace, name))
        answer = await self._transport.request(
            call,
            "PUT",
            resource.path(namespace, name, subresource),
            body=msgspec.json.encode(body),
            timeout_seconds=self._deadline(timeout_seconds),
        )
        return _decode(answer, into, call)

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: object,
        *,
        namespace: str = "",
        subresource: str = "",
        into: type[T],
        content_type: str = _MERGE_PATCH,
        timeout_seconds: float | None = None,
    ) -> T:
        """Merge-patches the object. `metadata.resourceVersion` or `metadata.uid` in the patch is a precondition."""
        call = Call("patch", _with_subresource(resource, subresource), _named(namespace, name))
        try:
            answer = await self._transport.request(
                call,
                "PATCH",
                resource.path(namespace, name, subresource),
                body=msgspec.json.encode(patch),
                content_type=content_type,
                timeout_seconds=self._deadline(timeout_seconds),
            )
        except Invalid as error:
            if "metadata.uid" not in error.fields:
                raise
            # To the server the UID in a patch is a field that may not change; to callers it is a precondition.
            raise Conflict(str(error), code=error.code, reason=error.reason, fields=error.fields) from error
        return _decode(answer, into, call)

    async def patch_annotations(
        self,
        resource: Resource,
        name: str,
        annotations: Mapping[str, str | None],
        *,
        namespace: str = "",
        uid: str = "",
        resource_version: str = "",
        timeout_seconds: float | None = None,
    ) -> MetadataOnly:
        """Sets annotations, removes those that are None; `uid` and `resource_version` are preconditions (Conflict)."""
        metadata: dict[str, Any] = {"annotations": dict(annotations)}
        if uid:
            metadata["uid"] = uid
        if resource_version:
            metadata["resourceVersion"] = resource_version
        return await self.patch(
            resource,
            name,
            {"metadata": metadata},
            namespace=namespace,
            into=MetadataOnly,
            timeout_seconds=timeout_seconds,
        )

    async def patch_status(
        self,
        resource: Resource,
        name: str,
        status: object,
        *,
        namespace: str = "",
        into: type[T],
        timeout_seconds: float | None = None,
    ) -> T:
        """Merge-patches the status subresource."""
        return await self.patch(
            resource,
            name,
            {"status": status},
            namespace=namespace,
            subresource="status",
            into=into,
            timeout_seconds=timeout_seconds,
        )

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        grace_seconds: int | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        """Deletes the object; with `uid` only exactly that one (Conflict). Raises NotFound."""
        call = Call("delete", resource.plural, _named(namespace, name))
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        await self._transport.request(
            call,
            "DELETE",
            resource.path(namespace, name),
            body=msgspec.json.encode(options),
            timeout_seconds=self._deadline(timeout_seconds),
        )

    async def bind(
        self,
        *,
        namespace: str,
        name: str,
        uid: str,
        node: str,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        """Binds the pod of exactly that UID to the node; the annotations become true in the same transaction.

        Raises Conflict (other UID, already bound), NotFound, KubeUnknown (read the pod before doing anything else).
        """
        metadata: dict[str, Any] = {"name": name, "namespace": namespace, "uid": uid}
        if annotations:
            metadata["annotations"] = dict(annotations)
        if labels:
            metadata["labels"] = dict(labels)
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._transport.request(
            Call("create", "pods/binding", _named(namespace, name)),
            "POST",
            PODS.path(namespace, name, "binding"),
            body=msgspec.json.encode(binding),
            timeout_seconds=self._deadline(timeout_seconds),
        )

    def _deadline(self, timeout_seconds: float | None) -> float:
        return self._timeout_seconds if timeout_seconds is None else timeout_seconds


def _named(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name


def _with_subresource(resource: Resource, subresource: str) -> str:
    return f"{resource.plural}/{subresource}" if subresource else resource.plural


def _decode(body: bytes | msgspec.Raw, into: type[T], call: Call) -> T:
    try:
        return msgspec.json.decode(body, type=into)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Undecodable(f"{call.text}: the answer does not have the expected shape: {error}") from error


def _watch_event(line: bytes, call: Call) -> WatchEvent:
    event = _decode(line, WatchLine, call)
    if event.type == "ERROR":
        raise error_from_status(decode_status(bytes(event.object), 500), request=call.text, is_write=False)
    return WatchEvent(event.type, event.object)
