"""Folders of containers on a node, whatever an earlier stand-in left of them."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from hami_sim.kubelet import end_containers, processes
from hami_sim.kubelet.processes import ContainerProcesses
from hami_sim.kubelet.shim_server import ShimServer, has_shim


def test_what_a_removal_cut_short_left_is_no_container_and_goes_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = tmp_path / "containers/uid/main/0"
    (attempt / "scratch").mkdir(parents=True)
    (attempt / "shim.json").write_text("{}")

    def cut_short(_: Path) -> None:
        raise InterruptedError

    with monkeypatch.context() as killed:
        killed.setattr(processes, "remove_tree", cut_short)
        ContainerProcesses(tmp_path / "containers", ShimServer()).remove_pod("uid")
    next_one = ContainerProcesses(tmp_path / "containers", ShimServer())
    assert next_one.pods() == []
    assert list(tmp_path.rglob("shim.json")) != []
    next_one.give_up_unstarted()
    assert list(tmp_path.rglob("shim.json")) == []


async def test_a_process_that_its_shim_is_just_starting_is_ended_too(tmp_path: Path, shims: ShimServer) -> None:
    attempt = tmp_path / "containers/uid/main/0"
    attempt.mkdir(parents=True)
    os.mkfifo(attempt / "spec.json")  # the shim is there, and waits for what it is to start
    starting = asyncio.create_task(shims.start_shim(attempt))
    while not has_shim(attempt):  # noqa: ASYNC110  # files tell nobody
        await asyncio.sleep(0.01)
    ending = asyncio.create_task(end_containers(tmp_path))
    await asyncio.sleep(0)  # it has looked at the container, of which nothing runs yet
    spec = {"argv": ["/bin/sleep", "3600"], "environment": {}, "working_dir": "/", "binds": [], "scratch": ""}
    await asyncio.to_thread((attempt / "spec.json").write_text, json.dumps(spec))
    await starting
    await ending
    assert ContainerProcesses(tmp_path / "containers", shims).pods() == []
