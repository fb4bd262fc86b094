"""Cases of Allocate where the hand-off is the node lock: whose limits the answer carries, and that no lock stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from case_cluster import bare_kubelet, cluster, runs
from hami_model import go_time
from kubelet_api import checkpoint
from kubelet_api import deviceplugin_v1beta1_pb2 as pb
from kubelet_api.constants import CHECKPOINT_FILE
from node_agent_world import (
    LOCK_KEY,
    NODE,
    PHASE_KEY,
    TO_ALLOCATE_KEY,
    World,
    allocation_annotations,
    card_id,
    container,
    slot,
    until,
)

LIMIT = "CUDA_DEVICE_MEMORY_LIMIT_0"


def replica(card: int, number: int = 0) -> str:
    """One of kubelet's ids of a card."""
    return f"{card_id(card)}-{number}"


def waits(world: World, name: str, *slices: tuple[int, int, int], bound_at: int = 10, **more: Any) -> str:
    """A pod that waits for Allocate."""
    annotations = allocation_annotations(slot(*slices), bind_time=bound_at)
    return world.bind_pod(name, None, container(gpus=len(slices)), annotations=annotations, **more)


async def unlocked(world: World) -> None:
    await until(lambda: world.annotation_of_node(LOCK_KEY) is None, "the lock to be free")


# ---- whose devices -----------------------------------------------------------------------------------------------


@pytest.mark.case("ALC-01")
@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
async def test_the_lock_s_owner_is_served_whatever_the_order_of_pods(order: tuple[str, str]) -> None:
    sizes = {"a": 20480, "b": 5120}
    async with bare_kubelet() as kubelet:
        for name in order:
            waits(kubelet.world, name, (0, sizes[name], 0))
        for owner in ("b", "a"):
            kubelet.world.lock_node(owner)
            answer = await kubelet.allocate(replica(0, 3))
            assert answer.envs[LIMIT] == f"{sizes[owner]}m"
            await unlocked(kubelet.world)


@pytest.mark.case("ALC-02")
@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize(
    ("ids", "cards", "expected"),
    [
        pytest.param(0, {"a": 0, "b": 1}, "a", id="the ids lie on the card of one"),
        pytest.param(1, {"a": 0, "b": 1}, "b", id="the ids lie on the card of the other"),
        pytest.param(0, {"a": 0, "b": 0}, "a", id="both on that card: the one bound first"),
        pytest.param(1, {"a": 0, "b": 0}, "a", id="none on that card: the one bound first"),
    ],
)
async def test_without_a_lock_the_choice_does_not_depend_on_the_order_of_pods(
    order: tuple[str, str], ids: int, cards: dict[str, int], expected: str
) -> None:
    sizes, bound_at = {"a": 1000, "b": 2000}, {"a": 10, "b": 20}
    async with bare_kubelet() as kubelet:
        for name in order:
            waits(kubelet.world, name, (cards[name], sizes[name], 0), bound_at=bound_at[name])
        answer = await kubelet.allocate(replica(ids))
        assert answer.envs[LIMIT] == f"{sizes[expected]}m"


@pytest.mark.case("ALC-02")
async def test_nobody_is_guessed_while_the_api_server_does_not_answer() -> None:
    async with bare_kubelet() as kubelet:
        waits(kubelet.world, "a", (0, 1000, 0))
        kubelet.world.fake.fail("list", "pods", 500, times=20)
        await kubelet.refusal(replica(0))
        assert kubelet.world.annotation("a", TO_ALLOCATE_KEY) == slot((0, 1000, 0))
        kubelet.world.fake.clear_faults()
        assert (await kubelet.allocate(replica(0))).envs[LIMIT] == "1000m"


@pytest.mark.case("ANN-09")
async def test_a_pod_that_no_longer_waits_is_never_served_again() -> None:
    async with bare_kubelet() as kubelet:
        waits(kubelet.world, "old", (0, 2000, 0), bound_at=1)
        running = kubelet.world.pod("old")
        kubelet.world.fake.put("pods", {**running, "status": {"phase": "Running"}})
        waits(kubelet.world, "new", (0, 3000, 0))
        assert (await kubelet.allocate(replica(0))).envs[LIMIT] == "3000m"
        assert "no pod waits" in await kubelet.refusal(replica(0, 1))
        assert kubelet.world.annotation("old", TO_ALLOCATE_KEY) == slot((0, 2000, 0))


@pytest.mark.case("LCK-12")
@pytest.mark.case("MUL-06")
async def test_allocate_without_any_pod_that_waits_is_an_error_and_the_agent_goes_on() -> None:
    async with bare_kubelet() as kubelet:
        world = kubelet.world
        world.lock_node("somebody")
        world.bind_pod("bypassed", None, container(gpus=1))
        before = world.annotation_of_node(LOCK_KEY)
        assert "not placed by the HAMi scheduler" in await kubelet.refusal(replica(0))
        assert world.annotation_of_node(LOCK_KEY) == before
        waits(world, "proper", (0, 3000, 0))
        assert (await kubelet.allocate(replica(0))).envs[LIMIT] == "3000m"


# ---- which cards -------------------------------------------------------------------------------------------------


@pytest.mark.case("PLC-11")
async def test_the_annotated_cards_count_whichever_ids_kubelet_chose() -> None:
    cards = (40960,) * 8
    async with bare_kubelet(cards=cards) as kubelet:
        world = kubelet.world
        offered = await kubelet.device_ids()
        assert len(offered) == 80
        waits(world, "eight", *((card, 1000 + card, 0) for card in range(8)))
        world.lock_node("eight")
        preferred = await kubelet.preferred(offered, 8)
        assert sorted(device.rpartition("-")[0] for device in preferred) == [card_id(card) for card in range(8)]
        five = [replica(card % 5, card) for card in range(8)]
        answer = await kubelet.allocate(*five)
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"].split(",") == [card_id(card) for card in range(8)]
        limits = [answer.envs[f"CUDA_DEVICE_MEMORY_LIMIT_{card}"] for card in range(8)]
        assert limits == [f"{1000 + card}m" for card in range(8)]


@pytest.mark.case("PLC-11")
async def test_another_number_of_ids_than_of_annotated_cards_is_an_error() -> None:
    async with bare_kubelet() as kubelet:
        waits(kubelet.world, "two", (0, 1000, 0), (1, 1000, 0))
        kubelet.world.lock_node("two")
        assert "2 cards are allocated, but kubelet gave it 1" in await kubelet.refusal(replica(0))
        await until(lambda: kubelet.world.phase("two") == "failed", "the phase")


# ---- no way out leaves a lock ------------------------------------------------------------------------------------


def _unknown_card(world: World) -> None:
    gone = slot((0, 1000, 0)).replace(card_id(0), card_id(7))
    world.bind_pod("p", None, container(gpus=1), annotations=allocation_annotations(gone))


def _torn_annotation(world: World) -> None:
    torn = {**allocation_annotations(slot((0, 1000, 0))), TO_ALLOCATE_KEY: f"{card_id(0)},NVIDIA:;"}
    world.bind_pod("p", None, container(gpus=1), annotations=torn)


def _no_folder(world: World) -> None:
    """The container's folder cannot be made: a file lies where those of all containers should."""
    waits(world, "p", (0, 1000, 0))
    folders = world.root / "hook" / "vgpu" / "containers"
    folders.rmdir()
    folders.write_text("in the way")


def _no_checkpoint(world: World) -> None:
    """What is handed out cannot be saved: a folder is in its place."""
    waits(world, "p", (0, 1000, 0))
    file = world.root / "state" / "handed-out.json"
    file.unlink(missing_ok=True)
    (file / "in the way").mkdir(parents=True)


@pytest.mark.case("LCK-06")
@pytest.mark.parametrize("prepare", [_unknown_card, _torn_annotation, _no_folder, _no_checkpoint])
async def test_every_error_of_allocate_fails_the_pod_and_frees_its_lock(prepare: Callable[[World], None]) -> None:
    async with bare_kubelet() as kubelet:
        prepare(kubelet.world)
        kubelet.world.lock_node("p")
        assert await kubelet.refusal(replica(0))
        await until(lambda: kubelet.world.phase("p") == "failed", "the phase")
        await unlocked(kubelet.world)


@pytest.mark.case("LCK-06")
@pytest.mark.parametrize("code", [409, 500])
async def test_an_error_of_the_api_server_while_the_lock_goes_is_tried_again(code: int) -> None:
    async with bare_kubelet() as kubelet:
        _unknown_card(kubelet.world)
        kubelet.world.lock_node("p")
        kubelet.world.fake.fail("patch", "*", code, times=2)
        assert await kubelet.refusal(replica(0))
        await until(lambda: kubelet.world.phase("p") == "failed", "the phase")
        await unlocked(kubelet.world)


@pytest.mark.case("ANN-08")
async def test_a_card_that_is_gone_is_named_with_pod_and_node() -> None:
    async with bare_kubelet() as kubelet:
        _unknown_card(kubelet.world)
        kubelet.world.lock_node("p")
        said = await kubelet.refusal(replica(0))
        assert all(word in said for word in ("default/p", card_id(7), f"node {NODE}"))


@pytest.mark.case("LCK-04")
@pytest.mark.parametrize("owner", ["abc-123", "my-abc"])
async def test_a_served_pod_does_not_free_the_lock_of_a_pod_of_a_similar_name(owner: str) -> None:
    async with bare_kubelet() as kubelet:
        world = kubelet.world
        waits(world, "abc", (0, 1000, 0))
        world.bind_pod(owner, None, container())
        world.lock_node(owner)
        held = world.annotation_of_node(LOCK_KEY)
        assert (await kubelet.allocate(replica(0))).envs[LIMIT] == "1000m"
        await until(lambda: world.phase("abc") == "success", "the phase")
        assert world.annotation_of_node(LOCK_KEY) == held


# ---- with the scheduler ------------------------------------------------------------------------------------------


@pytest.mark.case("LCK-01")
async def test_a_pod_that_came_while_another_waited_gets_its_own_limits() -> None:
    """The lock of `a` has expired and Allocate for `a` has not answered yet when `b` is to be bound."""
    async with cluster("lock") as found:
        world = found.world
        allocate = world.fake.hold("get", "pods")
        await found.create("a", runs("main", 1000))
        await allocate.reached.wait()
        node = world.node()
        expired = go_time.format_rfc3339(datetime.now(tz=UTC) - timedelta(minutes=6)) + ",default,a"
        node["metadata"]["annotations"][LOCK_KEY] = expired
        world.fake.put("nodes", node)
        looked = world.fake.count("get", "pods")
        second = asyncio.create_task(found.create("b", runs("main", 3000)))
        await world.fake.wait_for_requests("get", "pods", looked + 1)
        assert world.annotation_of_node(LOCK_KEY) == expired
        assert not second.done()
        allocate.release()
        assert await found.limit("a", "main") == "1000m"
        await second
        assert await found.limit("b", "main") == "3000m"


@pytest.mark.case("LCK-01")
async def test_allocate_for_the_first_after_the_second_was_turned_away() -> None:
    async with bare_kubelet() as kubelet:
        waits(kubelet.world, "a", (0, 1000, 0))
        kubelet.world.lock_node("a")  # long expired; the scheduler's part: test_cases_node_lock
        assert (await kubelet.allocate(replica(0))).envs[LIMIT] == "1000m"
        await unlocked(kubelet.world)
        waits(kubelet.world, "b", (0, 3000, 0))
        kubelet.world.lock_node("b")
        assert (await kubelet.allocate(replica(0, 1))).envs[LIMIT] == "3000m"


# ---- kubelet starts again ----------------------------------------------------------------------------------------


@pytest.mark.case("MUL-09")
async def test_a_repeated_allocate_of_a_finished_init_container_consumes_nothing_of_another_pod() -> None:
    """Bound late, Allocate gives nothing away, so nothing of another pod can be consumed; who starts decides."""
    async with bare_kubelet("late-binding") as kubelet:
        world = kubelet.world
        world.bind_pod(
            "first",
            slot((0, 5000, 0)) + slot((0, 3000, 0)),
            container("c0", gpus=1),
            initContainers=[container("i0", gpus=1)],
        )
        waits(world, "pending", (0, 1000, 0))
        answers = [await kubelet.allocate(replica(0, number)) for number in (0, 0, 0)]
        assert all(LIMIT not in answer.envs for answer in answers)
        assert all(answer.envs["HAMI_HANDOFF"] == "pending" for answer in answers)
        assert world.annotation("pending", TO_ALLOCATE_KEY) == slot((0, 1000, 0))
        assert world.phase("pending") == "allocating"


def _holds(world: World, uid: str, device: str, answers: dict[str, pb.ContainerAllocateResponse]) -> None:
    """Kubelet's checkpoint: an init container's ids were given again to the app container."""
    entries = [
        checkpoint.pod_devices_entry(uid, name, "nvidia.com/gpu", {-1: [device]}, answer)
        for name, answer in answers.items()
    ]
    written = checkpoint.Checkpoint(checkpoint.CheckpointData(entries, {}))
    file = world.root / "kl" / "device-plugins" / CHECKPOINT_FILE
    file.write_bytes(checkpoint.write_checkpoint(written))


@pytest.mark.case("MUL-09")
async def test_by_lock_it_is_answered_again_from_its_own_slot() -> None:
    async with bare_kubelet() as kubelet:
        world, device = kubelet.world, replica(0)
        uid = world.bind_pod(
            "first",
            slot((0, 5000, 0)) + slot((0, 3000, 0)),
            container("c0", gpus=1),
            initContainers=[container("i0", gpus=1)],
        )
        world.lock_node("first")
        first = await kubelet.allocate(device)
        _holds(world, uid, device, {"i0": first})
        second = await kubelet.allocate(device)
        assert (first.envs[LIMIT], second.envs[LIMIT]) == ("5000m", "3000m")
        await unlocked(world)
        _holds(world, uid, device, {"i0": first, "c0": second})
        world.fake.put("pods", {**world.pod("first"), "status": {"phase": "Running"}})

        waits(world, "pending", (0, 1000, 0))
        world.lock_node("pending")
        assert await kubelet.allocate(device) == first
        assert world.annotation("pending", TO_ALLOCATE_KEY) == slot((0, 1000, 0))
        assert world.annotation("first", PHASE_KEY) == "success"
        assert (await kubelet.allocate(replica(0, 1))).envs[LIMIT] == "1000m"
        await unlocked(world)
