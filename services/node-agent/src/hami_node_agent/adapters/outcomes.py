"""Tells what came of a hand-over: on the pod, on the bus, and in Kubernetes Events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hami_chassis.clock import Clock
from hami_chassis.kube.events import EventRecorder, ObjectReference
from hami_model import events, kube
from hami_model.device_config import VendorSettings
from hami_model.events.allocation import Verification

from hami_node_agent.core import outcome
from hami_node_agent.core.backends import HeldBy
from hami_node_agent.core.outcome import Origin
from hami_node_agent.ports import EventSink, PodWriter


class HandoverOutcomes:
    """An Outcomes."""

    def __init__(
        self,
        settings: VendorSettings,
        origin: Origin,
        *,
        writer: PodWriter,
        sink: EventSink,
        recorder: EventRecorder,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._origin = origin
        self._writer = writer
        self._sink = sink
        self._recorder = recorder
        self._clock = clock

    def write(self, pod: kube.Pod, annotations: Mapping[str, str]) -> None:
        self._writer.want(pod, annotations)

    def announce_allocated(self, pod: kube.Pod, verification: Verification, held_by: HeldBy) -> None:
        now = self._clock.now()
        self._publish(
            outcome.allocated(pod, self._settings, self._origin, now, verification=verification, held_by=held_by)
        )

    def announce_failed(self, pod: kube.Pod, reason: str, holders: Iterable[kube.Pod] = ()) -> None:
        self.warn(pod, "AllocationFailed", reason)
        now = self._clock.now()
        self._publish(outcome.failed(pod, self._settings, self._origin, now, reason=reason, holders=holders))

    def warn(self, pod: kube.Pod, reason: str, message: str) -> None:
        about = ObjectReference(kind="Pod", name=pod.metadata.name, namespace=pod.metadata.namespace, uid=pod.uid)
        self._recorder.emit(about, reason=reason, message=message, event_type="Warning")

    def _publish(self, event: events.AllocationAllocated | events.AllocationFailed) -> None:
        self._sink.publish(event.subject(self._origin.prefix), events.encode(event), events.headers(event))
