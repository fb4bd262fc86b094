"""The hand-off of a node is changed while pods run, and while pods wait between admission and start."""

from __future__ import annotations

import pytest
from case_cluster import Cluster, cluster, runs
from handoff_world import card_id, gate, has_recorded, kill_container, open_gate, recorded, recording, until
from node_agent_world import LOCK_KEY
from scheduler_builders import card, node

MODES = [pytest.param("late-binding", "lock", id="to lock"), pytest.param("lock", "late-binding", id="to late binding")]


async def change(found: Cluster, mode: str) -> None:
    """The agent starts anew with another hand-off; returns once the node says so and kubelet knows its devices."""
    world = found.world
    await world.stop_agent()
    await world.allocatable(0)  # else what it offered before would look like what it offers again
    world.configuration["handoff"] = {"mode": mode}
    world.start_agent()
    await until(lambda: world.register()[0].get("handoff", "lock") == mode, "the register annotation")
    await world.agent_serves()
    await world.allocatable(20)
    # Changes of nodes arrive in order, so a later one tells that the scheduler knows.
    mark = f"after-{mode}"
    world.fake.put("nodes", node(mark, [card(mark)]))
    await found.knows_card(mark)


def locks_taken(found: Cluster) -> int:
    """Requests that set a node lock, so far."""
    wanted = [
        request
        for request in found.world.fake.requests
        if request.resource == "nodes" and isinstance(request.body, dict)
    ]
    written = [(request.body.get("metadata") or {}).get("annotations") or {} for request in wanted]
    return sum(1 for annotations in written if annotations.get(LOCK_KEY))


@pytest.mark.parametrize(("before", "after"), MODES)
async def test_containers_that_run_restart_with_what_they_had(before: str, after: str) -> None:
    async with cluster(before) as found:
        await found.create("p", runs("main", 3000, script=recording(found.world)))
        await until(lambda: found.world.phase("p") == "success", "the phase")
        await has_recorded(found.world, ["3000m"])
        pod = found.world.pod("p")
        found.world.fake.put("pods", {**pod, "spec": {**pod["spec"], "restartPolicy": "Always"}})
        await change(found, after)
        await found.create("q", runs("main", 5000))
        assert await found.limit("q", "main") == "5000m"
        await kill_container(found.world, "p")
        await has_recorded(found.world, ["3000m", "3000m"])
        assert found.world.phase("p") == "success"


@pytest.mark.parametrize(("before", "after"), MODES)
async def test_a_container_that_was_admitted_before_starts_after_the_change(before: str, after: str) -> None:
    async with cluster(before) as found:
        world = found.world
        await found.create(
            "p", runs("main", 3000, script=recording(world)), init=[runs("wait", script=gate(world, "g"))]
        )
        await world.runs("p", "wait")
        await change(found, after)
        open_gate(world, "g")
        await world.runs("p")
        await has_recorded(world, ["3000m"])
        await until(lambda: world.phase("p") == "success", "the phase")
        assert world.annotation_of_node(LOCK_KEY) is None


async def test_the_scheduler_takes_the_node_lock_from_the_change_on() -> None:
    async with cluster("late-binding") as found:
        await found.create("p", runs("main", 1000))
        assert await found.limit("p", "main") == "1000m"
        await change(found, "lock")
        allocate = found.world.fake.hold("get", "pods")
        await found.create("q", runs("main", 2000))
        await allocate.reached.wait()
        assert (found.lock() or "").endswith(",default,q")
        allocate.release()
        assert await found.limit("q", "main") == "2000m"
        await until(lambda: found.lock() is None, "the lock to be free")


async def test_the_scheduler_takes_no_lock_from_the_change_to_late_binding_on() -> None:
    async with cluster("lock") as found:
        await found.create("p", runs("main", 1000))
        assert await found.limit("p", "main") == "1000m"
        await until(lambda: found.lock() is None, "the lock to be free")
        await change(found, "late-binding")
        before = locks_taken(found)
        for number in range(3):
            await found.create(f"q{number}", runs("main", 2000 + number))
        assert locks_taken(found) == before
        for number in range(3):
            assert await found.limit(f"q{number}", "main") == f"{2000 + number}m"


async def test_a_lock_that_was_taken_before_the_change_to_late_binding_is_freed() -> None:
    """Its pod was bound while the agent was away; another scheduler, such as HAMi's, may still take locks."""
    async with cluster("lock") as found:
        world = found.world
        await world.stop_agent()
        await world.allocatable(0)
        world.lock_node("p")
        world.configuration["handoff"] = {"mode": "late-binding"}
        world.start_agent()
        await until(lambda: world.register()[0].get("handoff") == "late-binding", "the register annotation")
        await world.allocatable(20)
        assert (found.lock() or "").endswith(",default,p")
        await found.create("p", runs("main", 3000))
        assert await found.limit("p", "main") == "3000m"
        await until(lambda: found.lock() is None, "the lock to be free")


async def test_pods_bound_without_a_lock_and_admitted_by_lock_never_have_another_s_limits() -> None:
    """Kubelet was away when they were bound; it admits them when the agent hands over by lock."""
    async with cluster("late-binding") as found:
        world = found.world
        sizes = {f"p{number}": 1000 + number for number in range(4)}
        world.fake.pause_watches("pods")
        await world.stop_agent()
        await world.allocatable(0)  # else what it offered before would look like what it offers again
        for name, size in reversed(sizes.items()):
            world.bind_pod(
                name,
                f"{card_id(0)},NVIDIA,{size},0:;",
                runs("main", size, script=recording(world, name)),
            )
        world.configuration["handoff"] = {"mode": "lock"}
        world.start_agent()
        await until(lambda: "handoff" not in world.register()[0], "the register annotation")
        await world.agent_serves()
        await world.allocatable(20)
        world.fake.resume_watches("pods")
        for name, size in sizes.items():
            await until(
                lambda name=name: (
                    recorded(world, name)
                    or world.phase(name) == "failed"
                    or world.pod(name)["status"]["phase"] == "Failed"
                ),
                f"{name} to start or to fail",
            )
            assert recorded(world, name) in ([], [f"{size}m"])
