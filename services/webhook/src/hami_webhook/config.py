"""Settings of the webhook."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from hami_chassis.bus import BusSettings
from hami_chassis.http import HttpSettings
from hami_chassis.kube import KubeSettings
from hami_chassis.log import LogSettings
from hami_chassis.tls import TlsSettings
from hami_model.events import subjects
from hami_model.events.streams import StreamSettings


class AdmissionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How pods are treated."""

    device_config_file: str = ""
    """HAMi's device configuration (YAML). Empty: every family with its default resource names."""
    enabled_families: list[str] = []
    """Optional families that are in use, such as `ascend` (HAMi's --enable-ascend); scheduler and webhook alike."""
    scheduler_name: str = "hami-scheduler"
    """Scheduler that pods with cards are given to; empty: pods are completed but not routed."""
    force_overwrite_default_scheduler: bool = True
    """The API server fills in `default-scheduler`, so that name is no wish of the user."""
    allow_privileged: bool = False
    """Lets privileged containers into pods that ask for cards; nothing holds such a container to its share."""
    explain_in_message: bool = True
    """Adds to HAMi's short messages what the user can change."""
    body_limit_bytes: int = 8 * 1024 * 1024
    """Larger requests get 413."""


class EventSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How admission events go out."""

    prefix: str = subjects.DEFAULT_PREFIX
    """First part of every subject."""
    instance: str = ""
    """Name of this replica in the source of its events; empty takes the host name."""
    streams: StreamSettings = StreamSettings()
    """Limits of the streams; the same for all services."""


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set."""

    log: LogSettings = LogSettings()
    """What is logged."""
    admission: AdmissionSettings = AdmissionSettings()
    """How pods are treated."""
    https: HttpSettings = HttpSettings(port=9443)
    """Where reviews are taken."""
    tls: TlsSettings = TlsSettings()
    """The certificate of that server; with `client_ca_file` only API servers that show a certificate are answered."""
    observation: HttpSettings = HttpSettings(port=9396)
    """Where /healthz, /readyz and /metrics are."""
    kube: KubeSettings = KubeSettings()
    """How the API server is reached for pods and quotas."""
    bus: BusSettings = BusSettings()
    """How NATS is reached for events."""
    events: EventSettings = EventSettings()
    """How admission events go out."""

    def faults(self) -> Iterator[tuple[str, str]]:
        """What is wrong across groups."""
        if self.admission.body_limit_bytes < 1:
            yield "admission.body_limit_bytes", "must be positive"


def serving_faults(settings: WebhookSettings) -> Iterator[str]:
    """What is missing for serving, though not for other commands."""
    for name in ("cert_file", "key_file"):
        if not getattr(settings.tls, name):
            yield f"tls.{name} must be set: the API server calls webhooks by HTTPS only"
