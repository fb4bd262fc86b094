"""What HAMi's scheduler reads from nodes and writes on pods and nodes: register decoder, filter's patch, bind's steps.

Written from its rules, not from its source; `test_stand_ins.py` holds the decoder against recordings of HAMi itself.
Which card it takes does not matter here: the first with room.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from hami_sim.fake_kube import FakeKube
from their_agent import ALLOCATED, BIND_TIME, LOCK, NODE, PHASE, TO_ALLOCATE, decode

Json = dict[str, Any]
REGISTER = "hami.io/node-nvidia-register"
HANDSHAKE = "hami.io/node-handshake"
TIME = "hami.io/vgpu-time"
LOCK_EXPIRY = timedelta(minutes=5)
_FIELDS: dict[str, tuple[type, Any]] = {
    "id": (str, ""), "index": (int, 0), "count": (int, 0), "devmem": (int, 0), "devcore": (int, 0), "type": (str, ""),
    "numa": (int, 0), "mode": (str, ""), "health": (bool, False),
}  # fmt: skip
_INT32 = range(-(2**31), 2**31)
_RANGES = {
    "index": range(2**64), "count": _INT32, "devmem": _INT32, "devcore": _INT32, "numa": range(-(2**63), 2**63),
}  # fmt: skip


class UnreadableError(Exception):
    """The decoder refuses the annotation."""


class Device(NamedTuple):
    id: str
    index: int
    count: int
    devmem: int
    devcore: int
    type: str
    numa: int
    mode: str
    health: bool


def devices(text: str) -> list[Device]:
    """The register annotation by the rules of Go's JSON: names whatever their case, unknown fields skipped."""
    try:
        elements = json.loads(text)
    except json.JSONDecodeError as error:
        raise UnreadableError(str(error)) from error
    if not isinstance(elements, list | None):
        raise UnreadableError("not a list")
    return [_device(element) for element in elements or ()]


def _device(element: Json) -> Device:
    values = {name: default for name, (_, default) in _FIELDS.items()}
    for key, value in element.items():
        name = key.lower()
        if name not in _FIELDS or value is None:
            continue
        kind = _FIELDS[name][0]
        if type(value) is not kind or (kind is int and value not in _RANGES[name]):
            raise UnreadableError(f"{key}: {value!r}")
        values[name] = value
    return Device(**values)


class BindError(Exception):
    """Bind fails; kube-scheduler comes again."""


class TheirScheduler:
    """Over an API server in memory. Every read and write is one request of its own, as in a program of its own."""

    def __init__(self, kube: FakeKube, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._kube = kube
        self._now = now

    def filter(self, name: str, node: str, asks: Sequence[tuple[int, int]]) -> str:
        """Chooses cards and writes them on the pod, before it is bound. Returns the annotation.

        `asks`: MiB and percent of each container.
        """
        chosen = "".join(f"{self._card(node, mib, percent)},NVIDIA,{mib},{percent}:;" for mib, percent in asks)
        seconds = str(int(self._now().timestamp()))
        self._patch_pod(name, {NODE: node, TIME: seconds, TO_ALLOCATE: chosen, ALLOCATED: chosen}, labels={NODE: node})
        return chosen

    def bind(self, name: str, node: str) -> None:
        """Lock, phase, Binding. Raises BindError."""
        self._lock(node, name)
        self._patch_pod(name, {PHASE: "allocating", BIND_TIME: str(int(self._now().timestamp()))})
        pod = self._kube.get("pods", name, "default")
        self._kube.put("pods", {**pod, "spec": {**pod["spec"], "nodeName": node}})

    def shake_hands(self, node: str) -> None:
        """What it writes on every node from time to time; HAMi's NVIDIA plugin never answers."""
        self._patch_node(node, {HANDSHAKE: self._now().strftime("Requesting_%Y-%m-%d %H:%M:%S")})

    def _card(self, node: str, mib: int, percent: int) -> str:
        found = self._kube.get("nodes", node)
        used = self._used(node)
        for device in devices(found["metadata"]["annotations"][REGISTER]):
            held = used.get(device.id, (0, 0, 0))
            if (
                device.health
                and held[0] < device.count
                and held[1] + mib <= device.devmem
                and held[2] + percent <= device.devcore
            ):
                return device.id
        raise BindError("no card has room")

    def _used(self, node: str) -> dict[str, tuple[int, int, int]]:
        """Slots, MiB and percent of each card, from what pods of the node have been allocated."""
        found: dict[str, tuple[int, int, int]] = {}
        for pod in self._kube.all("pods"):
            annotations = pod["metadata"].get("annotations", {})
            if annotations.get(NODE) != node or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
                continue
            for slot in decode(annotations.get(ALLOCATED, "")):
                for card, _, mib, percent in slot:
                    slots, memory, cores = found.get(card, (0, 0, 0))
                    found[card] = (slots + 1, memory + mib, cores + percent)
        return found

    def _lock(self, node: str, name: str) -> None:
        held = self._kube.get("nodes", node)["metadata"].get("annotations", {}).get(LOCK)
        if held is not None and not held.endswith(f",default,{name}"):
            time, _, owner = held.partition(",")
            namespace, _, owner_name = owner.partition(",")
            expired = self._now() - datetime.fromisoformat(time) > LOCK_EXPIRY
            gone = all(
                (pod["metadata"]["namespace"], pod["metadata"]["name"]) != (namespace, owner_name)
                for pod in self._kube.all("pods")
            )
            if not expired and not gone:
                raise BindError(f"node {node} is locked by {owner}")
        self._patch_node(node, {LOCK: f"{self._now():%Y-%m-%dT%H:%M:%SZ},default,{name}"})

    def _patch_pod(self, name: str, annotations: dict[str, str], labels: dict[str, str] | None = None) -> None:
        pod = self._kube.get("pods", name, "default")
        metadata = pod["metadata"]
        merged = {
            **metadata,
            "annotations": {**metadata.get("annotations", {}), **annotations},
            "labels": {**metadata.get("labels", {}), **(labels or {})},
        }
        self._kube.put("pods", {**pod, "metadata": merged})

    def _patch_node(self, name: str, annotations: dict[str, str]) -> None:
        node = self._kube.get("nodes", name)
        metadata = node["metadata"]
        self._kube.put(
            "nodes",
            {**node, "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), **annotations}}},
        )
