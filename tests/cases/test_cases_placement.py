"""Cases of the area placement that need no MIG, and sidecars, by what filter answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from case_placing import ask, containers, ended, placing
from hami_sim.fake_kube import FakeKube
from scheduler_builders import card, container, node

ON_CARD = "nvidia.com/use-gpuuuid"


@pytest.mark.case("PLC-01")
async def test_load_counts_before_numa_when_cards_are_spread(fake_kube: FakeKube) -> None:
    cards = [card(f"c{number}", index=number, numa=numa) for number, numa in enumerate((0, 0, 1, 1))]
    async with placing(fake_kube, node("n1", cards)) as placed:
        await placed.place("busy", memory=5000, cores=50, annotations={ON_CARD: "c0"})
        policy = "hami.io/gpu-scheduler-policy"
        await placed.place("packed", memory=100, annotations={policy: "binpack"})
        assert placed.allocated("packed").startswith("c0,")
        taken = []
        for number in range(3):
            await placed.place(f"spread-{number}", memory=100, annotations={policy: "spread"})
            taken.append(placed.allocated(f"spread-{number}").partition(",")[0])
        assert sorted(taken) == ["c1", "c2", "c3"], "each of the unused cards, never the busy one"


@pytest.mark.case("PLC-01")
async def test_numa_breaks_the_tie_between_equally_loaded_cards(fake_kube: FakeKube) -> None:
    """Two cards for one container: all four are unused, so they come from one NUMA node."""
    cards = [card(f"c{number}", index=number, numa=numa) for number, numa in enumerate((0, 1, 0, 1))]
    async with placing(fake_kube, node("n1", cards)) as placed:
        await placed.place("two", gpu=2, memory=100, annotations={"hami.io/gpu-scheduler-policy": "spread"})
        chosen = {entry.partition(",")[0] for entry in placed.allocated("two").removesuffix(";").split(":") if entry}
        assert chosen in ({"c0", "c2"}, {"c1", "c3"})


@pytest.mark.case("PLC-03")
@pytest.mark.parametrize(("policy", "chosen"), [("binpack", "b"), ("spread", "a")])
async def test_binpack_takes_the_node_in_use_and_spread_the_empty_one(
    fake_kube: FakeKube, policy: str, chosen: str
) -> None:
    async with placing(fake_kube, node("a", 8), node("b", 8)) as placed:
        for number in range(5):
            await placed.place(f"run-{number}", "b", memory=10_000, cores=100)
        bound = await placed.place("p", "a", "b", annotations={"hami.io/node-scheduler-policy": policy})
        assert bound["spec"]["nodeName"] == chosen


def _pair_scores(score: int) -> dict[str, str]:
    """One score between all of the four cards of n1."""
    ids = [f"n1-{number}" for number in range(4)]
    rows = [{"uuid": card_id, "score": {peer: score for peer in ids if peer != card_id}} for card_id in ids]
    return {"hami.io/node-nvidia-score": json.dumps(rows)}


@pytest.mark.case("PLC-05")
@pytest.mark.parametrize(
    "annotations",
    [
        pytest.param({}, id="no scores"),
        pytest.param(_pair_scores(0), id="all 0"),
        pytest.param(_pair_scores(-5), id="all negative"),
        pytest.param({"hami.io/node-nvidia-score": "[]"}, id="an empty list"),
        pytest.param({"hami.io/node-nvidia-score": "["}, id="unreadable"),
    ],
)
async def test_cards_of_which_none_is_connected_better_are_given_like_others(
    fake_kube: FakeKube, annotations: dict[str, str]
) -> None:
    async with placing(fake_kube, node("n1", 4, annotations=annotations)) as placed:
        await placed.place("two", gpu=2, memory=100, annotations={"hami.io/gpu-scheduler-policy": "topology-aware"})
        assert placed.allocated("two") == "n1-3,NVIDIA,100,0:n1-2,NVIDIA,100,0:;"


@pytest.mark.case("PLC-08")
async def test_one_of_the_fitting_nodes_is_answered_and_only_of_those_that_were_asked_about(
    fake_kube: FakeKube,
) -> None:
    """Required affinity is in the names that kube-scheduler sends. There is no option yet that answers all of them."""
    async with placing(fake_kube, node("n1"), node("n2"), node("n3")) as placed:
        answer = await placed.filter("a", "n1", "n2")
        assert len(answer["NodeNames"]) == 1
        assert answer["NodeNames"][0] in ("n1", "n2")
        assert (await placed.filter_again("a", "n2"))["NodeNames"] == ["n2"]
        (refused,) = (await placed.refused("b", "n2", memory=9500)).items()
        assert refused == ("n2", "1/1 CardInsufficientMemory"), "n1 and n3 would fit, but were not asked about"


@pytest.mark.case("PLC-10")
@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param("NVIDIA-NVIDIA T1000 8GB", "large,NVIDIA,100,0:;", id="as it is registered"),
        pytest.param("T1000", "large,NVIDIA,100,0:;", id="a part of it"),
        pytest.param("NVIDIA-NVIDIA T2000", None, id="a model that is not there"),
    ],
)
async def test_a_model_that_is_asked_for_is_the_one_that_is_given(
    fake_kube: FakeKube, wanted: str, expected: str | None
) -> None:
    cards = [card("small", model="NVIDIA-NVIDIA T400 4GB"), card("large", model="NVIDIA-NVIDIA T1000 8GB", index=1)]
    async with placing(fake_kube, node("n1", cards)) as placed:
        annotations = {"nvidia.com/use-gputype": wanted}
        if expected is None:
            assert await placed.refused("a", memory=100, annotations=annotations) == {"n1": "2/2 CardTypeMismatch"}
        else:
            await placed.place("a", memory=100, annotations=annotations)
            assert placed.allocated("a") == expected


def _init(name: str, memory: int, *, stays: bool = False) -> dict[str, Any]:
    return container(name, **ask(memory), **({"restartPolicy": "Always"} if stays else {}))


@pytest.mark.case("MUL-02")
async def test_a_sidecar_and_the_containers_beside_it_are_added_up(fake_kube: FakeKube) -> None:
    async with placing(fake_kube) as placed:
        over = {"init_containers": [_init("sc", 6000, stays=True)], "containers": containers(6000)}
        assert await placed.refused("over", **over) == {"n1": "1/1 CardInsufficientMemory"}

        order = [_init("i0", 4000), _init("sc", 3000, stays=True), _init("i1", 2000)]
        await placed.place("a", init_containers=order, containers=containers(1000))
        assert await placed.used_mib() == 5000, "max(4000, 3000 + 2000, 3000 + 1000)"
        placed.update("a", **ended("i0"))
        await placed.caught_up()
        assert await placed.used_mib() == 5000, "one of the one-shot init containers is still to come"
        placed.update("a", phase="Running", **ended("i0", "i1"))
        await placed.uses(4000)
        await placed.caught_up()
        assert await placed.used_mib() == 4000, "the sidecar keeps its share"


@pytest.mark.case("MUL-06")
async def test_two_containers_share_a_card_but_one_container_gets_no_card_twice(fake_kube: FakeKube) -> None:
    async with placing(fake_kube, node("n1", [card("n1-0", memory_mib=12_288)])) as placed:
        two_each = [container("c0", **ask(2000, 2)), container("c1"), container("c2", **ask(3000, 2))]
        assert (await placed.refused("b", containers=two_each)).keys() == {"n1"}
        await placed.place("a", containers=containers(2000, None, 3000))
        assert placed.allocated("a") == "n1-0,NVIDIA,2000,0:;;n1-0,NVIDIA,3000,0:;"
        assert await placed.used_mib() == 5000
