"""The Node object of a simulated node and its Lease, as values. Pure."""

from datetime import datetime
from typing import Any

from hami_sim.kubelet.settings import KubeletSettings


def node_labels(settings: KubeletSettings) -> dict[str, str]:
    """What a kubelet says about itself, and the settings' labels."""
    return {
        "kubernetes.io/hostname": settings.node_name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        **settings.labels,
    }


def node_object(settings: KubeletSettings) -> dict[str, Any]:
    """To create; the status follows on its own."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": settings.node_name, "labels": node_labels(settings)},
    }


def node_status(
    settings: KubeletSettings,
    *,
    devices: dict[str, tuple[int, int]],
    log_port: int,
    mode: str,
    now: datetime,
    ready_since: datetime,
) -> dict[str, Any]:
    """`devices` is (capacity, allocatable) by resource; a resource without healthy devices is written as 0."""
    stamp, since = _stamp(now), _stamp(ready_since)
    good = {"status": "False", "lastHeartbeatTime": stamp, "lastTransitionTime": since}
    return {
        "capacity": settings.capacity | {name: str(count) for name, (count, _) in devices.items()},
        "allocatable": settings.capacity | {name: str(count) for name, (_, count) in devices.items()},
        "addresses": [
            {"type": "InternalIP", "address": settings.node_address},
            {"type": "Hostname", "address": settings.node_name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": log_port}},
        "conditions": [
            {"type": "MemoryPressure", "reason": "KubeletHasSufficientMemory", **good},
            {"type": "DiskPressure", "reason": "KubeletHasNoDiskPressure", **good},
            {"type": "PIDPressure", "reason": "KubeletHasSufficientPID", **good},
            {
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "message": f"simulated node, containers run in {mode} mode",
                "lastHeartbeatTime": stamp,
                "lastTransitionTime": since,
            },
        ],
        "nodeInfo": {
            "machineID": settings.node_name,
            "systemUUID": settings.node_name,
            "bootID": settings.node_name,
            "kernelVersion": "simulated",
            "osImage": f"hami-sim ({mode})",
            "containerRuntimeVersion": settings.runtime_version,
            "kubeletVersion": settings.kubelet_version,
            "kubeProxyVersion": settings.kubelet_version,
            "operatingSystem": "linux",
            "architecture": "amd64",
        },
    }


def lease_spec(settings: KubeletSettings, now: datetime) -> dict[str, Any]:
    """Of the Lease that says the node lives."""
    return {
        "holderIdentity": settings.node_name,
        "leaseDurationSeconds": settings.lease_duration_seconds,
        "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }


def lease_object(settings: KubeletSettings, node_uid: str, now: datetime) -> dict[str, Any]:
    """Owned by the Node, so that it goes with it."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": settings.node_name, "uid": node_uid}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": settings.node_name, "ownerReferences": [owner]},
        "spec": lease_spec(settings, now),
    }


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
