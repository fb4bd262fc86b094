"""Cases of the areas allocate and multi-container, and what became of an annotation: from a placed pod to its
environment, through both hand-offs."""

from __future__ import annotations

import pytest
from case_cluster import MODES, cluster, runs
from node_agent_world import ALLOCATED_KEY, FOREVER, NODE, card_id, container, until

ON_CARD = "nvidia.com/use-gpuuuid"


@pytest.mark.case("ANN-01")
@pytest.mark.case("REQ-02")
@pytest.mark.parametrize("handoff", MODES)
async def test_the_limits_of_a_pod_are_those_of_its_annotation_and_of_the_right_container(handoff: str) -> None:
    async with cluster(handoff) as found:
        document = await found.create("a", runs("c0"), runs("c1", "5k"), runs("c2"), init=[runs("i0", script="true")])
        environments = {name: await found.world.environment("a", name) for name in ("c0", "c1", "c2")}
        limits = {name: seen.get("CUDA_DEVICE_MEMORY_LIMIT_0") for name, seen in environments.items()}
        assert limits == {"c0": None, "c1": "5000m", "c2": None}
        folders = [folder.name for folder in (found.world.root / "hook/vgpu/containers").iterdir()]
        assert folders == [f"{document['metadata']['uid']}_c1"]


@pytest.mark.case("MUL-01")
@pytest.mark.parametrize("handoff", MODES)
async def test_an_init_container_and_an_app_container_get_their_own_slices(handoff: str) -> None:
    async with cluster(handoff) as found:
        seen = found.world.root / "seen"
        first = runs("i0", 5000, script=f"env; until [ -e {seen} ]; do sleep 0.05; done")
        document = await found.create("a", runs("c0", 3000), init=[first], annotations={ON_CARD: card_id(0)})
        held = f"{card_id(0)},NVIDIA,5000,0:;{card_id(0)},NVIDIA,3000,0:;"
        assert found.allocated("a") == held
        assert await found.used_mib(card_id(0)) == 5000
        seen.touch()
        uid = document["metadata"]["uid"]
        for name, limit in (("i0", "5000m"), ("c0", "3000m")):
            environment = await found.world.environment("a", name)
            assert environment["CUDA_DEVICE_MEMORY_LIMIT_0"] == limit
            assert f"/{uid}_{name}/" in environment["CUDA_DEVICE_MEMORY_SHARED_CACHE"]
        await found.uses(3000, card_id(0))
        assert found.allocated("a") == held


@pytest.mark.case("MUL-04")
@pytest.mark.parametrize("handoff", MODES)
async def test_a_container_without_cards_in_the_middle_shifts_nothing(handoff: str) -> None:
    async with cluster(handoff, cards=(24576,)) as found:
        await found.create("a", runs("c0", percent=50), runs("c1"), runs("c2", 2000))
        held = card_id(0)
        assert found.allocated("a") == f"{held},NVIDIA,12288,0:;;{held},NVIDIA,2000,0:;"
        assert (await found.limit("a", "c0"), await found.limit("a", "c2")) == ("12288m", "2000m")
        await found.world.runs("a", "c1")
        assert "CUDA_DEVICE_MEMORY_LIMIT_0" not in await found.world.environment("a", "c1")


@pytest.mark.case("MUL-06")
@pytest.mark.parametrize("handoff", MODES)
async def test_two_containers_with_a_card_each_run_on_the_one_card(handoff: str) -> None:
    async with cluster(handoff, cards=(12288,)) as found:
        await found.create("a", runs("c0", 2000), runs("c1"), runs("c2", 3000))
        assert (await found.limit("a", "c0"), await found.limit("a", "c2")) == ("2000m", "3000m")
        assert await found.used_mib(card_id(0)) == 5000


@pytest.mark.case("ALC-01")
@pytest.mark.parametrize("handoff", MODES)
async def test_pods_of_different_size_get_their_own_limits(handoff: str) -> None:
    async with cluster(handoff) as found:
        sizes = {"half": 20480, "eighth": 5120, "tiny": 300}
        for name, size in sizes.items():
            await found.create(name, runs("main", size), annotations={ON_CARD: card_id(0)})
        assert {name: await found.limit(name, "main") for name in sizes} == {n: f"{size}m" for n, size in sizes.items()}


# ---- pods that must not start ------------------------------------------------------------------------------------


@pytest.mark.case("LCK-12")
@pytest.mark.case("REQ-07")
@pytest.mark.parametrize("handoff", MODES)
async def test_a_pod_that_our_scheduler_did_not_place_takes_nothing_from_one_that_it_did(handoff: str) -> None:
    async with cluster(handoff) as found:
        world = found.world
        world.bind_pod("intruder", None, container(gpus=1, script=FOREVER))
        if handoff == "lock":
            await until(lambda: world.pod("intruder")["status"].get("phase") == "Failed", "the refusal")
            status = world.pod("intruder")["status"]
            assert status["reason"] == "UnexpectedAdmissionError"
            said = status["message"]
        else:
            said = await world.waits_with("intruder", "was not placed by the HAMi scheduler")
        assert "not placed by the HAMi scheduler" in said
        assert found.lock() is None
        await found.create("proper", runs("main", 3000))
        assert await found.limit("proper", "main") == "3000m"
        if handoff == "late-binding":
            await until(lambda: world.events("AllocationFailed"), "the event")
            assert world.events("AllocationFailed")[0]["involvedObject"]["name"] == "intruder"
        assert world.agent is not None
        assert world.agent.is_alive()


@pytest.mark.case("ANN-08")
@pytest.mark.parametrize("handoff", MODES)
async def test_a_pod_bound_with_a_card_that_the_node_no_longer_has_is_refused_for_good(handoff: str) -> None:
    async with cluster(handoff, cards=(40960,)) as found:
        world = found.world
        gone = "GPU-99999999-2222-3333-4444-000000000000"
        if handoff == "lock":
            world.lock_node("stale")
        world.bind_pod("stale", f"{gone},NVIDIA,4096,0:;", container(gpus=1, script=FOREVER))
        await until(lambda: world.phase("stale") == "failed", "bind-phase failed")
        if handoff == "lock":
            await until(lambda: world.pod("stale")["status"].get("phase") == "Failed", "the refusal")
            said = world.pod("stale")["status"]["message"]
        else:
            said = await world.waits_with("stale", gone)
        assert gone in said
        assert f"node {NODE}" in said
        await until(lambda: found.lock() is None, "the lock to be free")
        assert [each["id"] for each in world.register()] == [card_id(0)]
        node = world.node()
        stale = [{**world.register()[0], "id": gone}]
        node["metadata"]["annotations"]["hami.io/node-nvidia-register"] = str(stale).replace("'", '"').replace("True", "true")  # fmt: skip  # noqa: E501
        world.fake.put("nodes", node)
        await until(lambda: [each["id"] for each in world.register()] == [card_id(0)], "the annotation to be mended")


@pytest.mark.case("ANN-09")
@pytest.mark.parametrize("handoff", MODES)
async def test_a_running_pod_whose_annotation_was_written_again_is_left_alone(handoff: str) -> None:
    async with cluster(handoff) as found:
        world = found.world
        await found.create("p", runs("main", 2000))
        await world.runs("p")
        await until(lambda: world.phase("p") == "success", "the hand-over")
        again = world.pod("p")
        again["metadata"]["annotations"]["hami.io/vgpu-devices-to-allocate"] = again["metadata"]["annotations"][
            ALLOCATED_KEY
        ]
        world.fake.put("pods", again)
        await found.create("q", runs("main", 3000))
        assert await found.limit("q", "main") == "3000m"
        assert world.phase("p") == "success"
        assert await found.limit("p", "main") == "2000m"
