"""kube-scheduler's configuration: two profiles, and our extender for pods that name a managed resource."""

from __future__ import annotations

from pathlib import Path

import msgspec
from hami_model.device_config import default_config

SCHEDULER_NAMES = ("default-scheduler", "hami-scheduler")
MANAGED_RESOURCES = tuple(name for settings in reversed(default_config().vendors) for name in settings.resources.all)
"""Of every family that is in use where nothing is configured."""
# Far above the defaults of 50 and 100, which hold a burst of 500 pods back for ten seconds.
CLIENT_QUERIES_PER_SECOND = 500
CLIENT_BURST = 1000


class ExtenderTls(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={"server_name": "serverName", "certificate": "certFile", "key": "keyFile", "ca": "caFile"},
):
    """How kube-scheduler and an extender beyond loopback prove themselves to each other."""

    server_name: str
    """The name in the extender's certificate."""
    certificate: str
    key: str
    ca: str


def scheduler_configuration(
    kubeconfig: Path, extender_url: str | None, *, extender_tls: ExtenderTls | None = None
) -> bytes:
    """The KubeSchedulerConfiguration, JSON."""
    document: dict[str, object] = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {
            "kubeconfig": str(kubeconfig),
            "qps": CLIENT_QUERIES_PER_SECOND,
            "burst": CLIENT_BURST,
        },
        # Sampling nodes would hide cards from the extender.
        "percentageOfNodesToScore": 100,
        "profiles": [{"schedulerName": name} for name in SCHEDULER_NAMES],
    }
    if extender_url is not None:
        document["extenders"] = [_extender(extender_url, extender_tls)]
    return msgspec.json.format(msgspec.json.encode(document))


def _extender(url: str, tls: ExtenderTls | None) -> dict[str, object]:
    secured: dict[str, object] = {} if tls is None else {"tlsConfig": tls}
    return {
        "urlPrefix": url,
        "filterVerb": "filter",
        "bindVerb": "bind",
        "weight": 1,
        "nodeCacheCapable": True,
        "enableHTTPS": url.startswith("https://"),
        "httpTimeout": "30s",
        "ignorable": False,
        "managedResources": [{"name": name, "ignoredByScheduler": True} for name in MANAGED_RESOURCES],
        **secured,
    }
