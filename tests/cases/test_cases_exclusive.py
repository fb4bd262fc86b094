"""Cases of the area exclusive-cores, from admission to what filter answers."""

from __future__ import annotations

from typing import Any

import pytest
from case_placing import placing
from hami_sim.fake_kube import FakeKube
from scheduler_builders import Json, card, container, limits, node
from webhook_builders import gpu_pod, review_pod


def admitted(**asked: int) -> list[Json]:
    """The containers of a pod once the webhook has completed it."""
    reviewed = review_pod(gpu_pod(**asked))
    assert reviewed.allowed
    return list(reviewed.pod["spec"]["containers"])


def shares(name: str = "main", **asked: Any) -> list[Json]:
    return [container(name, ask=limits(**asked))]


@pytest.mark.case("EXC-01")
async def test_a_card_with_all_cores_taken_takes_no_pod_without_cores(fake_kube: FakeKube) -> None:
    async with placing(fake_kube) as placed:
        await placed.place("a", containers=admitted(gpu=1, gpumem=1000, gpucores=100))
        reasons = await placed.refused("b", containers=admitted(gpu=1, gpumem=1000))
        assert reasons == {"n1": "1/1 CardComputeUnitsExhausted"}
        fake_kube.remove("pods", "a", "default")
        await placed.uses(0)
        await placed.place("c", containers=admitted(gpu=1, gpumem=1000))


@pytest.mark.case("EXC-01")
@pytest.mark.parametrize("cores", [100, 130, 4294967396])
async def test_whoever_asks_for_all_cores_shares_with_nobody(fake_kube: FakeKube, cores: int) -> None:
    """Cores above 100 are a whole card, whatever 32 bits would make of them."""
    async with placing(fake_kube) as placed:
        await placed.place("a", memory=1000)
        reasons = await placed.refused("b", containers=admitted(gpu=1, gpumem=1000, gpucores=cores))
        assert reasons == {"n1": "1/1 ExclusiveDeviceAllocateConflict"}


@pytest.mark.case("EXC-04")
async def test_a_card_split_in_three_is_refused_to_the_fourth_pod_before_kubelet_sees_it(fake_kube: FakeKube) -> None:
    async with placing(fake_kube, node("n1", [card("n1-0", slots=3)])) as placed:
        containers = admitted(gpu=1, **{"gpumem-percentage": 10})
        for name in ("a", "b", "c"):
            await placed.place(name, containers=containers)
        assert await placed.refused("d", containers=containers) == {"n1": "1/1 CardTimeSlicingExhausted"}
        assert "no slice is reserved" in await placed.bind("d")
        assert "nodeName" not in fake_kube.get("pods", "d", "default")["spec"]


@pytest.mark.case("EXC-05")
@pytest.mark.parametrize("completed", [True, False])
async def test_without_memory_whole_cards_are_given_and_held(fake_kube: FakeKube, completed: bool) -> None:
    containers = admitted(gpu=6) if completed else shares(gpu=6)
    async with placing(fake_kube, node("n1", 8)) as placed:
        await placed.place("a", containers=containers)
        assert placed.allocated("a").count(f",10000,{100 if completed else 0}:") == 6
        reasons = await placed.refused("b", containers=containers)
        assert reasons == {"n1": "2/8 AllocatedCardsInsufficientRequest, 6/8 CardInsufficientMemory"}
