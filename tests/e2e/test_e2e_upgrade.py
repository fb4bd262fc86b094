"""A new version comes, service by service, and goes again, while pods run: docs/upgrade.md is held by these."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hami_sim.cluster.service_spec import ServiceSpec, merged
from world import ENDS, HOST_LABEL, POLL_SECONDS, WORKLOAD, World, container

NODE = "sim-0"
AGENT, MONITOR = f"node-agent-{NODE}", f"monitor-{NODE}"
GROW = (WORKLOAD, "over-alloc")
SHOW_LIBRARY = "for file in $(cat /etc/ld.so.preload 2>/dev/null) $LD_PRELOAD; do sha256sum $file; done"
"""Which file the container preloads: by its own list, or by a variable where it has no mounts of its own."""
ORDER = ("scheduler-0", "scheduler-1", "webhook", AGENT, MONITOR)


def sum_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


class Upgrade:
    """The version that runs, and another whose library has other bytes at its end."""

    def __init__(self, world: World, folder: Path) -> None:
        self._world = world
        self._before: dict[str, ServiceSpec] = {name: world.cluster.specs[name] for name in ORDER}
        settings = self._before[AGENT].settings
        assert settings is not None
        self.old_library = Path(settings["files"]["library_file"])
        self.new_library = folder / "libvgpu.so"
        shutil.copy(self.old_library, self.new_library)
        with self.new_library.open("ab") as file:
            file.write(b"\nanother version\n")

    async def forward(self, name: str) -> None:
        """One service is exchanged, as its Deployment or DaemonSet would."""
        if name == AGENT:
            settings = merged(self._before[name].settings or {}, {"files": {"library_file": str(self.new_library)}})
            self._world.cluster.specs[name] = msgspec.structs.replace(self._before[name], settings=settings)
        await self._world.cluster.restart_service(name)

    async def back(self, name: str) -> None:
        self._world.cluster.specs[name] = self._before[name]
        await self._world.cluster.restart_service(name)

    def restore(self) -> None:
        """For the tests that come after; what runs is exchanged when it starts next."""
        self._world.cluster.specs.update(self._before)


@pytest.fixture
async def upgrade(world: World, tmp_path: Path) -> AsyncIterator[Upgrade]:
    found = Upgrade(world, tmp_path)
    yield found
    changed = world.cluster.specs[AGENT] != found._before[AGENT]
    found.restore()
    if changed:
        await world.cluster.restart_service(AGENT)


async def libraries_shown(world: World, pod: str) -> list[str]:
    """What SHOW_LIBRARY said in its container: SHA-256 of files that are there."""
    text = await world.kube.get_text(f"{world.pods_path}/{pod}/log")
    return [line.split()[0] for line in text.splitlines() if re.fullmatch(r"[0-9a-f]{64} .*libvgpu.*", line)]


async def library_of_a_new_pod(world: World, name: str) -> str:
    """SHA-256 of what a container that starts now preloads. Kubelet may refuse a pod while its plugin is away."""
    number = 0
    while True:
        pod = f"{name}-{number}"
        await world.create_pod(pod, ("sh", "-c", SHOW_LIBRARY), node=NODE, gpu=1, gpumem=500)
        found = await world.until_pod(pod, lambda one: one["status"].get("phase") in ENDS)
        if found["status"].get("reason") != "UnexpectedAdmissionError":
            break
        number += 1
    assert found["status"]["phase"] == "Succeeded", found["status"]
    (shown,) = await libraries_shown(world, pod)
    return shown


def hold(mib: int) -> tuple[str, ...]:
    """Amounts tell the processes of one node apart in the driver's books."""
    return WORKLOAD, "alloc", "--mib", str(mib), "--hold-until-signal"


def process_of(world: World, mib: int) -> int:
    """Pid of the process that holds so much."""
    (pid,) = [
        process["pid"]
        for card in world.books(NODE)["cards"]
        for process in card["processes"]
        if process["used_bytes"] == mib << 20
    ]
    return int(pid)


async def until_process(world: World, mib: int) -> None:
    while True:
        with suppress(ValueError):
            process_of(world, mib)
            return
        await asyncio.sleep(POLL_SECONDS)


def running(pod: dict[str, Any]) -> tuple[str, int, str]:
    (status,) = pod["status"]["containerStatuses"]
    return pod["status"]["phase"], status["restartCount"], status["containerID"]


async def regions(world: World, *names: str) -> dict[str, tuple[int, int]]:
    """Inode and size of the pods' region files, by their path."""
    folder = world.cluster.node_layout(NODE).hook / "vgpu/containers"
    uids = [(await world.pod(name))["metadata"]["uid"] for name in names]
    files = [file for uid in uids for file in folder.glob(f"{uid}_*/*.cache")]
    return {str(file): (file.stat().st_ino, file.stat().st_size) for file in files}


async def test_running_pods_keep_process_limits_and_region_while_every_service_is_exchanged(
    world: World, upgrade: Upgrade
) -> None:
    await world.create_pod("holds", hold(100), node=NODE, gpu=1, gpumem=1000)
    # When its first program ends it goes on to its limit.
    await world.create_pod(
        "grows", ("sh", "-c", f"{' '.join(hold(101))}; exec {' '.join(GROW)}"), node=NODE, gpu=1, gpumem=1700
    )
    before = {name: running(await world.until_phase(name, "Running")) for name in ("holds", "grows")}
    assert await library_of_a_new_pod(world, "first") == sum_of(upgrade.old_library)
    for mib in (100, 101):
        await until_process(world, mib)
    held = await regions(world, *before)
    assert len(held) == len(before)
    pids = [process_of(world, mib) for mib in (100, 101)]

    for service in ORDER:
        await upgrade.forward(service)
        assert {name: running(await world.pod(name)) for name in before} == before, service

    assert await library_of_a_new_pod(world, "second") == sum_of(upgrade.new_library)
    assert await regions(world, *before) == held
    assert [process_of(world, mib) for mib in (100, 101)] == pids
    assert [card.memory_promised_mib for card in (await world.pod_status("holds")).cards] == [1000]

    for service in reversed(ORDER):
        await upgrade.back(service)
        assert {name: running(await world.pod(name)) for name in before} == before, service
    assert await library_of_a_new_pod(world, "third") == sum_of(upgrade.old_library)
    os.kill(process_of(world, 101), signal.SIGTERM)
    assert await world.granted_mib("grows") == 1700


async def test_a_container_that_starts_again_gets_the_library_that_is_installed_and_its_own_limit(
    world: World, upgrade: Upgrade
) -> None:
    script = (
        f"{SHOW_LIBRARY}; [ -e /state/seen ] && exec {' '.join(GROW)}; touch /state/seen; {' '.join(hold(102))}; exit 1"
    )
    main = container(("sh", "-c", script), gpu=1, gpumem=900)
    main["volumeMounts"] = [{"name": "state", "mountPath": "/state"}]
    spec = {
        "restartPolicy": "OnFailure",
        "nodeSelector": {HOST_LABEL: NODE},
        "containers": [main],
        "volumes": [{"name": "state", "emptyDir": {}}],
    }
    await world.kube.post(world.pods_path, {"metadata": {"name": "again"}, "spec": spec})
    await world.until_phase("again", "Running")
    await until_process(world, 102)
    await upgrade.forward(AGENT)
    os.kill(process_of(world, 102), signal.SIGTERM)
    assert await world.granted_mib("again") == 900
    assert await libraries_shown(world, "again") == [sum_of(upgrade.new_library)]


async def test_pods_that_come_in_the_midst_of_it_run(world: World, upgrade: Upgrade) -> None:
    """The one webhook of this cluster is left: while none is there, pods with cards are refused."""
    sizes = {f"p{number}": 1000 + number for number in range(4)}

    async def come() -> None:
        for name, size in sizes.items():
            await world.create_pod(name, GROW, gpu=1, gpumem=size)

    await asyncio.gather(come(), upgrade.forward(MONITOR), upgrade.forward("scheduler-0"))
    assert {name: await world.granted_mib(name) for name in sizes} == sizes
