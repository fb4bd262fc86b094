"""One local cluster: found again by its state directory, changed service by service, ended."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Self

from hami_chassis.untrusted_folders import remove_tree

from hami_sim.cluster.artefacts import Artefacts, artefacts_in
from hami_sim.cluster.errors import ClusterError
from hami_sim.cluster.layout import ClusterLayout, NodeLayout
from hami_sim.cluster.leftovers import unmount_below
from hami_sim.cluster.profile import NodePlan, node_plans
from hami_sim.cluster.record import SimRecord, load_sim_record, nodes_root
from hami_sim.cluster.service_runner import ServiceRunner
from hami_sim.cluster.service_spec import ServiceSpec
from hami_sim.cluster.services import nats_url, service_table
from hami_sim.controlplane import ControlPlane, RestClient
from hami_sim.kubelet import end_containers
from hami_sim.processes import Program

Progress = Callable[[str], None]


def say_nothing(_line: str) -> None:
    """Progress that nobody looks at."""


class LocalCluster:
    """The programs of one state directory; they outlive whoever starts them. `hami_sim.cluster.starting` starts one.

    Errors: ClusterError, and those of `hami_sim.controlplane` and `hami_sim.processes`, all with what to do in the
    message.
    """

    def __init__(self, layout: ClusterLayout, record: SimRecord, artefacts: Artefacts) -> None:
        self.layout = layout
        self.record = record
        self.plans = node_plans(record.profile)
        self.runner = ServiceRunner(layout)
        self.specs = {spec.name: spec for spec in service_table(layout, record, artefacts)}

    @classmethod
    def attach(cls, state_directory: Path) -> Self:
        """The cluster that runs, or ran, in a state directory. Raises ClusterError when there is none."""
        layout = ClusterLayout(state_directory)
        record = load_sim_record(layout)
        if record is None:
            raise ClusterError(f"{layout.root} holds no cluster; `hami-sim up --state {state_directory}` makes one")
        return cls(layout, record, artefacts_in())  # it is ended also when they are no longer there

    # ---- what it is ---------------------------------------------------------------------------------------------

    @property
    def control_plane(self) -> ControlPlane:
        """The control plane of this cluster. Raises ControlPlaneError when it never came up."""
        return ControlPlane.attach(self.layout.root)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.layout.kubeconfig

    @property
    def nats_url(self) -> str:
        """Where events are."""
        return nats_url(self.record)

    def client(self) -> RestClient:
        """Requests as the administrator: `async with cluster.client() as client`."""
        return self.control_plane.client()

    def node_layout(self, node: str) -> NodeLayout:
        """Places of a node. Raises ClusterError."""
        return NodeLayout(nodes_root(self.record), self.plan(node).index)

    def plan(self, node: str) -> NodePlan:
        """What a node consists of. Raises ClusterError."""
        for plan in self.plans:
            if plan.name == node:
                return plan
        raise ClusterError(f"there is no node {node}; there are {', '.join(plan.name for plan in self.plans)}")

    def spec(self, service: str) -> ServiceSpec:
        """How a service is started. Raises ClusterError."""
        if service not in self.specs:
            raise ClusterError(f"there is no service {service}; there are {', '.join(self.specs)}")
        return self.specs[service]

    def programs(self) -> dict[str, Program]:
        """Everything that runs now, by name, the control plane included."""
        control_plane = self.control_plane.programs() if self.layout.record_file.exists() else {}
        own = {name: self.runner.program(name) for name in self.specs}
        return {**control_plane, **{name: one for name, one in own.items() if one is not None and one.is_alive()}}

    # ---- changes ------------------------------------------------------------------------------------------------

    async def start_service(self, name: str) -> None:
        """Starts one service unless it runs, and waits until it is ready."""
        spec = self.spec(name)
        if not self.runner.is_alive(name):
            self.runner.launch(spec)
        async with self.client() as client:
            await self.runner.wait_ready(spec, client)

    async def stop_service(self, name: str) -> None:
        """Ends one service as an update would."""
        await self.runner.stop(self.spec(name).name)

    async def kill_service(self, name: str) -> None:
        """Ends one service as a crash would."""
        await self.runner.kill(self.spec(name).name)

    async def restart_service(self, name: str) -> None:
        """Ends one service and starts it again."""
        await self.stop_service(name)
        await self.start_service(name)

    # ---- the end ------------------------------------------------------------------------------------------------

    async def stop(self, *, keep: bool = False, progress: Progress = say_nothing) -> None:
        """Ends everything of the cluster; what was made is removed unless it is to be kept."""
        await self.end_programs(progress)
        unmount_below([self.layout.root, nodes_root(self.record)])
        if keep:
            return
        remove_tree(nodes_root(self.record))
        for name in self.layout.own_entries():
            remove_tree(self.layout.root / name)
        if self.layout.root.exists() and not any(self.layout.root.iterdir()):
            self.layout.root.rmdir()

    async def end_programs(self, progress: Progress = say_nothing) -> None:
        """Ends all programs and containers, what depends on others first; data and logs stay."""
        last_first = reversed(list(self.specs.values()))
        for stage, found in itertools.groupby(last_first, key=lambda spec: spec.stage):
            specs = list(found)
            if stage == 0:
                # NATS goes last: what ends before it still has something to say.
                await self._end_control_plane(progress)
            running = [spec.name for spec in specs if self.runner.is_alive(spec.name)]
            if running:
                progress(f"ending {', '.join(running)}")
            await asyncio.gather(*(self.runner.stop(spec.name) for spec in specs))
            if any(spec.ready_nodes for spec in specs):
                progress("ending containers")
                await self._end_containers()

    async def _end_control_plane(self, progress: Progress) -> None:
        if self.layout.record_file.exists():
            progress("ending the control plane")
            await self.control_plane.stop()

    async def _end_containers(self) -> None:
        roots = [self.node_layout(plan.name).kubelet for plan in self.plans]
        await asyncio.gather(*(end_containers(root) for root in roots if root.exists()))
