"""What the scheduler needs from outside, as it needs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Protocol

from hami_chassis.kube.events import ObjectReference
from hami_model import kube
from hami_model.ids import AllocationId

from hami_scheduler.core.advice import Case, Looked
from hami_scheduler.core.extender import BindArguments


class EventSink(Protocol):
    """Takes events for the bus. Never waits and never fails: what cannot be kept is counted by the sink."""

    def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> None: ...


class NoticeBoard(Protocol):
    """Takes Kubernetes Events; never waits. False when one had to be dropped."""

    def emit(
        self, about: ObjectReference, *, reason: str, message: str, event_type: Literal["Normal", "Warning"] = "Normal"
    ) -> bool: ...


class Leadership(Protocol):
    """How long this process certainly leads."""

    @property
    def is_leader(self) -> bool: ...

    def remaining_seconds(self) -> float:
        """0 for a follower; infinity where there is no election."""
        ...


class PodBinder(Protocol):
    """Binds pods to nodes."""

    async def bind(self, asked: BindArguments) -> str:
        """Why it failed, for kube-scheduler; empty when the pod is bound."""
        ...


class Alarm(Protocol):
    """Is told that capacity grew."""

    def capacity_grew(self, cause: str, *, watched: bool) -> None:
        """`watched`: kube-scheduler watches the change too, and probably tries the pods again by itself."""
        ...


class Adviser(Protocol):
    """Looks for the change that would have placed a rejected pod."""

    def take(self, case: Case, tell: Callable[[Looked], None]) -> bool:
        """`tell` follows later. False: too many wait already, and it never follows."""
        ...


class Chores(Protocol):
    """Writes to the API server that nobody waits for. Done by the leader, tried again while they may help."""

    def strip_allocation(self, pod: kube.Pod) -> None:
        """Removes the allocation from a pod that is unbound and holds nothing."""
        ...

    def withdraw_allocation(self, pod: kube.Pod, allocation_id: AllocationId) -> None:
        """Removes that allocation from the pod if it stands there and the pod is unbound."""
        ...

    def label_bound(self, pod: kube.Pod) -> None:
        """Labels a bound pod whose server drops labels of a Binding."""
        ...

    def stamp_node(self, node: str, annotations: Mapping[str, str]) -> None:
        """Writes handshakes to a node."""
        ...
