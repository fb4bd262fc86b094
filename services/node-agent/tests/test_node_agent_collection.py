"""What is left of pods that are gone, on real folders."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

from hami_model.limits_page import LimitsPage
from hami_node_agent.adapters.collection import Collection
from hami_node_agent.adapters.host_files import CdiFolder, CheckpointFile, HostFilesError
from hami_node_agent.adapters.host_folder import HostFolder
from hami_node_agent.core.grant import ContainerFiles, HostLayout
from hami_node_agent.core.handed_out import HandedOut
from hami_sim.manual_clock import ManualClock
from kubelet_api.checkpoint import CheckpointView

UIDS = [f"11111111-2222-3333-4444-{number:012}" for number in range(8)]


class NoPods:
    def all_cached(self) -> tuple[()]:
        return ()

    async def read_all(self) -> tuple[()]:
        return ()


class NothingHeld:
    async def read(self) -> CheckpointView:
        return CheckpointView(entries=(), registered_devices={})


class StillFilled(HostFolder):
    """One pod's processes make files as fast as they are removed."""

    async def remove_pod(self, pod_uid: str) -> None:
        if pod_uid == UIDS[3]:
            raise HostFilesError("more and more files appear while they are removed")
        await super().remove_pod(pod_uid)


async def test_a_folder_that_does_not_go_keeps_no_other(tmp_path: Path) -> None:
    layout = HostLayout(hook_path=str(tmp_path / "hook"), lock_dir=str(tmp_path / "lock"))
    (tmp_path / "libvgpu.so").write_text("library")
    files, cdi = StillFilled(layout, "v1"), CdiFolder(tmp_path / "cdi", [])
    files.install(str(tmp_path / "libvgpu.so"))
    cdi.prepare()
    for uid in UIDS:
        files.prepare_container(
            ContainerFiles(pod_uid=uid, container="main", page=LimitsPage(region_file="/r", cards=()))
        )
    collection = Collection(
        HandedOut(),
        ledger=cast("Any", NoPods()),
        cdi=cdi,
        files=files,
        own=CheckpointFile(tmp_path / "handed-out.json"),
        checkpoint=cast("Any", NothingHeld()),
        forget=lambda _uid: None,
        pods_synced=asyncio.Event(),
        clock=ManualClock(),
    )
    await collection.collect()
    assert await files.owners() == {UIDS[3]}
