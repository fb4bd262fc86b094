"""The values of the metrics on feedback."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hami_monitor.core import catalogue
from hami_monitor.core.container_folder import FolderOwner
from hami_monitor.core.feedback import Feedback
from hami_monitor.core.pods import MonitoredPod
from hami_monitor.core.series import Series


def feedback_series(node: str, pods: Mapping[FolderOwner, MonitoredPod], feedback: Feedback) -> Iterator[Series]:
    for verdict in feedback.verdicts:
        pod = pods.get(verdict.owner)
        if pod is not None:
            labels = (node, pod.ref.namespace, pod.ref.name, verdict.owner.container)
            yield catalogue.SLICE_BLOCKED, labels, verdict.is_blocked
            yield catalogue.SLICE_CORES_HELD, labels, verdict.is_contended
