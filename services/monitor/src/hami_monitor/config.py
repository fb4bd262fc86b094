"""Settings of the monitor."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from hami_chassis.bus import BusSettings
from hami_chassis.http import HttpSettings
from hami_chassis.kube import KubeSettings
from hami_chassis.log import LogSettings
from hami_model.events import subjects
from hami_model.events.streams import StreamSettings


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The node that is watched."""

    name: str = ""
    """Name of the Node object. Must be set."""
    hook_path: str = "/usr/local"
    """Folder under which the node-agent keeps `vgpu/containers`; the same as the node-agent's."""
    driver_library_folder: str = ""
    """Where libnvidia-ml.so.1 lies. Empty: the dynamic loader's own search."""
    device_config_file: str = ""
    """HAMi's device configuration (YAML). Empty: every family with its default resource names."""


class SamplingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often is looked."""

    period_seconds: float = 5.0
    """Between two looks at all region files and cards; also between two usage events of a pod."""


class FeedbackSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Priority between the containers of a card, and shares that are held only where cards are contended."""

    enabled: bool = True
    """Off: no container is blocked, and the switch of compute limits stays as libraries make it: on."""
    period_seconds: float = 5.0
    """Between two looks. HAMi's library and ours count on 5; a blocked container of ours goes on after 75 seconds
    without one."""
    hold_ticks: int = 1
    """Looks for which a container that paused still counts as active. HAMi's monitor: 0."""


class HostPidSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Telling the library in a container the host's pids of its processes, by which the driver knows them."""

    enabled: bool = True
    """Off: where containers have PID namespaces of their own, those that share a card get less compute than promised.
    Needs the host's pids (`hostPID`)."""
    period_seconds: float = 2.0
    """Between two looks for processes that are new."""


class FolderSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Folders of containers whose pods are gone."""

    remove_after_seconds: float = 300.0
    """Since the folder changed, for those that the node-agent did not remove. 0: never. HAMi's monitor has
    `HAMI_RESYNC_INTERVAL` for this."""


class MetricSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which names are served beside ours."""

    hami_names: bool = False
    """HAMi's names, for its dashboards. Their `_ratio` values are percentages."""
    hami_legacy_names: bool = False
    """The names that HAMi itself calls legacy. Needs `hami_names`."""


class EventSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How usage events go out."""

    enabled: bool = True
    """Off: /metrics only."""
    prefix: str = subjects.DEFAULT_PREFIX
    """First part of every subject."""
    streams: StreamSettings = StreamSettings()
    """Limits of the streams; the same for all services."""


class MonitorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set."""

    log: LogSettings = LogSettings()
    """What is logged."""
    node: NodeSettings = NodeSettings()
    """The node that is watched."""
    sampling: SamplingSettings = SamplingSettings()
    """How often is looked."""
    feedback: FeedbackSettings = FeedbackSettings()
    """Priority between the containers of a card."""
    host_pids: HostPidSettings = HostPidSettings()
    """Telling libraries the host's pids."""
    folders: FolderSettings = FolderSettings()
    """Folders of containers whose pods are gone."""
    metrics: MetricSettings = MetricSettings()
    """Which names are served beside ours."""
    observation: HttpSettings = HttpSettings(port=9394)
    """Where /healthz, /readyz and /metrics are."""
    kube: KubeSettings = KubeSettings()
    """How the API server is reached for the node's pods."""
    bus: BusSettings = BusSettings()
    """How NATS is reached for events."""
    events: EventSettings = EventSettings()
    """How usage events go out."""

    def faults(self) -> Iterator[tuple[str, str]]:
        """What is wrong across groups."""
        if self.sampling.period_seconds < 0.1:
            yield "sampling.period_seconds", "must be 0.1 or more"
        if not 0.1 <= self.feedback.period_seconds <= 10:
            yield "feedback.period_seconds", "must be 0.1 to 10: libraries believe that nobody looks after 15 seconds"
        if self.folders.remove_after_seconds < 0:
            yield "folders.remove_after_seconds", "must be 0 (never) or more"
        if self.host_pids.period_seconds < 0.1:
            yield "host_pids.period_seconds", "must be 0.1 or more"
        if self.feedback.hold_ticks < 0:
            yield "feedback.hold_ticks", "must be 0 or more"
        if self.metrics.hami_legacy_names and not self.metrics.hami_names:
            yield "metrics.hami_legacy_names", "needs metrics.hami_names"


def serving_faults(settings: MonitorSettings) -> Iterator[str]:
    """What is missing for serving, though not for other commands."""
    if not settings.node.name:
        yield "node.name must be set: the name of the Node whose containers are watched"
