"""What the node-agent needs from outside, as it needs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec
from hami_model import kube
from hami_model.cards import MigPlacement
from hami_model.events.allocation import Verification
from hami_model.mig_allocations import MigInstance
from kubelet_api.checkpoint import CheckpointView

from hami_node_agent.core.backends import HeldBy
from hami_node_agent.core.cdi_spec import ForeignSpec, OwnSpec
from hami_node_agent.core.grant import ContainerFiles, HostState
from hami_node_agent.core.handed_out import HandedOut
from hami_node_agent.core.inventory import Inventory
from hami_node_agent.core.mig_instances import LiveInstance


class RefusedForGoodError(Exception):
    """A hand-off's answer: the container will never start; the message says what to change."""


class PodLedger(Protocol):
    """Pods of this node."""

    @property
    def has_synced(self) -> bool:
        """Whether all pods of before the start were seen."""
        ...

    def cached(self, uid: str) -> kube.Pod | None:
        """The last version seen of the pod that kubelet knows by this UID."""
        ...

    def all_cached(self) -> Iterable[kube.Pod]:
        """One pod for each UID that kubelet may use; pods that claim the UID of another are left out."""
        ...

    async def read(self, uid: str) -> kube.Pod | None:
        """The pod by one consistent read. Raises Transient."""
        ...

    async def read_all(self) -> Sequence[kube.Pod]:
        """A consistent list of the node's pods, left out as in `all_cached`. Raises Transient."""
        ...


class LockApi(Protocol):
    """The calls of the lock hand-off. Each raises Transient or Permanent."""

    async def node_lock(self) -> tuple[str | None, str]:
        """The lock and the node's resource version."""
        ...

    async def clear_node_lock(self, resource_version: str) -> None:
        """Takes the lock away, in that version of the node only (Conflict)."""
        ...

    async def get_pod(self, namespace: str, name: str) -> kube.Pod: ...

    async def pods_of_node(self) -> Sequence[kube.Pod]: ...

    async def patch_pod(self, pod: kube.Pod, annotations: Mapping[str, str]) -> None: ...


class KubeletCheckpoint(Protocol):
    async def read(self) -> CheckpointView:
        """Raises KubeletCheckpointUnreadable (Transient)."""
        ...


class OwnershipCheck(Protocol):
    """What kubelet's PodResources service says of device ids."""

    async def owner(self, resource: str, device_ids: frozenset[str]) -> tuple[str, str, str] | None:
        """Namespace, pod and container that hold exactly these ids; None where it does not say."""
        ...


class HostView(msgspec.Struct, frozen=True, kw_only=True):
    """The host before a hand-over."""

    state: HostState
    nvidia_specs: tuple[ForeignSpec, ...] = ()
    is_book_missing: bool = False
    """What was handed out is written down nowhere: somebody removed our checkpoint, or nothing was handed out yet."""


class HandoverFiles(Protocol):
    """What a hand-over reads and writes on the host. Raises HostFilesError (Transient)."""

    async def look(self, *, with_specs: bool) -> HostView:
        """`with_specs`: NVIDIA's specifications, too."""
        ...

    async def put(self, files: ContainerFiles | None, specification: OwnSpec | None) -> None:
        """Puts in place what a container is started with: its folders and its limits page, in which what is there
        stays or changes in place, and its specification as a whole."""
        ...

    async def refresh_page(self, files: ContainerFiles) -> None:
        """Changes the page of a container that may be running, if it has one that this agent can write."""
        ...


class CdiDirectory(Protocol):
    """Raises HostFilesError (Transient)."""

    async def remove_pod(self, pod_uid: str) -> None: ...

    async def owners(self) -> frozenset[str]:
        """UIDs of the pods that have specifications."""
        ...


class HostFiles(Protocol):
    """Raises HostFilesError (Transient)."""

    async def remove_pod(self, pod_uid: str) -> None: ...

    async def owners(self) -> frozenset[str]: ...

    async def remove_libraries(self, used: frozenset[str]) -> None:
        """Removes libraries that were installed earlier, but for those that are used."""
        ...


class OwnCheckpoint(Protocol):
    def is_missing(self) -> bool:
        """Somebody removed it, or nothing was ever written. Blocks."""
        ...

    async def write(self, book: HandedOut) -> None:
        """Raises HostFilesError (Transient)."""
        ...


class MigDriver(Protocol):
    """MIG instances of cards, by their UUIDs. Raises MigError (Transient)."""

    async def kind_of(self, card_id: str, profile: str) -> int:
        """NVML's kind of the profile that a name stands for on that card."""
        ...

    async def instances(self, card_id: str) -> Sequence[LiveInstance]:
        """None of a card that is gone, or whose MIG mode is off."""
        ...

    async def create(self, card_id: str, kind: int, placement: MigPlacement) -> LiveInstance:
        """Makes a GPU instance just there, with a compute instance that is all of it, or leaves nothing."""
        ...

    async def complete(self, card_id: str, instance: LiveInstance) -> LiveInstance:
        """Makes the compute instance that a GPU instance lacks."""
        ...

    async def destroy(self, card_id: str, instance: LiveInstance) -> None: ...

    async def capability_minors(self, card_id: str, instance: MigInstance) -> tuple[int, int]:
        """n of the two /dev/nvidia-caps/nvidia-cap<n> through which the instance is used."""
        ...


class EventSink(Protocol):
    """Takes events for the bus. Never waits and never fails: what cannot be kept is counted by the sink."""

    def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> None: ...


class PodWriter(Protocol):
    """Writes the outcome of a hand-over on the pod, again and again until it holds."""

    def want(self, pod: kube.Pod, annotations: Mapping[str, str]) -> None: ...


class Outcomes(Protocol):
    """Tells what came of a hand-over. Never waits and never fails."""

    def write(self, pod: kube.Pod, annotations: Mapping[str, str]) -> None:
        """Sooner or later the pod shows these annotations."""
        ...

    def announce_allocated(self, pod: kube.Pod, verification: Verification, held_by: HeldBy) -> None: ...

    def announce_failed(self, pod: kube.Pod, reason: str, holders: Iterable[kube.Pod] = ()) -> None: ...

    def warn(self, pod: kube.Pod, reason: str, message: str) -> None:
        """A Kubernetes Event of type Warning."""
        ...


class NodeEvents(Protocol):
    """Kubernetes Events about our Node. Never waits and never fails."""

    def tell(self, reason: str, message: str) -> None: ...

    def warn(self, reason: str, message: str) -> None: ...


class InventoryView(Protocol):
    @property
    def inventory(self) -> Inventory: ...
