"""What HAMi's node agent leaves on the API server when kubelet asks it to allocate: pod annotations and the node lock.

Written from its rules, not from its source; `test_stand_ins.py` holds it against recordings of HAMi itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Json = dict[str, Any]
LOCK = "hami.io/mutex.lock"
PHASE = "hami.io/bind-phase"
BIND_TIME = "hami.io/bind-time"
NODE = "hami.io/vgpu-node"
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
ALLOCATED = "hami.io/vgpu-devices-allocated"
VENDOR_WORDS = ("NVIDIA", "MLU", "DCU", "Iluvatar", "Ascend", "Metax", "Mthreads", "Enflame", "XPU", "AWSNeuron")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_INT32 = range(-(2**31), 2**31)
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


class AllocateError(Exception):
    """Kubelet's call fails."""


class Outcome(NamedTuple):
    """`pods`: the annotations of each pod afterwards, by namespace and name."""

    pods: dict[tuple[str, str], dict[str, str]]
    lock: str | None
    error: str


def decode(text: str) -> list[list[tuple[str, str, int, int]]]:
    """Containers of devices (id, vendor word, MiB, percent). Raises AllocateError."""
    return [[_device(item) for item in slot.split(":") if "," in item] for slot in text.split(";")]


def _device(item: str) -> tuple[str, str, int, int]:
    fields = item.split(",")
    if len(fields) < 4 or not all(_INTEGER.fullmatch(field) and int(field) in _INT32 for field in fields[2:4]):
        raise AllocateError(f"{item!r} is no device")
    return fields[0], fields[1], int(fields[2]), int(fields[3])


def encode(slots: Sequence[Sequence[tuple[str, str, int, int]]]) -> str:
    """One `;` more than was read: a trailing `;` counts as a container when it is decoded."""
    return "".join("".join(f"{a},{b},{c},{d}:" for a, b, c, d in slot) + ";" for slot in slots)


def allocate(node_name: str, lock: str | None, pods: Sequence[Json], requests: Sequence[Sequence[str]]) -> Outcome:
    """One Allocate. `pods`: all pods, in the server's order."""
    after = {_key(pod): dict(pod["metadata"].get("annotations") or {}) for pod in pods}
    try:
        owner = _pending_pod(node_name, lock, pods)
    except AllocateError as error:
        return Outcome(after, lock, str(error))
    key = _key(owner)
    try:
        after[key][TO_ALLOCATE] = _consume(owner, requests)
    except AllocateError as error:
        after[key][PHASE] = "failed"
        return Outcome(after, _released(lock, key), str(error))
    if not any(word in after[key][TO_ALLOCATE] for word in VENDOR_WORDS):
        after[key][PHASE] = "success"
        lock = _released(lock, key)
    return Outcome(after, lock, "")


def _pending_pod(node_name: str, lock: str | None, pods: Sequence[Json]) -> Json:
    """Whoever holds the lock; else the first that waits on the node."""
    fields = lock.split(",") if lock is not None else []
    if fields and (len(fields) not in (1, 3) or not _RFC3339.fullmatch(fields[0])):
        raise AllocateError(f"lock {lock!r}")
    if len(fields) == 3 and all(fields):
        for pod in pods:
            if _key(pod) == (fields[1], fields[2]):
                return pod
        raise AllocateError(f"pod {fields[1]}/{fields[2]} not found")
    for pod in pods:
        annotations = pod["metadata"].get("annotations") or {}
        if (
            pod["spec"].get("nodeName") == node_name
            and pod.get("status", {}).get("phase") == "Pending"
            and BIND_TIME in annotations
            and annotations.get(PHASE) in ("allocating", "success")
            and annotations.get(NODE) == node_name
        ):
            return pod
    raise AllocateError(f"no binding pod found on node {node_name}")


def _consume(pod: Json, requests: Sequence[Sequence[str]]) -> str:
    """What is left to allocate. Each request takes the first slot that is not empty."""
    text = (pod["metadata"].get("annotations") or {}).get(TO_ALLOCATE)
    if text is None:
        raise AllocateError("device request not found")
    slots = decode(text)
    containers = len(pod["spec"].get("initContainers") or []) + len(pod["spec"]["containers"])
    for ids in requests:
        position = next((number for number, slot in enumerate(slots) if slot), None)
        if position is None:
            raise AllocateError("device request not found")
        if position >= containers:
            raise AllocateError("the slot is of no container")
        if len(slots[position]) != len(ids):
            raise AllocateError("device number not matched")
        slots[position] = []
    return encode(slots)


def _released(lock: str | None, owner: tuple[str, str]) -> str | None:
    if lock is None or ("," in lock and not lock.endswith(f",{owner[0]},{owner[1]}")):
        return lock
    return None


def _key(pod: Mapping[str, Any]) -> tuple[str, str]:
    return pod["metadata"].get("namespace", ""), pod["metadata"]["name"]
