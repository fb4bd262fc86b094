"""Eight cards that break one after the other while pods start: each fault is its own card's, and all come back."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "services" / "node-agent" / "tests"))

from node_agent_world import World, card_id, container, new_world, slot, until

CARDS = 8
HANG_MICROSECONDS = "15000000"
UNINITIALISED, DRIVER_NOT_LOADED, UNKNOWN = "1", "9", "999"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with new_world(cards=CARDS) as found:
        found.configuration["health"] |= {"answer_seconds": 4}
        yield found


def broken(world: World) -> set[int]:
    return {number for number, card in enumerate(world.register()) if not card.get("health", False)}


def ever_broken(world: World) -> set[str]:
    lines = [line for line in world.agent_lines("node-event") if line["reason"] == "CardUnhealthy"]
    return {line["message"].split()[1] for line in lines}


def broken_as_told(world: World) -> set[str]:
    """By the last event of each card."""
    last = {line["message"].split()[1]: line["reason"] for line in world.agent_lines("node-event")}
    return {card for card, reason in last.items() if reason == "CardUnhealthy"}


async def pod_starts(world: World, card: int) -> None:
    name = f"on-{card}-{len(world.fake.all('pods'))}"
    world.bind_pod(name, slot((card, 1000, 10)), container(gpus=1))
    await world.runs(name)


@pytest.mark.case("REG-06")
@pytest.mark.case("REG-07")
async def test_each_fault_costs_its_own_card_only(world: World) -> None:
    world.start_agent()
    async with world.kubelet(allocatable=10 * CARDS):
        world.sim_driver("xid", "3", "31")  # a program's
        world.sim_driver("xid", "unknown", "79")
        await until(lambda: world.events("FaultOfUnknownCard"), "the event of the unknown card")
        world.sim_driver("lose", "1")
        await until(lambda: broken(world) == {1}, "the lost card")
        await pod_starts(world, 3)

        world.sim_driver("nvml-delay", HANG_MICROSECONDS, "2")
        await until(lambda: broken(world) == {1, 2}, "the card that does not answer")
        await pod_starts(world, 4)

        # While one hangs another one's fault arrives, and kubelet hears of it.
        world.sim_driver("lose", "5")
        await until(lambda: broken(world) == {1, 2, 5}, "one fault beside the other")
        await world.allocatable(10 * (CARDS - 3))
        await pod_starts(world, 6)

        world.sim_driver("fail", "nvmlEventSetWait_v2", "--code", UNKNOWN, "--times", "4")
        await until(lambda: world.events("FaultsNotReported"), "the event of the watch that failed")
        await until(lambda: "none any more" in str(world.agent_lines("fault-watch")), "the watch to work again")
        await pod_starts(world, 7)
        world.sim_driver("double-bit-ecc", "0")
        world.sim_driver("restore", "1")
        world.sim_driver("restore", "5")
        world.sim_driver("nvml-delay", "0", "2")
        await until(lambda: f"card {card_id(0)} is unhealthy: double-bit-ecc" in str(world.events("CardUnhealthy")))
        await until(lambda: broken(world) == set(), "all cards to come back")
        await world.allocatable(10 * CARDS)
        await pod_starts(world, 1)

    assert ever_broken(world) == {card_id(number) for number in (0, 1, 2, 5)}


async def loaded_anew(world: World) -> None:
    """Returns when the library has been loaded again, and faults are reported by the new one."""
    await until(lambda: world.agent_lines("driver-loaded-anew"), "the driver to be loaded")
    await until(lambda: "none any more" in str(world.agent_lines("fault-watch")), "its faults to be reported")


async def strikes_and_passes(world: World, card: int) -> None:
    """A fault that the driver reports, and the way back from it."""
    world.sim_driver("xid", str(card), "79")
    told = await until(lambda: world.agent_lines("xid"), "a fault reported by the new library")
    assert [(line["card"], line["xid"]) for line in told] == [(card_id(card), 79)]

    def is_back() -> bool:
        back = f"card {card_id(card)} is healthy again"
        return any(
            line["message"].startswith(back) and line["time"] > told[0]["time"]
            for line in world.agent_lines("node-event")
        )

    await until(is_back, "the way back")
    await pod_starts(world, card)


@pytest.mark.case("REG-07")
@pytest.mark.parametrize(
    ("code", "failing"),
    [
        pytest.param(DRIVER_NOT_LOADED, {"nvmlDeviceGetCount_v2": 1}, id="not loaded"),
        pytest.param(
            UNINITIALISED,
            {"nvmlDeviceGetHandleByUUID": CARDS, "nvmlDeviceGetCount_v2": 1},
            id="gone, as it says of every card",
        ),
    ],
)
async def test_loading_the_driver_anew_is_no_fault_of_any_card(
    world: World, code: str, failing: dict[str, int]
) -> None:
    world.start_agent()
    async with world.kubelet(allocatable=10 * CARDS):
        for call, times in failing.items():
            world.sim_driver("fail", call, "--code", code, "--times", str(times))
        await loaded_anew(world)
        assert ever_broken(world) == set()
        await pod_starts(world, 0)
        await strikes_and_passes(world, 2)

    assert ever_broken(world) == {card_id(2)}


async def test_a_driver_that_is_started_again_is_loaded_until_it_can_be(world: World) -> None:
    """Before kubelet comes: while no card is healthy it would reject pods for good."""
    world.start_agent()
    await until(lambda: world.agent_lines("started"), "the first inventory")
    world.sim_driver("fail", "nvmlInitWithFlags", "--code", DRIVER_NOT_LOADED, "--times", "2")
    world.sim_driver("fail", "nvmlInit_v2", "--code", DRIVER_NOT_LOADED, "--times", "2")
    world.sim_driver("fail", "nvmlDeviceGetCount_v2", "--code", DRIVER_NOT_LOADED, "--times", "1")
    await loaded_anew(world)
    assert world.agent_lines("driver-not-loaded")
    await until(lambda: broken_as_told(world) == set(), "all cards to come back")
    async with world.kubelet(allocatable=10 * CARDS):
        await strikes_and_passes(world, 2)


async def test_a_card_that_hangs_at_the_start_appears_when_it_answers(world: World) -> None:
    """A pod that was bound to it before waits for it."""
    world.sim_driver("nvml-delay", HANG_MICROSECONDS, "0")
    world.start_agent()
    async with world.kubelet(allocatable=10 * (CARDS - 1)):
        await until(lambda: "index 0 is not offered" in str(world.events("CardNotOffered")), "the event")
        await pod_starts(world, 7)
        world.bind_pod("waiting", slot((0, 1000, 10)), container(gpus=1))
        await world.waits_with("waiting", "cannot tell of all cards now")
        world.sim_driver("nvml-delay", "0", "0")
        await until(lambda: len(world.register()) == CARDS, "the card")
        await world.allocatable(10 * CARDS)
        await world.runs("waiting")
