"""The HTTP face of the fake API server."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from hami_sim.fake_kube.faults import EVERY, Fault, Faults, Hold, Request
from hami_sim.fake_kube.refusals import Refusal, gone
from hami_sim.fake_kube.selectors import SelectorError, field_predicate, label_predicate
from hami_sim.fake_kube.store import Store, Stored
from hami_sim.fake_kube.watches import Admits, Watch, Watches, bookmark_line
from hami_sim.loopback_ports import LOOPBACK, choose_free_ports

JSON = "application/json"
_MAX_BODY_BYTES = 3 * 1024 * 1024
_PATCH_TYPES = frozenset({"application/merge-patch+json", "application/strategic-merge-patch+json"})


class Kind(NamedTuple):
    """A resource that the fake knows."""

    kind: str
    api: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return self.api.removeprefix("apis/").removeprefix("api/")


KINDS: dict[str, Kind] = {
    "pods": Kind("Pod", "api/v1"),
    "nodes": Kind("Node", "api/v1", namespaced=False),
    "namespaces": Kind("Namespace", "api/v1", namespaced=False),
    "resourcequotas": Kind("ResourceQuota", "api/v1"),
    "events": Kind("Event", "api/v1"),
    "configmaps": Kind("ConfigMap", "api/v1"),
    "secrets": Kind("Secret", "api/v1"),
    "services": Kind("Service", "api/v1"),
    "serviceaccounts": Kind("ServiceAccount", "api/v1"),
    "leases": Kind("Lease", "apis/coordination.k8s.io/v1"),
}


class Target(NamedTuple):
    """What a path names."""

    plural: str
    namespace: str
    name: str
    subresource: str

    @property
    def resource(self) -> str:
        return f"{self.plural}/{self.subresource}" if self.subresource else self.plural


class FakeKube:
    """`url = await fake.start()`, then any client; `stop` keeps the state, so `start` again is a server restart.

    Namespaces need not exist, nothing is admitted or defaulted beyond identity and version, and nothing happens by
    itself: no scheduler, no kubelet, no garbage collection.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        """Every request in order of arrival."""
        self._faults = Faults()
        self._watches = Watches()
        self._store = self._new_store()
        self._runner: web.AppRunner | None = None
        self._port = 0
        self._arrived = asyncio.Condition()

    # ---- life ------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> str:
        """Listens on a free port of loopback, on the same one after a `stop`. Returns the address.

        The port is none of those that the kernel gives to outgoing connections: while the server is stopped, a client
        that tries again and again would some day get it for itself.
        """
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        self._port = self._port or choose_free_ports(1)[0]
        await web.TCPSite(self._runner, LOOPBACK, self._port, reuse_address=True).start()
        return self.url

    async def stop(self) -> None:
        """Ends all connections."""
        self._watches.end(None)
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def lose_state(self) -> None:
        """Everything is gone and versions begin anew, as after a restore of an empty backup."""
        self._store = self._new_store()

    def _new_store(self) -> Store:
        store = Store(lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        store.on_change = self._watches.offer
        return store

    # ---- state from outside of the API -----------------------------------------------------------------------

    def put(self, resource: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """Creates or replaces an object (status included) without any check. Returns it as it is stored."""
        return self._store.put(resource, value).value

    def remove(self, resource: str, name: str, namespace: str = "") -> None:
        """Takes an object away at once."""
        self._store.remove(resource, namespace, name)

    def get(self, resource: str, name: str, namespace: str = "") -> dict[str, Any]:
        """The object as it is stored. Raises Refusal (404)."""
        return self._store.get(resource, namespace, name).value

    def all(self, resource: str) -> list[dict[str, Any]]:
        """All objects of a resource."""
        return [stored.value for stored in self._store.all(resource)]

    # ---- faults ----------------------------------------------------------------------------------------------

    def fail(
        self,
        verb: str,
        resource: str,
        code: int,
        *,
        reason: str = "InternalError",
        message: str = "injected",
        retry_after_seconds: int = 0,
        nth: int = 1,
        times: int = 1,
    ) -> None:
        """Refuses requests. Verbs: get list watch create update patch delete, or `*`; `times` may be `EVERY`."""
        refusal = Refusal(code, reason, message, retry_after_seconds=retry_after_seconds)
        self._faults.add(Fault(verb, resource, nth, times, refusal=refusal))

    def cut(self, verb: str, resource: str, *, after_effect: bool, nth: int = 1, times: int = 1) -> None:
        """Cuts the connection without an answer, before or after the request took effect."""
        self._faults.add(Fault(verb, resource, nth, times, cut="after" if after_effect else "before"))

    def delay(self, verb: str, resource: str, seconds: float, *, nth: int = 1, times: int = EVERY) -> None:
        """Answers later."""
        self._faults.add(Fault(verb, resource, nth, times, delay_seconds=seconds))

    def hold(self, verb: str, resource: str, *, nth: int = 1) -> Hold:
        """Stops one request before it takes effect, until it is released."""
        hold = Hold()
        self._faults.add(Fault(verb, resource, nth, hold=hold))
        return hold

    def clear_faults(self) -> None:
        """Ends all faults."""
        self._faults.clear()

    # ---- watches ---------------------------------------------------------------------------------------------

    @property
    def open_watches(self) -> int:
        """How many clients watch now."""
        return len(self._watches)

    def drop_watches(self, resource: str | None = None) -> None:
        """Ends open watches; clients may go on from where they were."""
        self._watches.end(resource)

    def expire_watches(self, resource: str) -> None:
        """Sends 410 Gone into open watches and forgets the history, so that a new list is needed."""
        self._store.compact(resource)
        self._watches.refuse(resource, gone("too old resource version: the history was compacted"))

    def compact(self, resource: str) -> None:
        """Forgets the history: the next watch from an old version, and lists that have begun, get 410 Gone."""
        self._store.compact(resource)

    def expire_pages(self, resource: str) -> None:
        """Lists that have begun get 410 Gone for their next page."""
        self._store.forget_snapshots(resource)

    def pause_watches(self, resource: str) -> None:
        """Holds changes back until `resume_watches`."""
        self._watches.pause(resource)

    def resume_watches(self, resource: str) -> None:
        """Sends what was held back."""
        self._watches.resume(resource)

    def bookmark(self, resource: str) -> None:
        """Sends a bookmark into the watches that asked for bookmarks."""
        kind = KINDS[resource]
        self._watches.bookmark(resource, self._store.version, kind=kind.kind, api_version=kind.api_version)

    def repeat_last_event(self, resource: str) -> None:
        """Sends the last line of each watch once more."""
        self._watches.repeat_last(resource)

    def send_line(self, resource: str, raw: bytes) -> None:
        """Sends any bytes as a line of the open watches."""
        self._watches.send_raw(resource, raw)

    async def wait_for_requests(self, verb: str, resource: str, count: int = 1) -> None:
        """Returns once that many such requests have arrived since the beginning."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: self.count(verb, resource) >= count)

    def count(self, verb: str, resource: str) -> int:
        """How many such requests have arrived."""
        return sum(request.verb == verb and request.resource == resource for request in self.requests)

    # ---- HTTP ------------------------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except Refusal as refusal:
            headers = {"Retry-After": str(refusal.retry_after_seconds)} if refusal.retry_after_seconds else {}
            body = msgspec.json.encode(refusal.status)
            return web.Response(status=refusal.code, body=body, content_type=JSON, headers=headers)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        target = _target(request.path)
        verb = _verb(request, target)
        body = await request.read()
        await self._note(
            Request(verb, target.resource, target.namespace, target.name, dict(request.query), _json(body))
        )
        faults = self._faults.for_request(verb, target.resource)
        for fault in faults:
            if fault.delay_seconds:
                await asyncio.sleep(fault.delay_seconds)
            if fault.hold is not None:
                await fault.hold.wait()
            if fault.refusal is not None:
                raise fault.refusal
            if fault.cut == "before":
                return _cut(request)
        if verb == "watch":
            return await self._watch(request, target)
        response = self._list(request, target) if verb == "list" else self._change(request, verb, target, _json(body))
        return _cut(request) if any(fault.cut == "after" for fault in faults) else response

    async def _note(self, request: Request) -> None:
        self.requests.append(request)
        async with self._arrived:
            self._arrived.notify_all()

    def _change(self, request: web.Request, verb: str, target: Target, body: Any) -> web.Response:  # noqa: ANN401
        store, (plural, namespace, name, subresource) = self._store, target
        if verb in {"create", "update", "patch"} and not isinstance(body, dict):
            raise Refusal(400, "BadRequest", "the request is not a JSON object")
        if target.resource == "pods/binding":
            store.bind(namespace, name, body)
            return _success(201)
        if verb == "get":
            return _object(store.get(plural, namespace, name))
        if verb == "create":
            kind = KINDS[plural]
            named = {"kind": kind.kind, "apiVersion": kind.api_version}
            return _object(store.create(plural, namespace, named | body), status=201)
        if verb == "update":
            return _object(store.replace(plural, namespace, name, body, subresource))
        if verb == "patch":
            if request.content_type not in _PATCH_TYPES:
                raise Refusal(415, "UnsupportedMediaType", f"the fake does not know {request.content_type}")
            return _object(store.merge(plural, namespace, name, body, subresource))
        options = body or {}
        uid = (options.get("preconditions") or {}).get("uid", "")
        return _object(store.delete(plural, namespace, name, uid=uid, grace_seconds=options.get("gracePeriodSeconds")))

    def _list(self, request: web.Request, target: Target) -> web.Response:
        admits = _selection(request, target)
        limit = int(request.query.get("limit") or 0)
        token = request.query.get("continue")
        version, after = _read_token(token) if token else (None, None)
        version, entries = self._store.snapshot(target.plural, version)
        matching = ((key, stored) for key, stored in entries if (after is None or key > after) and admits(stored.value))
        page = list(itertools.islice(matching, limit)) if limit else list(matching)
        more = next(matching, None) is not None if limit else False
        kind = KINDS[target.plural]
        metadata: dict[str, Any] = {"resourceVersion": str(version)}
        if more:
            metadata["continue"] = _token(version, page[-1][0])
        head = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata}
        body = msgspec.json.encode(head)[:-1] + b',"items":[' + b",".join(stored.raw for _, stored in page) + b"]}"
        return web.Response(body=body, content_type=JSON)

    async def _watch(self, request: web.Request, target: Target) -> web.StreamResponse:
        text = request.query.get("resourceVersion", "")
        since = int(text) if text.isdigit() and text != "0" else self._store.version
        bookmarks = request.query.get("allowWatchBookmarks") in {"true", "1"}
        watch = Watch(target.plural, _selection(request, target), bookmarks=bookmarks)
        for change in self._store.changes_since(target.plural, since):
            watch.offer(change)
        response = web.StreamResponse(headers={"Content-Type": JSON})
        response.enable_chunked_encoding()
        # From here on no await before the watch is registered, or a change would be missed.
        self._watches.add(watch)
        with contextlib.suppress(ConnectionResetError):  # the client may go at any moment
            try:
                await response.prepare(request)
                async with asyncio.timeout(float(request.query.get("timeoutSeconds") or 1800)):
                    while (line := await watch.queue.get()) is not None:
                        await response.write(line)
            except TimeoutError:
                if bookmarks:  # the real one sends a last bookmark before it ends a watch
                    kind = KINDS[target.plural]
                    await response.write(bookmark_line(self._store.version, kind.kind, kind.api_version))
            finally:
                self._watches.discard(watch)
            await response.write_eof()
        return response


def _target(path: str) -> Target:
    for plural, kind in KINDS.items():
        prefix = f"/{kind.api}/"
        if not path.startswith(prefix):
            continue
        parts = path.removeprefix(prefix).split("/")
        namespace = ""
        if kind.namespaced and parts[0] == "namespaces" and len(parts) >= 3:
            namespace, parts = parts[1], parts[2:]
        if parts[0] == plural and len(parts) <= 3:
            name, subresource = (*parts[1:], "", "")[:2]
            if subresource not in {"", "status", "binding"} or (subresource == "binding" and plural != "pods"):
                continue
            return Target(plural, namespace, name, subresource)
    raise Refusal(404, "NotFound", "the server could not find the requested resource")


def _verb(request: web.Request, target: Target) -> str:
    if request.method == "GET":
        if target.name:
            return "get"
        return "watch" if request.query.get("watch") in {"true", "1"} else "list"
    verbs = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
    verb = verbs.get(request.method)
    names_object = bool(target.name) and target.subresource != "binding"
    if verb is None or names_object == (verb == "create"):
        raise Refusal(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
    return verb


def _selection(request: web.Request, target: Target) -> Admits:
    try:
        by_label = label_predicate(request.query.get("labelSelector", ""))
        by_field = field_predicate(request.query.get("fieldSelector", ""))
    except SelectorError as error:
        raise Refusal(400, "BadRequest", str(error)) from error
    namespace = target.namespace

    def admits(value: dict[str, Any]) -> bool:
        in_namespace = not namespace or value["metadata"].get("namespace") == namespace
        return in_namespace and by_label(value) and by_field(value)

    return admits


def _json(body: bytes) -> Any:  # noqa: ANN401  # JSON of any shape
    if not body:
        return None
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise Refusal(400, "BadRequest", f"the request is not JSON: {error}") from error


def _object(stored: Stored, status: int = 200) -> web.Response:
    return web.Response(status=status, body=stored.raw, content_type=JSON)


def _success(status: int) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": status}
    return web.Response(status=status, body=msgspec.json.encode(body), content_type=JSON)


def _cut(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


def _token(version: int, key: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode([version, *key])).decode()


def _read_token(token: str) -> tuple[int, tuple[str, str]]:
    try:
        version, namespace, name = msgspec.json.decode(base64.urlsafe_b64decode(token), type=tuple[int, str, str])
    except (ValueError, msgspec.DecodeError) as error:
        raise Refusal(400, "BadRequest", "continue key is not valid") from error
    return version, (namespace, name)
