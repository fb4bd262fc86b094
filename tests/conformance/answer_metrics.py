"""What the monitor serves under HAMi's metric names."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from hami_model import device_config, kube
from hami_monitor.adapters.exposition import families
from hami_monitor.adapters.region_files import RegionFiles
from hami_monitor.core.catalogue import HAMI_LAST_KERNEL, LEGACY_LAST_KERNEL
from hami_monitor.core.hami_series import hami_series
from hami_monitor.core.host import HostCard, HostReading
from hami_monitor.core.pods import monitored_pod
from hami_monitor.core.sample import take_sample
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector
from region_store import lay_out

NOW_SECONDS = 1.8e9


def answer(row: dict[str, Any]) -> dict[str, Any]:
    node = row["env"]["NODE_NAME"]
    config = device_config.default_config()
    pods = [monitored_pod(msgspec.convert(found, kube.Pod), config) for found in row["pods"]]
    with TemporaryDirectory() as root:
        for container in row["containers"]:
            lay_out(Path(root) / container["dir"], container["files"], row["vectors_root"])
        folders = RegionFiles(Path(root)).scan()
    sample = take_sample(node=node, at_seconds=NOW_SECONDS, pods=pods, folders=folders, host=_host(row), traces={})
    found = families(
        (spec, labels, value)
        for spec, labels, value in hami_series(sample, version="", legacy=row["legacy_metrics"])
        if spec.names == "hami" or row["legacy_metrics"]
    )
    text = generate_latest(_registry(found)).decode()
    elapsed = (f"{HAMI_LAST_KERNEL.name}{{", f"{LEGACY_LAST_KERNEL.name}{{")
    lines = [
        f"{line.rpartition(' ')[0]} <NOW-LAST_KERNEL_TIME>" if line.startswith(elapsed) else line
        for line in text.splitlines()
        if not line.startswith("# HELP")
    ]
    loaded = [f"{folder.owner.pod_uid}_{folder.owner.container}" for folder in folders if folder.region is not None]
    return {"loaded": loaded, "gather_error": None, "text": "".join(f"{line}\n" for line in lines)}


def _registry(found: list[Any]) -> CollectorRegistry:
    class Fixed(Collector):
        def collect(self) -> list[Any]:
            return found

    registry = CollectorRegistry()
    registry.register(Fixed())
    return registry


def _host(row: dict[str, Any]) -> HostReading:
    if row["nvml_init"] != "SUCCESS":
        return HostReading(problem=row["nvml_init"])
    return HostReading(cards=tuple(_card(device) for device in row["nvml_devices"]))


def _card(device: dict[str, Any]) -> HostCard:
    knows_memory = device.get("mem_query", "SUCCESS") == "SUCCESS"
    knows_utilisation = device.get("util_query", "SUCCESS") == "SUCCESS"
    return HostCard(
        id=device["uuid"],
        index=device["index"],
        model=device["name"],
        memory_total_bytes=device["mem_bytes"] if knows_memory else None,
        memory_used_bytes=device["used_bytes"] if knows_memory else None,
        utilisation_percent=device["util_gpu"] if knows_utilisation else None,
        memory_controller_percent=device["util_mem"] if knows_utilisation else None,
    )
