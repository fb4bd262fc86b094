"""The parts of Kubernetes objects that every kind has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

import msgspec

T = TypeVar("T")


class OwnerReference(msgspec.Struct, frozen=True, rename="camel"):
    """Who an object belongs to."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class ObjectMeta(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The metadata that we read. Callers may declare a smaller one of their own."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generate_name: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[OwnerReference] = []


class HasIdentity(Protocol):
    """Metadata with what an informer needs."""

    @property
    def uid(self) -> str: ...
    @property
    def resource_version(self) -> str: ...


class KubeObject(Protocol):
    """What a caller's struct must have to be held by an informer."""

    @property
    def metadata(self) -> HasIdentity: ...


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    """Where a list stands: its version, and the token of the next page."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")
    remaining_item_count: int | None = None


class ListEnvelope(msgspec.Struct, Generic[T], frozen=True):
    """A page as it is on the wire."""

    metadata: ListMeta
    items: list[T] | None = None


class WatchLine(msgspec.Struct, frozen=True):
    """One line of a watch as it is on the wire."""

    type: str
    object: msgspec.Raw


class StatusCause(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    kind: str = ""
    retry_after_seconds: int = 0
    causes: list[StatusCause] = []


class Status(msgspec.Struct, frozen=True):
    """What the API server answers when something is wrong."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails = StatusDetails()


class MetadataOnly(msgspec.Struct, frozen=True):
    """An object of which only the metadata matters."""

    metadata: ObjectMeta = ObjectMeta()


Annotations = Mapping[str, str]
