"""Services that end in the middle, leaders that change, NATS that is away: pods run and slices hold."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections import Counter

import pytest
from hami_model.events import AllocationEvent
from hami_sim.cluster.driver_description import card_ids
from hami_sim.controlplane import ControlPlane
from hami_sim.leader_forwarder.lease_holder import replica_name
from world import ENDS, HOLD, PATIENCE_SECONDS, WORKLOAD, World, held_cards

GROW = (WORKLOAD, "over-alloc")
LEASE = "/apis/coordination.k8s.io/v1/namespaces/hami-system/leases/hami-scheduler"
SERVICES = (
    "webhook",
    "scheduler-0",
    "scheduler-1",
    "forwarder",
    "kubelets",
    "node-agent-sim-0",
    "monitor-sim-0",
    "nats-server",
)
PROMISED_PHASES = ("allocating", "allocated")


async def leader(world: World, *, other_than: str = "") -> str:
    """Name of the scheduler that holds the Lease, once somebody else does."""

    def holder(lease) -> str:
        return replica_name((lease or {}).get("spec", {}).get("holderIdentity") or "")

    lease = await world.kube.wait_until(
        LEASE, lambda found: holder(found) not in ("", other_than), timeout_seconds=PATIENCE_SECONDS
    )
    return holder(lease)


async def is_admitted(world: World, name: str) -> bool:
    """Whether kubelet took the pod: it refuses those that are bound to its node while a plugin is away."""
    pod = await world.until_pod(name, lambda found: found["status"].get("phase") in ("Running", *ENDS))
    return pod["status"].get("reason") != "UnexpectedAdmissionError"


async def admitted_pod(world: World, *, node: str, gpumem: int, name: str = "after") -> str:
    """Name of a pod that kubelet took, as a controller would make one after another until one is."""
    for number in itertools.count():
        made = f"{name}-{number}"
        await world.create_pod(made, GROW, node=node, gpu=1, gpumem=gpumem)
        if await is_admitted(world, made):
            return made
    raise AssertionError


async def until_withdrawn(world: World, node: str) -> None:
    """Returns when kubelet tells that the node's plugin is gone: pods are kept back from then on."""
    await world.kube.wait_until(
        f"/api/v1/nodes/{node}",
        lambda found: found is not None and found["status"]["allocatable"].get("nvidia.com/gpu", "0") == "0",
        timeout_seconds=PATIENCE_SECONDS,
    )


def overcommitted(status) -> list[str]:
    """Cards of which more is promised than there is."""
    return [
        card.id
        for card in status.cards
        if card.memory_promised_mib > card.memory_total_mib
        or card.cores_promised_percent > 100
        or card.slots_used > card.slots
    ]


@pytest.mark.parametrize("service", SERVICES)
async def test_a_killed_service_goes_on_when_it_is_back(world: World, service: str):
    await world.create_pod("before", HOLD, node="sim-0", gpu=1, gpumem=1000)
    await world.until_phase("before", "Running")
    await world.cluster.kill_service(service)
    await world.cluster.start_service(service)
    after = await admitted_pod(world, node="sim-0", gpumem=1500)
    assert await world.granted_mib(after) == 1500
    pod = await world.pod("before")
    assert (pod["status"]["phase"], pod["status"]["containerStatuses"][0]["restartCount"]) == ("Running", 0)


@pytest.mark.parametrize("service", ["scheduler-0", "node-agent-sim-0"])
async def test_pods_that_come_while_a_service_is_away_run_when_it_is_back(world: World, service: str):
    leading = await leader(world)
    names = [leading] if service.startswith("scheduler") else [service]
    if service.startswith("scheduler"):
        names.append("scheduler-1" if leading == "scheduler-0" else "scheduler-0")
    for name in names:
        await world.cluster.kill_service(name)
    if service.startswith("node-agent"):
        await until_withdrawn(world, "sim-0")
    sizes = {f"p{number}": 1000 + number for number in range(3)}
    for name, size in sizes.items():
        await world.create_pod(name, GROW, node="sim-0", gpu=1, gpumem=size)
    for name in names:
        await world.cluster.start_service(name)
    for name, size in sizes.items():
        ran = name
        if not await is_admitted(world, name):  # bound before the scheduler heard that the plugin is gone
            ran = await admitted_pod(world, node="sim-0", gpumem=size, name=name)
        assert await world.granted_mib(ran) == size
    assert overcommitted(await world.status()) == []


@pytest.mark.parametrize("program", ["kube-scheduler", "kube-controller-manager", "kube-apiserver"])
async def test_programs_of_the_control_plane_may_restart_too(world: World, program: str):
    control_plane: ControlPlane = world.cluster.control_plane
    await control_plane.kill(program)
    await control_plane.restart(program)
    await world.create_pod("after", GROW, gpu=1, gpumem=1200)
    assert await world.granted_mib("after") == 1200


async def test_another_scheduler_leads_when_the_leader_is_killed(world: World):
    first = await leader(world)
    await world.create_pod("before", HOLD, gpu=1, gpumem=1000)
    await world.until_phase("before", "Running")
    await world.cluster.kill_service(first)
    await world.create_pod("meanwhile", HOLD, gpu=1, gpumem=2000)
    await world.until_phase("meanwhile", "Running")
    assert await leader(world, other_than=first)
    assert overcommitted(await world.status()) == []


async def test_a_leader_that_was_stopped_and_goes_on_gives_nothing_away_twice(world: World):
    """The last whole card: whoever of the two schedulers gives it, it is given once."""
    first = await leader(world)
    card = card_ids(world.cluster.plan("sim-1"))[0]
    program = world.cluster.runner.program(first)
    assert program is not None
    os.kill(program.pid, signal.SIGSTOP)
    try:
        for name in ("a", "b"):
            await world.create_pod(name, HOLD, card=card, gpu=1, gpumem_percentage=100)
        await leader(world, other_than=first)
    finally:
        os.kill(program.pid, signal.SIGCONT)

    def running(pods) -> list[str]:
        return [pod["metadata"]["name"] for pod in pods["items"] if pod["status"].get("phase") == "Running"]

    pods = await world.kube.wait_until(
        world.pods_path, lambda found: bool(running(found)), timeout_seconds=PATIENCE_SECONDS
    )
    (chosen,) = running(pods)
    other = "b" if chosen == "a" else "a"
    await world.until_rejected(other)
    assert held_cards(await world.pod_status(chosen)) == {card}
    await world.delete_pod(chosen)
    await world.until_phase(other, "Running")


async def test_without_nats_pods_are_placed_and_run_and_their_events_come_later_none_twice(world: World):
    await world.cluster.stop_service("nats-server")
    pods = [await world.create_pod(name, GROW, gpu=1, gpumem=1000) for name in ("a", "b")]
    for name in ("a", "b"):
        assert await world.granted_mib(name) == 1000
    assert not (await world.status()).usage_known
    await world.cluster.start_service("nats-server")
    for pod in pods:
        found = await world.until_allocation_phases(pod["metadata"]["uid"], *PROMISED_PHASES)
        assert max(Counter(event.id for event in found).values()) == 1


async def test_events_tell_a_pods_life_in_order_none_twice(world: World):
    pod = await world.create_pod("p", HOLD, gpu=1, gpumem=1000, gpucores=20)
    await world.until_phase("p", "Running")
    await world.delete_pod("p")
    uid = pod["metadata"]["uid"]
    found = await world.until_allocation_phases(uid, "reserved", "allocating", "allocated", "released")
    assert max(Counter(event.id for event in found).values()) == 1
    chains: dict[str, list[AllocationEvent]] = {}
    for event in sorted(found, key=lambda event: event.sequence):
        chains.setdefault(event.allocation_id, []).append(event)
    *given_up, lived = [[str(event.phase) for event in chain] for chain in chains.values()]
    assert lived == ["reserved", "allocating", "allocated", "released"]
    assert all(chain == ["reserved", "expired"] for chain in given_up)  # an API server that answered too late
    (share,) = next(reversed(chains.values()))[0].containers
    assert [(held.memory_mib, held.cores_percent) for held in share.cards] == [(1000, 20)]


async def test_no_service_is_refused_by_the_api_server(world: World):
    """They run with exactly the roles of k8s/base; a call outside of them would be in the log."""
    own = [name for name, spec in world.cluster.specs.items() if spec.account]
    logs = {name: world.cluster.layout.log(name) for name in own}
    sizes = {name: log.stat().st_size for name, log in logs.items()}
    await asyncio.gather(*(world.cluster.restart_service(name) for name in own))
    for name, limits in (("p", {"gpu": 1, "gpumem": 1000}), ("huge", {"gpu": 1, "gpumem": 900_000})):
        await world.create_pod(name, GROW, **limits)
    await world.granted_mib("p")
    await world.until_event("huge", "CardInsufficientMemory")
    written = {name: log.read_bytes()[sizes[name] :].decode() for name, log in logs.items()}
    refused = [line for text in written.values() for line in text.splitlines() if "forbidden" in line.lower()]
    # So is what is still to be said of the namespace of the test before, whatever the roles.
    assert [line for line in refused if "it is being terminated" not in line] == []
