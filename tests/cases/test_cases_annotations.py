"""Cases of the area annotation: what is written on pods and nodes, and what is made of what others wrote."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from case_placing import TO_ALLOCATE_KEY, ask, containers, ended, placing
from hami_model import device_config, kube
from hami_scheduler.config import MetricsSettings, PlacementSettings
from hami_scheduler.core.filter import filter_pod
from hami_scheduler.core.ledger import Ledger
from hami_sim.fake_kube import FakeKube
from hypothesis import given
from hypothesis import strategies as st
from scheduler_builders import ALLOCATED_KEY, REGISTER_KEY, card, container, limits, node, pod
from scheduler_service import eventually, series

A100 = card("GPU-a", model="NVIDIA-NVIDIA A100-SXM4-80GB", memory_mib=81559)


@pytest.mark.case("ANN-01")
@pytest.mark.parametrize("annotate_at", ["bind", "filter"])
@pytest.mark.parametrize(
    ("init", "app", "text"),
    [
        pytest.param([], [None, 3000, None], ";GPU-a,NVIDIA,3000,0:;;", id="the middle one asks"),
        pytest.param([None], [None, 3000, None], ";;GPU-a,NVIDIA,3000,0:;;", id="behind an init container"),
        pytest.param([], [None, None, None, 3000], ";;;GPU-a,NVIDIA,3000,0:;", id="the last of four asks"),
    ],
)
async def test_every_container_has_its_slot_whatever_the_card_is_called(
    fake_kube: FakeKube, annotate_at: Any, init: list[None], app: list[int | None], text: str
) -> None:
    placement = PlacementSettings(annotate_at=annotate_at)
    async with placing(fake_kube, node("n1", [A100]), placement=placement) as placed:
        fields = {"containers": containers(*app), "init_containers": containers(*init, names="i")}
        await placed.filter("a", **fields)
        if annotate_at == "bind":
            await placed.bind("a")
        annotations = fake_kube.get("pods", "a", "default")["metadata"]["annotations"]
        assert (annotations[TO_ALLOCATE_KEY], annotations[ALLOCATED_KEY]) == (text, text)


@pytest.mark.case("ANN-02")
async def test_the_end_of_an_init_container_without_cards_frees_nothing(fake_kube: FakeKube) -> None:
    async with placing(fake_kube) as placed:
        await placed.place("a", init_containers=containers(None, names="i"), containers=containers(6000))
        placed.update("a", phase="Running", **ended("i0"))
        await placed.caught_up()
        assert await placed.used_mib() == 6000
        assert await placed.refused("b", memory=6000) == {"n1": "1/1 CardInsufficientMemory"}


def _ledger() -> Ledger:
    ledger = Ledger(device_config.default_config())
    ledger.upsert_node(msgspec.convert(node("n1", 8), kube.Node), datetime(2026, 1, 1, tzinfo=UTC))
    return ledger


@pytest.mark.case("ANN-03")
@given(
    init=st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=3),
    app=st.lists(st.integers(0, 2), min_size=1, max_size=4),
)
def test_slot_i_is_empty_exactly_when_container_i_asks_nothing(init: list[tuple[int, bool]], app: list[int]) -> None:
    asked = [count for count, _ in init] + app
    wanted = pod(
        "a",
        init_containers=[
            container(f"i{n}", ask=limits(count, 10) if count else {}, **({"restartPolicy": "Always"} if stays else {}))
            for n, (count, stays) in enumerate(init)
        ],
        containers=[container(f"c{n}", ask=limits(count, 10) if count else {}) for n, count in enumerate(app)],
    )
    now = datetime(2026, 1, 1, tzinfo=UTC)
    answer = filter_pod(_ledger(), msgspec.convert(wanted, kube.Pod), ["n1"], allocation_id="x", now=now)
    text = answer.annotations.get(ALLOCATED_KEY)
    if not any(asked):
        assert text is None
        return
    assert text is not None
    slots = text.removesuffix(";").split(";")
    assert [slot.count("NVIDIA") for slot in slots] == asked
    assert answer.annotations[TO_ALLOCATE_KEY] == text


@pytest.mark.case("ANN-04")
@pytest.mark.parametrize(
    ("text", "held_by"),
    [
        pytest.param(";n1-0,NVIDIA,4096,0:;", ["1"], id="as it is written"),
        pytest.param(";n1-0,NVIDIA,4096,0:;;;", ["1"], id="surplus slots are cut"),
        pytest.param(";n1-0,NVIDIA,4096,0:", ["1"], id="no terminator"),
        pytest.param("", [], id="empty"),
        pytest.param(";", [], id="one empty slot"),
        pytest.param(";;", [], id="two empty slots"),
    ],
)
async def test_a_device_is_shown_at_its_own_container(fake_kube: FakeKube, text: str, held_by: list[str]) -> None:
    async with placing(fake_kube, metrics=MetricsSettings(hami_names=True)) as placed:
        placed.held("a", text, containers=containers(None, 4096))
        await placed.caught_up()
        _, metrics = await placed.scheduler.observe("/metrics")
        name = "hami_vgpu_memory_allocated_bytes"
        shown = {
            index: series(metrics, name, pod="a", device_uuid="n1-0", container_index=index) for index in ("0", "1")
        }
        assert [index for index, value in shown.items() if value is not None] == held_by
        assert all(shown[index] == 4096 * 2**20 for index in held_by)


@pytest.mark.case("ANN-06")
async def test_the_old_text_form_of_a_register_annotation_is_refused_and_said_on_the_node(fake_kube: FakeKube) -> None:
    """Decided for NVIDIA; families that write the text form have it read (libs/hami-model, same case)."""
    old = "GPU-a,10,81559,100,NVIDIA-NVIDIA H100 80GB HBM3,0,true,1,hami-core:"
    async with placing(fake_kube, node("n1"), node("old", annotations={REGISTER_KEY: old})) as placed:
        await eventually(lambda: [reason for reason, _ in placed.events("old")] == ["InventoryUnreadable"])
        assert REGISTER_KEY in placed.events("old")[0][1]
        assert await placed.refused("a", "old") == {"old": "node unregistered"}
        await placed.place("b", "old", "n1")


@pytest.mark.case("ANN-07")
async def test_cards_without_an_index_are_counted_apart_by_id(fake_kube: FakeKube) -> None:
    """The text form of other families is read in libs/hami-model (same case); here the same lack in NVIDIA's form."""
    cards = [card("GPU-0", index=0), card("GPU-1", index=0)]
    async with placing(fake_kube, node("n1", cards)) as placed:
        for name in ("a", "b"):
            await placed.place(name, memory=6000)
        assert {placed.allocated(name) for name in ("a", "b")} == {f"GPU-{n},NVIDIA,6000,0:;" for n in (0, 1)}
        assert [await placed.used_mib(f"GPU-{n}") for n in (0, 1)] == [6000, 6000]


@pytest.mark.case("ANN-09")
@pytest.mark.parametrize("annotate_at", ["bind", "filter"])
async def test_a_filter_call_for_a_bound_pod_writes_nothing(fake_kube: FakeKube, annotate_at: Any) -> None:
    async with placing(fake_kube, placement=PlacementSettings(annotate_at=annotate_at)) as placed:
        await placed.place("a", memory=2000)
        placed.update("a", phase="Running")
        written, before = placed.writes_on_pods(), fake_kube.get("pods", "a", "default")
        assert "bound to node n1 already" in (await placed.filter_again("a"))["Error"]
        assert placed.writes_on_pods() == written
        assert fake_kube.get("pods", "a", "default") == before
        assert await placed.used_mib() == 2000


@pytest.mark.case("ANN-11")
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("n1-0,NVIDIA:;", id="two fields"),
        pytest.param("n1-0,NVIDIA,x,0:;", id="no number"),
        pytest.param("n1-0,NVIDIA,-500,0:;", id="negative"),
        pytest.param("n1-0,AMD,1000,0:;", id="another vendor's word"),
    ],
)
@pytest.mark.parametrize("mended", [True, False])
async def test_a_malformed_annotation_blocks_its_card_until_it_is_mended_or_the_pod_is_gone(
    fake_kube: FakeKube, text: str, mended: bool
) -> None:
    async with placing(fake_kube, node("n1", 2)) as placed:
        await placed.place("sound", memory=1000, annotations={"nvidia.com/use-gpuuuid": "n1-0"})
        placed.held("bad", text)
        await eventually(lambda: [reason for reason, _ in placed.events("bad")] == ["AllocationUnreadable"])
        assert ALLOCATED_KEY in placed.events("bad")[0][1]
        only_that = {"nvidia.com/use-gpuuuid": "n1-0"}
        assert "CardBlocked" in (await placed.refused("a", memory=1, annotations=only_that))["n1"]
        assert placed.allocated("sound") == "n1-0,NVIDIA,1000,0:;"
        await placed.place("elsewhere", memory=6000)
        assert placed.allocated("elsewhere") == "n1-1,NVIDIA,6000,0:;"
        if mended:
            placed.held("bad", "n1-0,NVIDIA,4000,0:;", uid=fake_kube.get("pods", "bad", "default")["metadata"]["uid"])
        else:
            fake_kube.remove("pods", "bad", "default")
        await placed.uses(5000 if mended else 1000)
        await placed.caught_up()
        await placed.place("b", memory=5000, annotations=only_that)


@pytest.mark.case("ANN-11")
async def test_an_entry_that_names_no_card_blocks_nothing(fake_kube: FakeKube) -> None:
    async with placing(fake_kube) as placed:
        placed.held("bad", ",NVIDIA,x,0:;")
        await placed.caught_up()
        await placed.place("a", containers=[container(**ask(10_000))])
