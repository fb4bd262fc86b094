"""Which folders of containers the monitor takes away, and which regions it reads."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hami_chassis.clock import SystemClock
from hami_model import device_config, kube
from hami_monitor.adapters.container_folders import ContainerFolders
from hami_monitor.adapters.region_files import RegionFiles
from hami_monitor.core.container_folder import FolderOwner, folder_name
from hami_monitor.core.pods import MonitoredPod, monitored_pod
from hami_monitor.folder_removal import FolderRemoval
from msgspec import convert
from region_store import lay_out

DEFAULT_SECONDS = 300.0
SECONDS = {"s": 1, "m": 60, "h": 3600}


class Pods:
    """Of the node, by watch and by list."""

    def __init__(self, pods: Iterable[MonitoredPod]) -> None:
        self._pods = list(pods)

    def values(self) -> list[MonitoredPod]:
        return self._pods

    async def kubelet_uids(self) -> set[str]:
        return {pod.kubelet_uid for pod in self._pods}


class NoProcesses:
    def using(self, _owners: Iterable[FolderOwner]) -> set[FolderOwner]:
        return set()


def answer(row: dict[str, Any]) -> dict[str, Any]:
    pods = Pods(
        monitored_pod(convert(pod, kube.Pod), device_config.default_config())
        for pod in row["pods"]
        if pod["spec"].get("nodeName") == row["env"]["NODE_NAME"]
    )
    with TemporaryDirectory() as folder:
        root = Path(folder)
        for container in row["containers"]:
            lay_out(root / container["dir"], container["files"], row["vectors_root"])
            changed = time.time() - container.get("mtime_age_seconds", 0)
            os.utime(root / container["dir"], (changed, changed))
        removal = FolderRemoval(
            keep_seconds=_seconds(row["env"].get("HAMI_RESYNC_INTERVAL")),
            folders=ContainerFolders(root),
            users=NoProcesses(),
            pods=pods,
            pods_known=asyncio.Event(),
            pod_list=pods,
            clock=SystemClock(),
        )
        asyncio.run(removal.look())
        known = asyncio.run(pods.kubelet_uids())
        found = [one for one in RegionFiles(root).scan() if one.region is not None and one.owner.pod_uid in known]
        return {
            "loaded": sorted(folder_name(one.owner) for one in found),
            "dirs_after": sorted(path.name for path in root.iterdir()),
        }


def _seconds(interval: str | None) -> float:
    """HAMi's word for it; what it cannot read is its default."""
    if interval is None or not re.fullmatch(r"([0-9]+[smh])+", interval):
        return DEFAULT_SECONDS
    return float(sum(int(number) * SECONDS[unit] for number, unit in re.findall(r"([0-9]+)([smh])", interval)))
