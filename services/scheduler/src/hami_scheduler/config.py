"""Settings of the scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec
from hami_chassis.bus import BusSettings
from hami_chassis.http import HttpSettings
from hami_chassis.kube import KubeSettings, LeaderSettings
from hami_chassis.log import LogSettings
from hami_chassis.tls import TlsSettings
from hami_model.events import subjects
from hami_model.events.streams import StreamSettings

NODE_POLICIES = ("binpack", "spread", "fgd")
CARD_POLICIES = ("binpack", "spread", "mutex", "numa", "topology-aware", "fgd")
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
EXTENDER_TIMEOUT_SECONDS = 30.0
"""httpTimeout of the extender in kube-scheduler's configuration: a bind call ends before it."""


class PlacementSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How pods are placed."""

    device_config_file: str = ""
    """HAMi's device configuration (YAML). Empty: every family with its default resource names."""
    enabled_families: list[str] = []
    """Optional families that are in use, such as `ascend` (HAMi's --enable-ascend); scheduler and webhook alike."""
    node_policy: str = "binpack"
    """Which of the fitting nodes: binpack, spread or fgd. A pod's annotation wins."""
    card_policy: str = "spread"
    """Which of the fitting cards: binpack, spread, mutex, numa, topology-aware, fgd, or several with commas. A pod's
    annotation wins."""
    node_selector: dict[str, str] = {}
    """Only nodes with these labels take part. Empty: all."""
    annotate_at: Literal["bind", "filter"] = "bind"
    """`bind`: the Binding writes the allocation. `filter`: at once, as HAMi does, for those that read it in between."""
    record_steps: int = 0
    """So many of the engine's last changes and decisions are kept, with the state before them, for
    `hami-scheduler snapshot --recorded`. 0: none. Each step then costs the engine twice."""


class BindSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How pods are bound."""

    timeout_seconds: float = 8.0
    """Longest time of the Binding itself. A new leader waits so long before it decides."""
    lock_wait_seconds: float = 20.0
    """Longest wait for the lock of a node whose hand-off is `lock`."""


class ExtenderSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where kube-scheduler asks."""

    http: HttpSettings = HttpSettings(port=9398)
    """Where /filter and /bind are. Beyond loopback only with client certificates: who may ask may bind pods."""
    tls: TlsSettings = TlsSettings()
    """Certificate of that server; with `client_ca_file` only callers with a certificate are answered."""
    filter_limit_bytes: int = 8 * 1024 * 1024
    """Larger filter requests get 413."""
    bind_limit_bytes: int = 64 * 1024
    """Larger bind requests get 413."""


class ElectionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who decides where several replicas run."""

    enabled: bool = True
    """False: this process is certainly the only scheduler."""
    lease: LeaderSettings = LeaderSettings()
    """The Lease."""
    pod_namespace: str = ""
    """Namespace of this pod. With `pod_name`: the leader labels the pods, and a Service selects by the label."""
    pod_name: str = ""
    """Name of this pod; empty: no pods are labelled."""
    pod_selector: str = "app.kubernetes.io/component=hami-scheduler"
    """Label selector of the scheduler's pods."""


class EventSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How events go out."""

    prefix: str = subjects.DEFAULT_PREFIX
    """First part of every subject."""
    instance: str = ""
    """Name of this replica in the source of its events; empty takes the host name."""
    component: str = "hami-scheduler"
    """Source component of Kubernetes Events."""
    streams: StreamSettings = StreamSettings()
    """Limits of the streams; the same for all services."""


class UpkeepSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens by the clock."""

    node_pass_seconds: float = 15.0
    """How often nodes are looked at for handshakes that have grown old."""
    expiry_pass_seconds: float = 5.0
    """How often old reservations are looked for."""
    compare_seconds: float = 60.0
    """How often the book is compared with the pods."""
    wake_seconds: float = 1.0
    """A rejected pod is woken at most so often."""


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which metrics there are."""

    per_card: bool = True
    """Series for every card. A scrape of tens of thousands of cards takes seconds: turn it off there."""
    hami_names: bool = False
    """Adds the metrics under the names that HAMi gives them, for existing dashboards."""


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set."""

    log: LogSettings = LogSettings()
    """What is logged."""
    placement: PlacementSettings = PlacementSettings()
    """How pods are placed."""
    bind: BindSettings = BindSettings()
    """How pods are bound."""
    extender: ExtenderSettings = ExtenderSettings()
    """Where kube-scheduler asks."""
    election: ElectionSettings = ElectionSettings()
    """Who decides where several replicas run."""
    observation: HttpSettings = HttpSettings(port=9395)
    """Where /healthz, /readyz and /metrics are."""
    metrics: MetricsSettings = MetricsSettings()
    """Which metrics there are."""
    kube: KubeSettings = KubeSettings()
    """How the API server is reached."""
    bus: BusSettings = BusSettings()
    """How NATS is reached."""
    events: EventSettings = EventSettings()
    """How events go out."""
    upkeep: UpkeepSettings = UpkeepSettings()
    """What happens by the clock."""

    def faults(self) -> Iterator[tuple[str, str]]:
        """What is wrong across groups."""
        extender, bind = self.extender, self.bind
        if extender.http.host not in _LOOPBACK and not extender.tls.client_ca_file:
            yield (
                "extender.http.host",
                f"{extender.http.host} can be reached by others, who could bind pods: set extender.tls.client_ca_file",
            )
        if extender.tls.client_ca_file and not extender.tls.cert_file:
            yield "extender.tls.cert_file", "is needed with client_ca_file"
        for name in ("filter_limit_bytes", "bind_limit_bytes"):
            if getattr(extender, name) < 1:
                yield f"extender.{name}", "must be positive"
        if bind.timeout_seconds <= 0 or bind.lock_wait_seconds < 0:
            yield "bind", "times must be positive"
        elif bind.timeout_seconds + bind.lock_wait_seconds >= EXTENDER_TIMEOUT_SECONDS:
            yield (
                "bind.lock_wait_seconds",
                f"with timeout_seconds it must stay below the extender's {EXTENDER_TIMEOUT_SECONDS:g} s",
            )
        yield from _policy_faults(self.placement)
        if self.placement.record_steps < 0:
            yield "placement.record_steps", "must not be negative"
        for name in ("node_pass_seconds", "expiry_pass_seconds", "compare_seconds", "wake_seconds"):
            if getattr(self.upkeep, name) <= 0:
                yield f"upkeep.{name}", "must be positive"


def _policy_faults(placement: PlacementSettings) -> Iterator[tuple[str, str]]:
    """A misspelt word in an annotation has HAMi's meaning; in a setting it is a mistake of the operator."""
    if placement.node_policy not in NODE_POLICIES:
        yield "placement.node_policy", f"is {placement.node_policy!r}; there are {', '.join(NODE_POLICIES)}"
    unknown = [word for word in placement.card_policy.split(",") if word.strip() not in CARD_POLICIES]
    if unknown:
        yield "placement.card_policy", f"names {', '.join(map(repr, unknown))}; there are {', '.join(CARD_POLICIES)}"
