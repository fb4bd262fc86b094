"""A node without a driver, as a whole process: by `nvml.required` the agent ends, or idles until it is started anew."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from node_agent_world import SIMULATED_DRIVER, World, new_world, until


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with new_world(cards=1) as made:
        made.configuration["nvml"]["library_file"] = str(made.root / "driver" / "libnvidia-ml.so.1")
        yield made


def install_driver(world: World) -> None:
    library = Path(world.configuration["nvml"]["library_file"])
    library.parent.mkdir()
    shutil.copy(SIMULATED_DRIVER / library.name, library)


def answer(url: str) -> int:
    with urlopen(url, timeout=30) as response:  # noqa: S310  # of the agent itself
        return int(response.status)


async def test_fail_on_init_error_false_idles_says_what_to_do_and_works_once_started_anew(world: World) -> None:
    async with world.kubelet():
        idle = world.start_agent(FAIL_ON_INIT_ERROR="false")
        await until(lambda: world.agent_lines("listening"), "the agent to serve")
        (line,) = world.agent_lines("idle-without-driver")
        assert "libnvidia-ml.so.1" in line["reason"]
        assert line["remedy"] == "start the node-agent anew once the driver is there"
        url = world.agent_lines("listening")[0]["url"]
        for path in ("/healthz", "/readyz", "/metrics"):
            assert await asyncio.to_thread(answer, url + path) == 200
        assert world.annotation_of_node() is None
        assert idle.is_alive()

        await world.stop_agent()
        install_driver(world)
        world.start_agent(FAIL_ON_INIT_ERROR="false")
        await world.allocatable(10)
        assert len(world.register()) == 1


async def test_by_default_the_agent_ends_and_says_why(world: World) -> None:
    agent = world.start_agent()
    await until(lambda: not agent.is_alive(), "the agent to end")
    assert "libnvidia-ml.so.1" in world.agent_log().read_text()
