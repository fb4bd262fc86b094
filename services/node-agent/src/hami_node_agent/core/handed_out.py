"""The agent's own checkpoint: what was handed out, to whom. What was handed out first holds until the pod is gone.

    (nothing) ──first container──▶ allocated ──▶ failed
        └──────────────────────────────────────▶ failed

Written form: JSON with a version. Members are only ever added, with defaults, and unknown ones are ignored, so every
agent of a version reads what another of it wrote. A change of meaning is a new version, which older agents refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal

import msgspec
from hami_model import kube
from hami_model.cards import MigPlacement, Slice
from hami_model.errors import HamiError, MalformedError
from hami_model.events.parts import Enforcement
from hami_model.ids import CardId
from hami_model.mig_allocations import MigInstance

from hami_node_agent.core import mig_uuid

VERSION: Final = 1

State = Literal["allocated", "failed"]


class HandedSlice(msgspec.Struct, frozen=True, kw_only=True):
    card_id: str
    memory_mib: int
    cores_percent: int
    profile: str = ""
    """Of a card in MIG mode, with `placement`."""
    placement: MigPlacement | None = None
    making: bool = False
    """The place was free and its instance is being made: what stands there afterwards is ours."""
    instance: MigInstance | None = None
    enforced_by: Enforcement = ""
    """The back end that holds it; empty: handed out by an agent that did not write it down."""


class HandedContainer(msgspec.Struct, frozen=True, kw_only=True):
    """One container's hand-over."""

    slices: tuple[HandedSlice, ...]
    """In limit order."""
    region_name: str
    """File of the shared region in the container's folder; the same at every restart."""
    position: int
    """Of the container in the pod, init containers first."""
    opted_out: bool = False
    """Its specification asked that nothing hold it, and was allowed to."""
    library: str = ""
    """File of the host that is mounted as its library; a runtime may mount it again at a restart."""


class HandedPod(msgspec.Struct, frozen=True, kw_only=True):
    """All that is remembered of one pod."""

    namespace: str
    name: str
    allocation_id: str
    state: State = "allocated"
    reason: str = ""
    """Why it failed."""
    containers: dict[str, HandedContainer] = {}
    init_over: bool = False
    """Its one-shot init containers had ended once: what only they needed is free for others since."""


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    pods: dict[str, HandedPod] = {}


class MalformedCheckpointError(MalformedError):
    """The agent's own checkpoint cannot be read."""


class NewerCheckpointError(HamiError):
    """A later agent wrote the checkpoint, and this one would misread it."""


class HandedOut:
    """The book. Pods by the UID under which kubelet knows them."""

    def __init__(self, pods: dict[str, HandedPod] | None = None) -> None:
        self._pods = dict(pods or {})

    def get(self, uid: str) -> HandedPod | None:
        return self._pods.get(uid)

    def uids(self) -> frozenset[str]:
        return frozenset(self._pods)

    def items(self) -> Iterator[tuple[str, HandedPod]]:
        return iter(tuple(self._pods.items()))

    def put(self, uid: str, pod: HandedPod) -> None:
        self._pods[uid] = pod

    def add_container(self, uid: str, pod: HandedPod, container: str, handed: HandedContainer) -> HandedPod:
        """Adds a container to a pod that is in the book already, or comes in as `pod`. The first hand-over holds."""
        known = self._pods.get(uid, pod)
        if container not in known.containers:
            known = msgspec.structs.replace(known, containers={**known.containers, container: handed})
        self._pods[uid] = known
        return known

    def fail(self, uid: str, pod: HandedPod, reason: str) -> HandedPod:
        """Marks a pod failed; the first reason holds."""
        known = self._pods.get(uid, pod)
        if known.state != "failed":
            known = msgspec.structs.replace(known, state="failed", reason=reason)
        self._pods[uid] = known
        return known

    def mark_init_over(self, uid: str) -> bool:
        """Whether that is news."""
        known = self._pods.get(uid)
        if known is None or known.init_over:
            return False
        self._pods[uid] = msgspec.structs.replace(known, init_over=True)
        return True

    def replace_container(self, uid: str, container: str, handed: HandedContainer) -> None:
        """Puts what is now known of a container that is in the book."""
        known = self._pods[uid]
        self._pods[uid] = msgspec.structs.replace(known, containers={**known.containers, container: handed})

    def drop(self, uid: str) -> bool:
        return self._pods.pop(uid, None) is not None


def is_of(handed: HandedPod | None, pod: kube.Pod) -> bool:
    """Whether that was handed to this very pod: a mirror may claim the UID of another."""
    return handed is not None and (handed.namespace, handed.name) == (pod.metadata.namespace, pod.metadata.name)


def slices_by_position(handed: HandedPod, vendor: str) -> dict[int, tuple[Slice, ...]]:
    """What was handed out, by position of the container."""
    return {container.position: as_slices(container.slices, vendor) for container in handed.containers.values()}


def as_slices(handed: tuple[HandedSlice, ...], vendor: str) -> tuple[Slice, ...]:
    return tuple(
        Slice(
            card_id=CardId(piece.card_id),
            vendor=vendor,
            memory_mib=piece.memory_mib,
            cores_percent=piece.cores_percent,
            profile=piece.profile,
            placement=piece.placement,
        )
        for piece in handed
    )


def as_handed(slices: tuple[Slice, ...]) -> tuple[HandedSlice, ...]:
    return tuple(
        HandedSlice(
            card_id=piece.card_id,
            memory_mib=piece.memory_mib,
            cores_percent=piece.cores_percent,
            profile=piece.profile,
            placement=piece.placement,
        )
        for piece in slices
    )


def receiver_of(book: HandedOut, region_file: str) -> tuple[str, str] | None:
    """UID and container that were answered with a region file of that path; None where the book has no such one."""
    name = region_file.rpartition("/")[2]
    return next(
        (
            (uid, container)
            for uid, pod in book.items()
            for container, handed in pod.containers.items()
            if name and handed.region_name == name
        ),
        None,
    )


def receiver_of_instances(book: HandedOut, uuids: Iterable[str]) -> tuple[str, str] | None:
    """UID and container that have MIG instances of just these UUIDs; None where nobody has."""
    wanted = set(uuids)
    return next(
        (
            (uid, container)
            for uid, pod in book.items()
            for container, handed in pod.containers.items()
            if wanted and wanted == {uuid for piece in handed.slices for uuid in _mig_device(piece)}
        ),
        None,
    )


def _mig_device(piece: HandedSlice) -> tuple[str, ...]:
    if piece.instance is not None:
        return (piece.instance.uuid,)
    return (piece.card_id,) if mig_uuid.is_mig(piece.card_id) else ()


def encode(book: HandedOut) -> bytes:
    return msgspec.json.encode(_Document(version=VERSION, pods=dict(book.items())))


def decode(raw: bytes) -> HandedOut:
    """Raises MalformedCheckpointError, NewerCheckpointError."""
    try:
        document = msgspec.json.decode(raw, type=_Document)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedCheckpointError(f"not a checkpoint of the node-agent: {error}") from error
    if document.version > VERSION:
        raise NewerCheckpointError(
            f"it is of version {document.version}; this node-agent knows versions up to {VERSION}"
        )
    if document.version < 1:
        raise MalformedCheckpointError(f"version {document.version}: there never was one below 1")
    return HandedOut(document.pods)
