"""The state behind the fake: objects, one growing version, a history for watches. No I/O, no time of its own."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from hami_sim.fake_kube.refusals import Refusal, already_exists, conflict, gone, immutable, invalid, not_found

Json = dict[str, Any]
ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]
WITH_STATUS = frozenset({"pods", "nodes", "namespaces", "resourcequotas"})
_KEPT_CHANGES = 100_000
_KEPT_SNAPSHOTS = 16
_DEFAULT_GRACE_SECONDS = 30


class Stored(NamedTuple):
    """One object and its bytes on the wire."""

    value: Json
    raw: bytes


class Change(NamedTuple):
    """One step of the history. `before` is None for an addition; a deletion holds the last state, newly versioned."""

    version: int
    type: ChangeType
    now: Stored
    before: Stored | None


class Store:
    """Objects by resource (plural name), namespace and name. Methods raise Refusal as the API server would answer."""

    def __init__(self, now: Callable[[], str]) -> None:
        self._now = now
        self.version = 1000
        self._objects: dict[str, dict[tuple[str, str], Stored]] = {}
        self._history: dict[str, list[Change]] = {}
        self._compacted: dict[str, int] = {}
        self._snapshots: dict[tuple[str, int], list[tuple[tuple[str, str], Stored]]] = {}
        self.on_change: Callable[[str, Change], None] = lambda _resource, _change: None

    # ---- reading ---------------------------------------------------------------------------------------------

    def get(self, resource: str, namespace: str, name: str) -> Stored:
        found = self._objects.get(resource, {}).get((namespace, name))
        if found is None:
            raise not_found(resource, name)
        return found

    def all(self, resource: str) -> list[Stored]:
        return list(self._objects.get(resource, {}).values())

    def snapshot(self, resource: str, version: int | None) -> tuple[int, list[tuple[tuple[str, str], Stored]]]:
        """All objects in order of their keys, now or as they were at the version of an earlier snapshot."""
        if version is not None:
            kept = self._snapshots.get((resource, version))
            if kept is None:
                raise gone("The provided continue parameter is too old to display a consistent list result.")
            return version, kept
        entries = sorted(self._objects.get(resource, {}).items())
        self._snapshots[resource, self.version] = entries
        while len(self._snapshots) > _KEPT_SNAPSHOTS:
            del self._snapshots[next(iter(self._snapshots))]
        return self.version, entries

    def changes_since(self, resource: str, version: int) -> list[Change]:
        if version < self._compacted.get(resource, 0):
            raise gone(f"too old resource version: {version} ({self._compacted[resource]})")
        return [change for change in self._history.get(resource, []) if change.version > version]

    def compact(self, resource: str) -> None:
        """Forgets the history: watches from now on must start at the present version, begun lists cannot go on."""
        self.version += 1
        self._history[resource] = []
        self._compacted[resource] = self.version
        self.forget_snapshots(resource)

    def forget_snapshots(self, resource: str) -> None:
        """Lists that have begun cannot go on."""
        self._snapshots = {key: kept for key, kept in self._snapshots.items() if key[0] != resource}

    # ---- writing ---------------------------------------------------------------------------------------------

    def put(self, resource: str, value: Mapping[str, Any]) -> Stored:
        """Sets an object from outside of the API: no checks, but a version and an identity."""
        value = _copy(value)
        key = _key(value)
        present = self._objects.get(resource, {}).get(key)
        if present is not None:
            value["metadata"].setdefault("uid", present.value["metadata"]["uid"])
        self._complete_metadata(value)
        return self._write(resource, value, present)

    def create(self, resource: str, namespace: str, value: Json) -> Stored:
        metadata = value.setdefault("metadata", {})
        if metadata.get("resourceVersion"):
            raise Refusal(500, "InternalError", "resourceVersion should not be set on objects to be created")
        if namespace and metadata.setdefault("namespace", namespace) != namespace:
            raise Refusal(400, "BadRequest", "the namespace of the provided object does not match the request")
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                raise invalid(resource, "", "metadata.name: Required value: name or generateName is required")
            metadata["name"] = f"{metadata['generateName']}{uuid.uuid4().hex[:5]}"
        key = _key(value)
        if key in self._objects.get(resource, {}):
            raise already_exists(resource, metadata["name"])
        metadata.pop("uid", None)
        metadata.pop("deletionTimestamp", None)
        self._complete_metadata(value)
        if resource == "pods":
            value["status"] = {"phase": "Pending", "qosClass": "BestEffort"}
        return self._write(resource, value, None)

    def replace(self, resource: str, namespace: str, name: str, value: Json, subresource: str) -> Stored:
        present = self.get(resource, namespace, name)
        metadata = value.setdefault("metadata", {})
        if resource == "leases" and not metadata.get("resourceVersion"):
            raise invalid(resource, name, "metadata.resourceVersion: Invalid value: 0: must be specified for an update")
        self._check_version(resource, present, metadata)
        _check_uid(resource, present, metadata.get("uid"))
        return self._update(resource, present, value, subresource)

    def merge(self, resource: str, namespace: str, name: str, patch: Json, subresource: str) -> Stored:
        present = self.get(resource, namespace, name)
        metadata = patch.get("metadata") or {}
        self._check_version(resource, present, metadata)
        if metadata.get("uid", present.value["metadata"]["uid"]) != present.value["metadata"]["uid"]:
            # Unlike in an update, the UID in a patch is a value that may not change, not a precondition.
            raise immutable(resource, name, "metadata.uid", metadata["uid"])
        return self._update(resource, present, merge_patch(present.value, patch), subresource)

    def delete(self, resource: str, namespace: str, name: str, *, uid: str, grace_seconds: int | None) -> Stored:
        present = self.get(resource, namespace, name)
        metadata = present.value["metadata"]
        _check_uid(resource, present, uid)
        grace = self._grace(resource, present.value) if grace_seconds is None else grace_seconds
        waits = metadata.get("finalizers") or (grace > 0 and self._grace(resource, present.value) > 0)
        if waits and metadata.get("deletionTimestamp"):
            return present
        if waits or resource == "pods":  # a pod is marked even when it is removed at once
            marked = _copy(present.value)
            marked["metadata"].setdefault("deletionTimestamp", self._now())
            marked["metadata"]["deletionGracePeriodSeconds"] = grace
            present = self._write(resource, marked, present)
        return present if waits else self.remove(resource, namespace, name)

    def remove(self, resource: str, namespace: str, name: str) -> Stored:
        """Takes an object away at once."""
        present = self.get(resource, namespace, name)
        del self._objects[resource][namespace, name]
        last = _copy(present.value)
        self.version += 1
        last["metadata"]["resourceVersion"] = str(self.version)
        stored = Stored(last, msgspec.json.encode(last))
        self._record(resource, Change(self.version, "DELETED", stored, present))
        return stored

    def bind(self, namespace: str, name: str, binding: Json) -> Stored:
        """Sets the node and merges annotations and labels in one step, under the UID of the binding."""
        present = self.get("pods", namespace, name)
        metadata = binding.get("metadata") or {}
        _check_uid("pods", present, metadata.get("uid"))
        if present.value["metadata"].get("deletionTimestamp"):
            raise conflict("pods", name, f"pod {name} is being deleted, cannot be assigned to a host")
        bound_to = present.value.get("spec", {}).get("nodeName")
        node = (binding.get("target") or {}).get("name")
        if not node:
            raise invalid("pods/binding", name, "target.name: Required value")
        if bound_to:
            raise conflict("pods/binding", name, f'pod {name} is already assigned to node "{bound_to}"')
        pod = _copy(present.value)
        pod.setdefault("spec", {})["nodeName"] = node
        for field in ("annotations", "labels"):
            if metadata.get(field):
                pod["metadata"][field] = (pod["metadata"].get(field) or {}) | metadata[field]
        conditions = [c for c in pod.setdefault("status", {}).get("conditions", []) if c.get("type") != "PodScheduled"]
        pod["status"]["conditions"] = [*conditions, {"type": "PodScheduled", "status": "True"}]
        return self._write("pods", pod, present)

    # ---- inside ----------------------------------------------------------------------------------------------

    def _update(self, resource: str, present: Stored, value: Json, subresource: str) -> Stored:
        value = _copy(value)
        old = present.value
        if subresource == "status":
            value = _copy(old) | {"status": value.get("status", {})}
        elif resource in WITH_STATUS:
            value.pop("status", None)
            if "status" in old:
                value["status"] = old["status"]
        metadata = value.setdefault("metadata", {})
        kept = ("uid", "name", "namespace", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
        for field in kept:
            if field in old["metadata"]:
                metadata[field] = old["metadata"][field]
        metadata["resourceVersion"] = old["metadata"]["resourceVersion"]
        for field in ("annotations", "labels"):
            if not metadata.get(field):
                metadata.pop(field, None)
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers") and old["metadata"].get("finalizers"):
            return self.remove(resource, metadata.get("namespace", ""), metadata["name"])
        if value == old:
            return present  # an update that changes nothing makes no version and no event
        return self._write(resource, value, present)

    def _check_version(self, resource: str, present: Stored, metadata: Mapping[str, Any]) -> None:
        held = present.value["metadata"]
        wanted = metadata.get("resourceVersion")
        if wanted and wanted != held["resourceVersion"]:
            raise conflict(
                resource,
                held["name"],
                "the object has been modified; please apply your changes to the latest version and try again",
            )

    def _complete_metadata(self, value: Json) -> None:
        metadata = value["metadata"]
        metadata.setdefault("uid", str(uuid.uuid4()))
        metadata.setdefault("creationTimestamp", self._now())

    def _write(self, resource: str, value: Json, before: Stored | None) -> Stored:
        self.version += 1
        value["metadata"]["resourceVersion"] = str(self.version)
        stored = Stored(value, msgspec.json.encode(value))
        self._objects.setdefault(resource, {})[_key(value)] = stored
        self._record(resource, Change(self.version, "ADDED" if before is None else "MODIFIED", stored, before))
        return stored

    def _record(self, resource: str, change: Change) -> None:
        history = self._history.setdefault(resource, [])
        history.append(change)
        if len(history) > _KEPT_CHANGES:
            half = len(history) // 2
            self._compacted[resource] = history[half - 1].version
            del history[:half]
        self.on_change(resource, change)

    def _grace(self, resource: str, value: Json) -> int:
        """Only pods that a kubelet may be running end gracefully."""
        if resource != "pods" or not value.get("spec", {}).get("nodeName"):
            return 0
        if value.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
            return 0
        return int(value["spec"].get("terminationGracePeriodSeconds", _DEFAULT_GRACE_SECONDS))


def _check_uid(resource: str, present: Stored, uid: str | None) -> None:
    held = present.value["metadata"]
    if uid and uid != held["uid"]:
        cause = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {held['uid']}"
        raise conflict(resource, held["name"], cause)


def merge_patch(target: object, patch: object) -> Any:  # noqa: ANN401  # JSON of any shape
    """RFC 7386."""
    if not isinstance(patch, dict):
        return _typed(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def _key(value: Json) -> tuple[str, str]:
    metadata = value["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _copy(value: Mapping[str, Any]) -> Json:
    copied: Json = msgspec.json.decode(msgspec.json.encode(value))
    return copied


def _typed(value: object) -> object:
    """What is left of a list's elements once the server has read them into its types: null means absent."""
    if isinstance(value, list):
        return [_typed(item) for item in value]
    if isinstance(value, dict):
        return {key: _typed(member) for key, member in value.items() if member is not None}
    return value
