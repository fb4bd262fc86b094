"""A second cluster beside the first, made and ended by its command alone: nothing of it is left."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hami_sim.cluster import LocalCluster
from hami_sim.cluster.leftovers import mount_points_below
from hami_sim.cluster.record import nodes_root
from world import POLL_SECONDS, Json

COMMAND = Path(sys.executable).with_name("hami-sim")
UP_SECONDS = 600


def hami_sim(*arguments: object, seconds: float = 300) -> subprocess.CompletedProcess[str]:
    argv = [str(COMMAND), *(str(argument) for argument in arguments)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=seconds)


async def status_once_all_runs(state: Path) -> Json:
    """On a busy machine a service may answer too late to count as ready."""
    while True:
        shown: Json = json.loads((await asyncio.to_thread(hami_sim, "status", "--state", state, "--json")).stdout)
        if shown["running"]:
            return shown
        await asyncio.sleep(POLL_SECONDS)


def processes_that_name(*folders: Path) -> list[str]:
    """Command lines and environments of processes that mention one of the folders."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        try:
            told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if any(str(folder).encode() in told for folder in folders):
            found.append(command)
    return found


async def test_up_beside_another_cluster_and_down_without_a_trace(cluster: LocalCluster, tmp_path: Path):
    state = tmp_path / ("deep" * 12) / "state"  # too long a path for the nodes' sockets
    started = await asyncio.to_thread(
        hami_sim, "up", "--state", state, "--nodes=1", "--cards=2", "--no-controllers", seconds=UP_SECONDS
    )
    try:
        assert started.returncode == 0, started.stderr
        assert "sim-0/1" in started.stdout
        second = LocalCluster.attach(state)
        places = (state, nodes_root(second.record))
        assert not places[1].is_relative_to(state)
        shown = await status_once_all_runs(state)
        assert len(shown["cards"]) == 2
        assert "kube-controller-manager" not in {service["name"] for service in shown["services"]}
        ran = await asyncio.to_thread(
            hami_sim, "run", "--state", state, "--mem-mib=500", "--", "vgpu-workload", "over-alloc"
        )
        assert (ran.returncode, json.loads(ran.stdout)["granted_mib"]) == (0, 500), ran.stderr
        again = await asyncio.to_thread(hami_sim, "up", "--state", state, "--nodes=2", seconds=UP_SECONDS)
        assert (again.returncode, "another profile" in again.stderr) == (1, True)
        assert processes_that_name(*places)
    finally:
        ended = await asyncio.to_thread(hami_sim, "down", "--state", state)
    assert ended.returncode == 0, ended.stderr
    assert processes_that_name(*places) == []
    assert mount_points_below(places) == []
    assert not any(place.exists() for place in places)
    assert all(program.is_alive() for program in cluster.programs().values())


@pytest.mark.usefixtures("kubernetes_binaries")
async def test_up_that_fails_says_why_and_ends_what_it_started(tmp_path: Path):
    profile = tmp_path / "profile.yaml"
    profile.write_text(
        "controllers: false\nnodes: [{count: 1}]\nsettings: {scheduler: {bind: {timeout_seconds: -1}}}\n"
    )
    state = tmp_path / "s"
    failed = await asyncio.to_thread(hami_sim, "up", "--state", state, "--profile", profile, seconds=UP_SECONDS)
    assert failed.returncode == 1
    assert "scheduler-0 ended while it was starting" in failed.stderr
    assert "times must be positive" in failed.stderr
    assert processes_that_name(state) == []
    assert (state / "logs" / "scheduler-0.log").exists()
    assert (await asyncio.to_thread(hami_sim, "down", "--state", state)).returncode == 0
    assert not state.exists()
