"""Kubernetes Events about our Node."""

from __future__ import annotations

from hami_chassis.kube.events import EventRecorder, ObjectReference
from hami_chassis.log import get_logger

log = get_logger("node-events")


class RecordedNodeEvents:
    """A NodeEvents."""

    def __init__(self, recorder: EventRecorder, node_name: str) -> None:
        self._recorder = recorder
        # Kubelet's own events about a node carry its name as UID; tools look them up so.
        self._about = ObjectReference(kind="Node", name=node_name, uid=node_name)

    def tell(self, reason: str, message: str) -> None:
        log.info("node-event", reason=reason, message=message)
        self._recorder.emit(self._about, reason=reason, message=message)

    def warn(self, reason: str, message: str) -> None:
        log.warning("node-event", reason=reason, message=message)
        self._recorder.emit(self._about, reason=reason, message=message, event_type="Warning")
