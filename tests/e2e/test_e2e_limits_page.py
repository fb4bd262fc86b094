"""The limits page rules, in both container modes: nothing that a tenant writes changes a limit, and the page does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hami_model import env, limits_page
from hami_model.limits_page import LimitsPage
from hami_node_agent.adapters.limits_file import LimitsFile, read
from msgspec.structs import replace
from world import WORKLOAD, Json, World

GROW = f"{WORKLOAD} over-alloc --max-mib 9000"
REGION = '"$CUDA_DEVICE_MEMORY_SHARED_CACHE"'
DRIVER_NAMES = ("PATH", "LD_PRELOAD", "LD_LIBRARY_PATH", env.SIM_DRIVER, env.SIM_STATE, env.SIM_VISIBLE_CARDS)
MIB = 1 << 20


def page_of(world: World, pod: Json, container: str = "main") -> Path:
    place = world.cluster.node_layout(pod["spec"]["nodeName"])
    return place.hook / "vgpu" / "limits" / f"{pod['metadata']['uid']}_{container}" / limits_page.layout.FILE


def overwritten(offset: int, value: str) -> str:
    """Shell: eight bytes of the region, written by the tenant."""
    return f"{WORKLOAD} info && printf '{value}' | dd of={REGION} bs=1 seek={offset} conv=notrunc 2> /dev/null"


@pytest.mark.parametrize(
    "before",
    [
        pytest.param("true", id="nothing"),
        pytest.param("export CUDA_DEVICE_MEMORY_LIMIT_0=9000m CUDA_DEVICE_MEMORY_LIMIT=9000m", id="another limit"),
        pytest.param("unset CUDA_DEVICE_MEMORY_LIMIT_0 CUDA_DEVICE_SM_LIMIT", id="no limit"),
        pytest.param("export CUDA_DISABLE_CONTROL=true", id="control off"),
        pytest.param("export CUDA_DEVICE_MEMORY_SHARED_CACHE=/tmp/other.cache HAMI_HANDOFF=", id="another region"),
        pytest.param(overwritten(1600, r"\0\0\0\0\377\0\0\0"), id="the limit in the region"),
        pytest.param(f"{WORKLOAD} info && truncate -s 0 {REGION}", id="an emptied region"),
        pytest.param(f"{WORKLOAD} info && rm {REGION}", id="no region"),
    ],
)
async def test_nothing_that_a_tenant_writes_changes_its_limit(world: World, before: str):
    await world.create_pod("grows", ("sh", "-c", f"{before}; exec {GROW}"), gpu=1, gpumem=1500)
    assert await world.granted_mib("grows") == 1500


async def test_nor_does_an_environment_taken_away(world: World):
    """But for what stands for the driver and, without mounts of its own, for /etc/ld.so.preload."""
    kept = " ".join(f'{name}="${name}"' for name in DRIVER_NAMES)
    await world.create_pod("grows", ("sh", "-c", f"exec env -i {kept} {GROW}"), gpu=1, gpumem=1500)
    assert await world.granted_mib("grows") == 1500


async def test_the_page_says_what_the_pod_was_promised(world: World):
    command = (WORKLOAD, "alloc", "--mib", "10", "--hold-until-signal")
    await world.create_pod("holds", command, gpu=1, gpumem=2000, gpucores=30)
    found = read(page_of(world, await world.until_phase("holds", "Running")))
    (card,) = found.page.cards
    assert (card.memory_limit_bytes, card.cores_percent) == (2000 * MIB, 30)
    assert (found.page.policy, found.page.control) == (limits_page.Policy.FORCE, limits_page.Control.HELD)


async def test_a_change_of_the_page_changes_the_limit(world: World):
    command = ("sh", "-c", f"while :; do {GROW}; sleep 0.2; done")
    await world.create_pod("grows", command, gpu=1, gpumem=1500)
    await world.until_phase("grows", "Running")
    path = page_of(world, await world.pod("grows"))
    await _granted_at_last(world, 1500)
    for memory_mib in (700, 1800):
        await asyncio.to_thread(_change, path, memory_mib)
        await _granted_at_last(world, memory_mib)


async def _granted_at_last(world: World, wanted_mib: int) -> None:
    while True:
        granted = [line["granted_mib"] for line in await world.output("grows") if line["event"] == "refused"]
        if granted and granted[-1] == wanted_mib:
            return
        await asyncio.sleep(0.1)


def _change(path: Path, memory_mib: int) -> None:
    page: LimitsPage = read(path).page
    cards = tuple(replace(card, memory_limit_bytes=memory_mib * MIB) for card in page.cards)
    with LimitsFile(path) as file:
        assert file.change(replace(page, cards=cards))
