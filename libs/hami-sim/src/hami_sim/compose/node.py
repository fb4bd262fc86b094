"""A simulated node in one container: the kubelet stand-in, a node-agent and a monitor, as on a machine.

The node's name is the container's host name, so that a service of many containers is as many nodes. `HAMI_SIM_CARDS` is
the number of its cards. When one of the programs ends, all end, and so does the container.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence

import msgspec

from hami_sim.cluster.artefacts import find_artefacts
from hami_sim.cluster.driver_description import description
from hami_sim.cluster.layout import NodeLayout
from hami_sim.cluster.profile import NodePlan, uniform_profile
from hami_sim.compose import places
from hami_sim.compose.node_programs import NodeProgram, node_programs
from hami_sim.controlplane.layout import CertificateFiles, StateLayout, write_private
from hami_sim.controlplane.pki import CertificateAuthority
from hami_sim.kubelet import end_containers

CARDS_VARIABLE = "HAMI_SIM_CARDS"
DEFAULT_CARDS = "4"
GRACE_SECONDS = 5.0
POLL_SECONDS = 0.1


async def run_node() -> str | None:
    """Until a signal, or until a program ends by itself, which is then told."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    place = NodeLayout(places.NODES_ROOT, 0)
    programs = _prepare(place)
    running: dict[str, asyncio.subprocess.Process] = {}
    try:
        work = asyncio.create_task(_run_programs(programs, place, running))
        asked = asyncio.create_task(stop.wait())
        await asyncio.wait((work, asked), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return f"{work.result()} ended by itself: the node ends with it"
        work.cancel()
        return None
    finally:
        for process in reversed(running.values()):
            await _end(process)
        await end_containers(place.kubelet)


def _prepare(place: NodeLayout) -> tuple[NodeProgram, ...]:
    """Folders, the cards' description, the kubelet's certificate."""
    name = socket.gethostname()
    address = socket.gethostbyname(name)
    place.create_directories()
    cards = int(os.environ.get(CARDS_VARIABLE, DEFAULT_CARDS))
    plan = NodePlan(name=name, index=0, group=uniform_profile(1, cards).nodes[0])
    write_private(place.driver, msgspec.json.format(msgspec.json.encode(description(plan))))
    certificate = CertificateFiles(place.root / "kubelet.crt", place.root / "kubelet.key")
    authority = CertificateAuthority.load_or_create(StateLayout(places.CLUSTER).cluster_ca, "hami-sim")
    authority.issue_server(certificate, name, (address, name))
    return node_programs(name, address, place, find_artefacts(places.PROGRAMS), certificate)


async def _run_programs(
    programs: Sequence[NodeProgram], place: NodeLayout, running: dict[str, asyncio.subprocess.Process]
) -> str:
    """Starts them one after the other and returns the name of the first that ends."""
    ends: set[asyncio.Task[str]] = set()
    try:
        for program in programs:
            file = place.root / f"{program.name}.json"
            write_private(file, msgspec.json.format(msgspec.json.encode(program.settings)))
            process = await asyncio.create_subprocess_exec(
                *program.argv, "--config", str(file), env={**os.environ, **program.environment}
            )
            running[program.name] = process
            ends.add(asyncio.create_task(_end_of(program.name, process)))
            while program.ready_file is not None and not program.ready_file.exists():
                done, _ = await asyncio.wait(ends, timeout=POLL_SECONDS)
                if done:
                    return done.pop().result()
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for task in ends:
            task.cancel()


async def _end_of(name: str, process: asyncio.subprocess.Process) -> str:
    await process.wait()
    return name


async def _end(process: asyncio.subprocess.Process) -> None:
    """Asks first; what does not listen is killed."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(GRACE_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(run_node()))
