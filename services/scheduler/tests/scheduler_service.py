"""A running scheduler on real sockets, as tests drive it."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from hami_chassis.bus import BusSettings
from hami_chassis.http import HttpSettings
from hami_chassis.kube import KubeSettings, LeaderSettings
from hami_chassis.run import RootTask, Stage
from hami_scheduler.config import (
    BindSettings,
    ElectionSettings,
    EventSettings,
    ExtenderSettings,
    SchedulerSettings,
    UpkeepSettings,
)
from hami_scheduler.main import build
from hami_sim.loopback_ports import choose_free_ports

Json = dict[str, Any]
HOST = "127.0.0.1"


def settings_for(
    kubeconfig: str, *, nats: str = "", elect: bool = False, lease_seconds: float = 60.0, **changes: Any
) -> SchedulerSettings:
    """Settings of one replica on free ports, with times that suit a test.

    No lease is lost because the machine stands still for a while; who waits for one to run out makes it short.
    """
    extender_port, observation_port = choose_free_ports(2)
    settings = SchedulerSettings(
        extender=ExtenderSettings(http=HttpSettings(port=extender_port)),
        observation=HttpSettings(port=observation_port),
        kube=KubeSettings(kubeconfig=kubeconfig, timeout_seconds=60.0),
        bus=BusSettings(servers=(nats,) if nats else ()),
        bind=BindSettings(timeout_seconds=20.0, lock_wait_seconds=2.0),
        election=ElectionSettings(
            enabled=elect,
            lease=LeaderSettings(lease_seconds=lease_seconds, renew_seconds=lease_seconds * 0.9, retry_seconds=0.2),
        ),
        events=EventSettings(instance=f"s-{extender_port}"),
        upkeep=UpkeepSettings(wake_seconds=0.2, node_pass_seconds=0.5, expiry_pass_seconds=0.2, compare_seconds=0.5),
    )
    return msgspec.structs.replace(settings, **changes)


class Scheduler:
    """One replica, seen from outside."""

    def __init__(self, settings: SchedulerSettings, tasks: Sequence[tuple[RootTask, asyncio.Task[None]]]) -> None:
        self.settings = settings
        self.url = f"http://{HOST}:{settings.extender.http.port}"
        self._observed = f"http://{HOST}:{settings.observation.port}"
        self._tasks = tasks

    async def post(self, verb: str, body: bytes | object) -> tuple[int, Json]:
        data = io.BytesIO(body if isinstance(body, bytes) else msgspec.json.encode(body))
        async with aiohttp.ClientSession() as client, client.post(f"{self.url}/{verb}", data=data) as response:
            return response.status, msgspec.json.decode(await response.read())

    async def filter(self, pod: Json, nodes: list[str]) -> Json:
        status, answer = await self.post("filter", {"Pod": pod, "Nodes": None, "NodeNames": nodes})
        assert status == 200, answer
        return answer

    async def bind(self, pod: Json, node: str) -> Json:
        metadata = pod["metadata"]
        status, answer = await self.post(
            "bind",
            {
                "PodName": metadata["name"],
                "PodNamespace": metadata["namespace"],
                "PodUID": metadata["uid"],
                "Node": node,
            },
        )
        assert status == 200, answer
        return answer

    async def observe(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as client, client.get(self._observed + path) as response:
            return response.status, await response.text()

    async def metric(self, name: str) -> float:
        """The value of one series; 0 where it is not there yet."""
        _, text = await self.observe("/metrics")
        lines = [line for line in text.splitlines() if line.startswith(f"{name} ")]
        return float(lines[0].rpartition(" ")[2]) if lines else 0.0

    async def in_charge(self) -> bool:
        try:
            return await self.metric("hami_scheduler_in_charge") == 1.0
        except aiohttp.ClientConnectionError:
            return False

    async def stop(self) -> None:
        """As a process stops: stage by stage."""
        for stage in Stage:
            members = [task for root, task in self._tasks if root.stage is stage]
            for task in members:
                task.cancel()
            if members:
                await asyncio.wait(members)

    async def kill(self) -> None:
        """As a crash: nothing is given back. (The election's own clean-up is left out.)"""
        for _, task in self._tasks:
            task.cancel()
        await asyncio.wait([task for _, task in self._tasks])

    def check(self) -> None:
        """Raises what a root task raised."""
        for _, task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()


@asynccontextmanager
async def running(settings: SchedulerSettings, *, wait: bool = True) -> AsyncIterator[Scheduler]:
    """A replica; returns once it is in charge, unless told not to wait."""
    async with AsyncExitStack() as stack:
        roots = await build(settings, stack)
        tasks = [(root, asyncio.create_task(root.run(), name=root.name)) for root in roots]
        scheduler = Scheduler(settings, tasks)
        try:
            if wait:
                await eventually(scheduler.in_charge)
            yield scheduler
            scheduler.check()
        finally:
            await scheduler.stop()


async def eventually(holds: Callable[[], Awaitable[bool]] | Callable[[], bool]) -> None:
    """Returns once it holds; the time limit is that of the test."""
    while True:
        found = holds()
        if found if isinstance(found, bool) else await found:
            return
        await asyncio.sleep(0.02)


def series(text: str, name: str, **labels: str) -> float | None:
    """The value of one series of an exposition; None where it is not there."""
    for line in text.splitlines():
        if line.startswith((f"{name} ", f"{name}{{")) and all(
            f'{key}="{value}"' in line for key, value in labels.items()
        ):
            return float(line.rpartition(" ")[2])
    return None
