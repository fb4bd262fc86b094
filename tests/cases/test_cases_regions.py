"""Cases of region files: from two containers of one pod to the monitor, with the real library in real processes."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
import yaml
from case_cluster import Cluster, cluster, runs
from hami_sim.loopback_ports import choose_free_ports
from hami_sim.processes import start_program, stop_program
from node_agent_world import NODE, REPOSITORY, World, card_id
from scheduler_service import eventually, series

BUILD = REPOSITORY / "libvgpu" / "build"


def _with_library(world: World) -> None:
    world.configuration["files"]["library_file"] = str(BUILD / "lib" / "libvgpu.so")
    world.kubelet_settings = msgspec.structs.replace(world.kubelet_settings, programs_dirs=(str(BUILD / "bin"),))


@asynccontextmanager
async def _monitor(found: Cluster) -> AsyncIterator[str]:
    """URL of a running monitor of the node."""
    world = found.world
    (port,) = choose_free_ports(1)
    file = world.root / "monitor.yaml"
    settings = {
        "node": {
            "name": NODE,
            "hook_path": world.configuration["files"]["hook_path"],
            "driver_library_folder": str(BUILD / "sim"),
        },
        "sampling": {"period_seconds": 0.2},
        "observation": {"port": port},
        "kube": world.configuration["kube"],
        "bus": {"servers": []},
    }
    file.write_text(yaml.safe_dump(settings))
    program = start_program(
        "monitor",
        [sys.executable, "-m", "hami_monitor.main", "serve", "--config", file],
        log_path=world.root / "monitor.log",
        process_file=world.root / "monitor.json",
        environment={**os.environ, "HAMI_SIM_DRIVER": str(world.description), "NO_PROXY": "*"},
    )
    try:
        yield f"http://127.0.0.1:{port}/metrics"
    finally:
        await stop_program(program)


@pytest.mark.case("MUL-05")
async def test_two_containers_of_a_pod_have_a_folder_each_and_both_are_reported() -> None:
    async with cluster(prepare=_with_library) as found:
        hold = "exec vgpu-workload alloc --mib {} --hold-until-signal"
        document = await found.create(
            "p", runs("a", 2000, script=hold.format(100)), runs("b", 3000, script=hold.format(200))
        )
        uid = document["metadata"]["uid"]
        folder = found.world.root / "hook" / "vgpu" / "containers"
        expected = {"a": (2000, 100), "b": (3000, 200)}

        def regions() -> dict[str, int]:
            return {each.name: len(list(each.glob("*.cache"))) for each in folder.iterdir()}

        await eventually(lambda: folder.is_dir() and regions() == {f"{uid}_a": 1, f"{uid}_b": 1})
        async with _monitor(found) as url, aiohttp.ClientSession() as client:

            async def both_are_reported() -> bool:
                try:
                    async with client.get(url) as response:
                        text = await response.text()
                except aiohttp.ClientConnectionError:
                    return False
                seen = {
                    name: tuple(
                        series(text, metric, pod="p", container=name, card=_card_of(found, name))
                        for metric in ("hami_slice_memory_promised_bytes", "hami_slice_memory_used_bytes")
                    )
                    for name in expected
                }
                return seen == {name: tuple(mib * 2.0**20 for mib in pair) for name, pair in expected.items()}

            await eventually(both_are_reported)


def _card_of(found: Cluster, container_name: str) -> str:
    slots = found.allocated("p").split(";")
    card = slots[("a", "b").index(container_name)].partition(",")[0]
    assert card in (card_id(0), card_id(1))
    return card
