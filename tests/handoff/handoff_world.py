"""What tests of the hand-off do to a node, in their words."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hami_sim.kubelet import end_containers
from node_agent_world import World, card_id, container, slot, until

LIMIT = "CUDA_DEVICE_MEMORY_LIMIT_0"
HOLD = "while :; do sleep 0.05; done"

__all__ = ["HOLD", "LIMIT", "card_id", "container", "slot", "until"]


def recording(world: World, name: str = "seen", then: str = HOLD) -> str:
    """A script that appends its environment's memory limit to a file at each start."""
    return f'printf "%s\\n" "${LIMIT}" >> {world.root}/{name}; {then}'


def recorded(world: World, name: str = "seen") -> list[str]:
    """The limits with which the script was started, in order."""
    file = world.root / name
    return file.read_text().split() if file.exists() else []


async def has_recorded(world: World, expected: list[str], name: str = "seen") -> None:
    """The script was started so often, each time with the limit that is expected. It runs before it has written."""
    await until(lambda: len(recorded(world, name)) >= len(expected), f"{len(expected)} starts of {name}")
    assert recorded(world, name) == expected


def gate(world: World, name: str) -> str:
    """A script's part that waits until `open_gate`."""
    return f"while [ ! -e {world.root}/{name} ]; do sleep 0.05; done"


def open_gate(world: World, name: str) -> None:
    (world.root / name).touch()


async def kill_container(world: World, pod: str, container_name: str = "main") -> None:
    """Its process ends, as by the kernel's memory killer. What it has said may be there before its pid is."""
    uid = world.pod(pod)["metadata"]["uid"]
    folder = world.root / "kl" / "containers" / uid / container_name
    newest = max((path for path in folder.iterdir()), key=lambda path: int(path.name))
    state = await until(lambda: json.loads((newest / "state.json").read_text()), f"the pid of {pod}")
    os.kill(state["pid"], signal.SIGKILL)


async def reboot(world: World) -> None:
    """While kubelet and agent are down: no process runs, no sandbox is left, what lay in memory is gone."""
    await end_containers(world.root / "kl")
    for path in (world.root / "cdi").iterdir():
        path.unlink()
    shutil.rmtree(world.root / "kl" / "containers", ignore_errors=True)


@asynccontextmanager
async def node(
    world: World, *, allocatable: int = 20, pods_wait: bool = False, agent_lags: bool = False
) -> AsyncIterator[World]:
    """Agent and kubelet run; they end with the block, and containers go on.

    `pods_wait`: kubelet hears of pods only when its plugin is there. After a reboot it would refuse them for good else.
    `agent_lags`: the agent's watch of pods has brought nothing yet when kubelet asks.
    """
    first_list = world.fake.hold("list", "pods") if agent_lags else None
    world.start_agent()
    if first_list is not None:
        await first_list.reached.wait()
    telling = asyncio.create_task(_tell_of_pods(world, allocatable)) if pods_wait else None
    async with world.kubelet(allocatable=allocatable):
        await world.agent_serves()
        if telling is not None:
            await telling
        yield world
    await world.kill_agent()


async def _tell_of_pods(world: World, allocatable: int) -> None:
    world.fake.fail("list", "pods", 503, times=10**6)
    await until(lambda: world.agent_lines("registered"), "the registration with kubelet")
    await world.allocatable(allocatable)
    world.fake.clear_faults()


def specifications(world: World) -> list[Path]:
    return sorted((world.root / "cdi").glob("*.json"))


def book(world: World) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((world.root / "state" / "handed-out.json").read_text())["pods"]
    return found


def folders(world: World) -> list[str]:
    return sorted(path.name for path in (world.root / "hook" / "vgpu" / "containers").iterdir())


async def settled(world: World, name: str) -> None:
    """The pod runs and its outcome is written."""
    await world.runs(name)
    await until(lambda: world.phase(name) == "success", f"the phase of {name}")
