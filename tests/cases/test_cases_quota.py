"""Cases of the area quota: the webhook refuses early, filter refuses certainly, and what is used is counted once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from case_placing import Placing, ask, containers, ended, placing
from hami_model import device_config, kube
from hami_scheduler.config import PlacementSettings
from hami_sim.fake_kube import FakeKube
from scheduler_builders import Json, container, node, pod, quota
from scheduler_service import eventually
from webhook_builders import gpu_pod, policy, review_pod
from webhook_builders import pod as plain_pod

CONFIG = device_config.default_config()
DOES_NOT_FIT = "ResourceQuotaNotFit"


def known(*quotas: Json) -> list[kube.ResourceQuota]:
    """Quotas as the webhook's informer holds them, in the namespace of its builders."""
    moved = [{**each, "metadata": {**each["metadata"], "namespace": "team-a", "uid": each["metadata"]["name"]}}
             for each in quotas]  # fmt: skip
    return [msgspec.convert(each, kube.ResourceQuota) for each in moved]


async def tried(placed: Placing, memory: int) -> bool:
    """Whether filter finds a node for that much; nothing stays reserved."""
    name = f"try-{memory}"
    answer = await placed.filter(name, memory=memory)
    if answer["NodeNames"] is None:
        assert DOES_NOT_FIT in str(answer["FailedNodes"])
    placed.fake.remove("pods", name, "default")
    await placed.caught_up()
    return answer["NodeNames"] is not None


@pytest.mark.case("QUO-01")
@pytest.mark.parametrize("names", list(itertools.permutations(["q1", "q2"])))
async def test_the_smallest_of_several_quotas_holds_until_the_last_is_gone(
    fake_kube: FakeKube, names: tuple[str, ...]
) -> None:
    limits = {"q1": 1000, "q2": 8000}
    wide = node("n1", 1)
    async with placing(fake_kube, wide) as placed:
        for name in names:
            fake_kube.put("resourcequotas", quota(name, "default", gpumem=limits[name]))
            await placed.quota_is(min(limits[each] for each in names[: names.index(name) + 1]))
        objects = [quota(name, "default", gpumem=limits[name]) for name in names]
        assert not review_pod(gpu_pod(gpu=1, gpumem=2000), quotas=known(*objects)).allowed
        assert not await tried(placed, 2000)
        fake_kube.remove("resourcequotas", "q2", "default")
        await placed.caught_up()
        assert not review_pod(gpu_pod(gpu=1, gpumem=9999), quotas=known(quota("q1", "default", gpumem=1000))).allowed
        assert not await tried(placed, 9999)
        fake_kube.remove("resourcequotas", "q1", "default")
        await placed.quota_is(None)
        assert review_pod(gpu_pod(gpu=1, gpumem=9999)).allowed
        assert await tried(placed, 9999)


@pytest.mark.case("QUO-02")
async def test_an_annotation_that_cannot_be_written_charges_nothing(fake_kube: FakeKube) -> None:
    fake_kube.put("resourcequotas", quota("q", "default", gpumem=2000))
    async with placing(fake_kube, placement=PlacementSettings(annotate_at="filter")) as placed:
        await placed.quota_is(2000)
        fake_kube.fail("patch", "pods", 500)
        assert "could not be written" in (await placed.filter("a", memory=2000))["Error"]
        assert (await placed.quota_used_mib(), await placed.used_mib()) == (0, 0)
        assert not fake_kube.get("pods", "a", "default")["metadata"].get("annotations")
        await placed.place("b", memory=2000)


def _succeeds(placed: Placing) -> None:
    placed.update("p", phase="Succeeded")


def _is_deleted(placed: Placing) -> None:
    placed.fake.remove("pods", "p", "default")


def _twice(step: Callable[[Placing], None]) -> Callable[[Placing], None]:
    """The change, and its line in the watch once more."""

    def told_twice(placed: Placing) -> None:
        step(placed)
        placed.fake.repeat_last_event("pods")

    return told_twice


@pytest.mark.case("QUO-04")
@pytest.mark.parametrize(
    "history",
    [
        pytest.param([_succeeds, _is_deleted], id="ended, then deleted"),
        pytest.param([_is_deleted], id="deleted"),
        pytest.param([_twice(_is_deleted)], id="deleted, told twice"),
        pytest.param([_twice(_succeeds), _twice(_is_deleted)], id="everything told twice"),
    ],
)
async def test_the_charge_of_a_pod_goes_once(fake_kube: FakeKube, history: list[Callable[[Placing], None]]) -> None:
    fake_kube.put("resourcequotas", quota("q", "default", gpumem=5000))
    async with placing(fake_kube) as placed:
        await placed.place("other", memory=700)
        await placed.place("p", memory=1000)
        assert await placed.quota_used_mib() == 1700
        for step in history:
            step(placed)
            await placed.caught_up()
            assert await placed.quota_used_mib() == 700
        fake_kube.remove("pods", "other", "default")
        await placed.caught_up()
        assert await placed.quota_used_mib() == 0


@pytest.mark.case("QUO-05")
async def test_amounts_are_charged_per_card(fake_kube: FakeKube) -> None:
    asks = {"gpu": 2, "memory": 2048, "cores": 20}
    fake_kube.put("resourcequotas", quota("q", "default", gpumem=4095, gpucores=40))
    async with placing(fake_kube, node("n1", 2)) as placed:
        await placed.quota_is(4095)
        assert DOES_NOT_FIT in (await placed.refused("a", **asks))["n1"]
        fake_kube.put("resourcequotas", quota("q", "default", gpumem=4096, gpucores=40))
        await placed.quota_is(4096)
        await placed.place("b", **asks)
        assert await placed.quota_used_mib() == 4096
        more = gpu_pod(gpu=2, gpumem=2048, gpucores=20)
        for limit, fits in ((4095, False), (4096, True)):
            assert review_pod(more, quotas=known(quota("q", "", gpumem=limit, gpucores=40))).allowed is fits


@pytest.mark.case("QUO-07")
async def test_memory_is_held_to_its_quota_with_its_factor(fake_kube: FakeKube, tmp_path: Any) -> None:
    """NVIDIA's, by a running scheduler; every family: test_cases_families."""
    nvidia = CONFIG.vendor("NVIDIA")
    assert nvidia is not None
    names, factor = nvidia.resources, 4
    file = tmp_path / "devices.yaml"
    file.write_text(
        f"nvidia: {{resourceCountName: {names.count}, resourceMemoryName: {names.memory}, "
        f"resourceCoreName: {names.cores}, memoryFactor: {factor}}}\n"
    )
    hard = quota("q", "default")
    hard["spec"]["hard"] = {f"limits.{names.memory}": "2000"}
    fake_kube.put("resourcequotas", hard)
    config = device_config.parse(file.read_text())
    async with placing(fake_kube, placement=PlacementSettings(device_config_file=str(file))) as placed:
        await placed.quota_is(2000 * factor)
        for asked, fits in (("2001", False), ("2000", True)):
            asks = [container(ask={names.count: "1", names.memory: asked})]
            assert review_pod(plain_pod(*asks), under=policy(config), quotas=known(hard)).allowed is fits
            answer = await placed.filter(f"p-{asked}", containers=asks)
            assert (answer["NodeNames"] is not None) is fits, answer
        assert await placed.quota_used_mib() == 2000 * factor


@pytest.mark.case("QUO-08")
async def test_an_update_of_a_quota_never_lets_anything_through(fake_kube: FakeKube) -> None:
    fake_kube.put("resourcequotas", quota("q", "default", gpumem=1000))
    async with placing(fake_kube) as placed:
        await placed.quota_is(1000)
        created = fake_kube.put("pods", pod("a", memory=2000))

        async def write_status() -> None:
            for number in range(100):
                written = {**quota("q", "default", gpumem=1000), "status": {"used": {"limits.nvidia.com/gpumem": str(number)}}}  # fmt: skip  # noqa: E501
                fake_kube.put("resourcequotas", written)
                await asyncio.sleep(0)

        async def ask_again() -> list[Any]:
            return [(await placed.scheduler.filter(created, ["n1"]))["NodeNames"] for _ in range(40)]

        *answers, _ = await asyncio.gather(ask_again(), ask_again(), ask_again(), write_status())
        assert {str(answer) for found in answers for answer in found} == {"None"}
        fake_kube.put("resourcequotas", quota("q", "default", gpumem=2000))
        await placed.quota_is(2000)
        assert (await placed.filter_again("a"))["NodeNames"] == ["n1"]


@pytest.mark.case("QUO-09")
@pytest.mark.parametrize("fields", [{"memory": 1}, {"memory": None}])
async def test_a_quota_of_0_lets_nothing_in(fake_kube: FakeKube, fields: dict[str, int | None]) -> None:
    fake_kube.put("resourcequotas", quota("q", "default", gpumem=0))
    assert not review_pod(gpu_pod(gpu=1, gpumem=1), quotas=known(quota("q", "", gpumem=0))).allowed
    async with placing(fake_kube) as placed:
        await placed.quota_is(0)
        assert await placed.refused("a", **fields) == {"n1": f"1/1 {DOES_NOT_FIT}"}


@pytest.mark.case("MUL-03")
async def test_quota_and_card_use_the_same_sum_over_init_and_app_containers(fake_kube: FakeKube) -> None:
    """Kubernetes' own quota counts the pod's request until the pod is deleted: docs/compatibility.md."""
    shape = {
        "init_containers": [container("i0", **ask(5000))],
        "containers": containers(3000),
    }
    hard = quota("q", "default", gpumem=5000)
    fake_kube.put("resourcequotas", hard)
    document = plain_pod(*shape["containers"], initContainers=shape["init_containers"])
    assert review_pod(document, quotas=known(hard)).allowed
    assert not review_pod(document, quotas=known(quota("q", "", gpumem=4999))).allowed
    async with placing(fake_kube) as placed:
        await placed.quota_is(5000)
        await placed.place("p", **shape)
        assert (await placed.quota_used_mib(), await placed.used_mib()) == (5000, 5000)
        assert DOES_NOT_FIT in (await placed.refused("q", memory=2000))["n1"]
        placed.update("p", phase="Running", **ended("i0"))

        async def is_freed() -> bool:
            return (await placed.quota_used_mib(), await placed.used_mib()) == (3000, 3000)

        await eventually(is_freed)
        assert (await placed.filter_again("q"))["NodeNames"] == ["n1"]
