"""What goes wrong, one thing after the other, until the run is over. Everything that was taken away comes back."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from hami_sim.cluster import LocalCluster
from hami_sim.kubelet import end_containers
from hami_sim.kubelet.processes import ContainerProcess
from plan import Disturbance

Work = Callable[[Disturbance], Awaitable[str]]
"""Does it and says what it did."""


class Disturber:
    def __init__(self, cluster: LocalCluster, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._say = say
        self._nodes = [plan.name for plan in cluster.plans if plan.has_cards]
        self.done: list[str] = []
        self._one_more = asyncio.Condition()
        self.kinds: dict[str, Work] = {
            "kubelet": lambda what: self._away("kubelets", what),
            "agent-killed": lambda what: self._away(f"node-agent-{self._node(what)}", what),
            "agent-stopped": lambda what: self._away(f"node-agent-{self._node(what)}", what, kill=False),
            "scheduler": lambda what: self._away(f"scheduler-{what.draw.randrange(self._schedulers)}", what),
            "monitor": lambda what: self._away(f"monitor-{self._node(what)}", what),
            "nats": lambda what: self._away("nats-server", what),
            "kubelet-and-agent": self._kubelet_and_agent,
            "containers": self._containers,
            "api-server": self._api_server,
            "reboot": self._reboot,
        }

    async def run(self, plan: Iterator[Disturbance]) -> None:
        """Until cancelled, which waits for the present one."""
        for what in plan:
            present = asyncio.create_task(self._one(what))
            try:
                await asyncio.shield(present)
            except asyncio.CancelledError:
                await present  # what it took away comes back before anybody else looks
                raise
            await asyncio.sleep(what.pause_seconds)

    async def everything_back(self) -> None:
        for name in self._cluster.specs:
            await self._cluster.start_service(name)

    async def _one(self, what: Disturbance) -> None:
        said = await self.kinds[what.kind](what)
        self._say(f"{what.kind}: {said}")
        async with self._one_more:
            self.done.append(what.kind)
            self._one_more.notify_all()

    async def until_more(self, count: int) -> None:
        """Returns after so many disturbances more."""
        wanted = len(self.done) + count
        async with self._one_more:
            await self._one_more.wait_for(lambda: len(self.done) >= wanted)

    @property
    def _schedulers(self) -> int:
        return self._cluster.record.profile.schedulers

    def _node(self, what: Disturbance) -> str:
        return what.draw.choice(self._nodes)

    async def _away(self, service: str, what: Disturbance, *, kill: bool = True) -> str:
        await (self._cluster.kill_service(service) if kill else self._cluster.stop_service(service))
        await asyncio.sleep(what.away_seconds)
        await self._cluster.start_service(service)
        return f"{service} away for {what.away_seconds} s"

    async def _kubelet_and_agent(self, what: Disturbance) -> str:
        """The agent comes back first or last."""
        node = self._node(what)
        names = ["kubelets", f"node-agent-{node}"]
        for name in names:
            await self._cluster.kill_service(name)
        await asyncio.sleep(what.away_seconds)
        what.draw.shuffle(names)
        for name in names:
            self._launch(name)
        for name in names:
            await self._cluster.start_service(name)
        return f"{' and then '.join(names)} came back"

    def _launch(self, name: str) -> None:
        self._cluster.runner.launch(self._cluster.spec(name))

    async def _containers(self, what: Disturbance) -> str:
        """The first processes of some containers end, as by the kernel's memory killer."""
        root = self._cluster.node_layout(self._node(what)).kubelet / "containers"
        running = [
            process
            for pod in _entries(root)
            for container in _entries(pod)
            for attempt in _entries(container)
            if (process := ContainerProcess(attempt)).begin() is not None and process.end() is None
        ]
        chosen = what.draw.sample(running, min(len(running), 1 + what.draw.randrange(3)))
        for process in chosen:
            process.kill()
        return f"{len(chosen)} of {len(running)} ended"

    async def _api_server(self, what: Disturbance) -> str:
        program = self._cluster.control_plane.programs()["kube-apiserver"]
        os.kill(program.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(what.away_seconds)
        finally:
            os.kill(program.pid, signal.SIGCONT)
        return f"stood still for {what.away_seconds} s"

    async def _reboot(self, what: Disturbance) -> str:
        """All processes of a node end, what lay in memory is gone, kubelet's and our own checkpoint are kept."""
        node = self._node(what)
        place = self._cluster.node_layout(node)
        names = ["kubelets", f"node-agent-{node}", f"monitor-{node}"]
        for name in names:
            await self._cluster.kill_service(name)
        await _end_processes(place.kubelet)
        for path in place.cdi.iterdir():
            path.unlink()
        await asyncio.sleep(what.away_seconds)
        for name in names:
            await self._cluster.start_service(name)
        return f"{node} started anew"


def _entries(folder: Path) -> list[Path]:
    """None when kubelet has removed it meanwhile."""
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


async def _end_processes(kubelet: Path) -> None:
    """Containers are made anew by the next kubelet, as their sandboxes are gone."""
    await end_containers(kubelet)
    shutil.rmtree(kubelet / "pods", ignore_errors=True)
