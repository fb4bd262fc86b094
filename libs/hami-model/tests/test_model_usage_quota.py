"""Effective usage over a pod's life, and quota limits."""

import itertools

import msgspec
import pytest
from hami_model import device_config, kube, quota
from hami_model.cards import ContainerShape, Slice
from hami_model.usage import CardUsage, effective
from hypothesis import given
from hypothesis import strategies as st


def slot(memory: int) -> tuple[Slice, ...]:
    return (Slice(card_id="A", vendor="NVIDIA", memory_mib=memory, cores_percent=0),) if memory else ()


def memory_of(*containers: tuple[str, int], init_done: bool = False) -> int:
    names = [ContainerShape(name=f"c{n}", kind=kind) for n, (kind, _) in enumerate(containers)]
    found = effective(tuple(slot(memory) for _, memory in containers), names, init_done=init_done)
    return found.get("A", CardUsage()).memory_mib


@pytest.mark.case("MUL-02")
@pytest.mark.parametrize(
    ("containers", "while_init", "afterwards"),
    [
        pytest.param([("app", 3000), ("app", 2000)], 5000, 5000, id="apps add up"),
        pytest.param([("init", 5000), ("app", 3000)], 5000, 3000, id="the init peak ends with the init container"),
        pytest.param([("init", 2000), ("init", 4000), ("app", 1000)], 4000, 1000, id="one-shot inits never add up"),
        pytest.param(
            [("init", 4000), ("sidecar", 3000), ("init", 2000), ("app", 1000)], 5000, 4000, id="sidecar before an init"
        ),
        pytest.param([("sidecar", 7000), ("app", 5000)], 12000, 12000, id="a sidecar runs beside the app"),
        pytest.param([("init", 6000), ("sidecar", 5000), ("app", 1000)], 6000, 6000, id="sidecar after the init"),
    ],
)
def test_effective_usage(containers: list[tuple[str, int]], while_init: int, afterwards: int) -> None:
    assert memory_of(*containers) == while_init
    assert memory_of(*containers, init_done=True) == afterwards


def test_slices_of_one_card_that_an_init_container_holds_at_once_add_up() -> None:
    twice = (*slot(3000), *slot(2000))
    shapes = [ContainerShape(name="a", kind="init"), ContainerShape(name="b", kind="init")]
    found = effective((twice, slot(4000)), shapes)
    assert found == {"A": CardUsage(memory_mib=5000, cores_percent=0, slots=2)}


CONTAINERS = st.lists(st.tuples(st.sampled_from(["init", "sidecar"]), st.integers(0, 9000)), max_size=4)
APPS = st.lists(st.integers(0, 9000), min_size=1, max_size=3)


@given(CONTAINERS, APPS)
def test_usage_is_never_below_any_moment_of_the_pods_life(init: list[tuple[str, int]], apps: list[int]) -> None:
    containers = [*init, *(("app", memory) for memory in apps)]
    found = memory_of(*containers)
    sidecars = 0
    for kind, memory in init:
        assert found >= sidecars + memory
        sidecars += memory if kind == "sidecar" else 0
    assert found >= sidecars + sum(apps) == memory_of(*containers, init_done=True)


def resource_quota(name: str, **hard: str) -> kube.ResourceQuota:
    return kube.ResourceQuota(
        metadata=kube.Metadata(name=name),
        spec=kube.QuotaSpec(hard={f"limits.nvidia.com/{k}": v for k, v in hard.items()}),
    )


CONFIG = device_config.default_config()


@pytest.mark.case("QUO-01")
def test_the_smallest_limit_of_all_objects_holds_in_any_order() -> None:
    objects = [resource_quota("q1", gpumem="1000"), resource_quota("q2", gpumem="8000", gpucores="40")]
    for order in itertools.permutations(objects):
        assert quota.limits(order, CONFIG)["NVIDIA"] == quota.QuotaLimits(memory_mib=1000, cores_percent=40)
    assert quota.limits(objects[1:], CONFIG)["NVIDIA"].memory_mib == 8000
    assert quota.limits([], CONFIG)["NVIDIA"] == quota.QuotaLimits()


@pytest.mark.case("QUO-09")
def test_a_limit_of_zero_is_a_limit() -> None:
    assert quota.limits([resource_quota("q", gpumem="0")], CONFIG)["NVIDIA"].memory_mib == 0


@pytest.mark.parametrize(
    ("text", "limit"),
    [("8k", 8000), ("8Ki", 8192), ("20e3", 20000), ("1Gi", 2**30), ("1500m", None), ("x", None), ("", None)],
)
def test_only_whole_numbers_are_limits(text: str, limit: int | None) -> None:
    assert quota.limits([resource_quota("q", gpumem=text)], CONFIG)["NVIDIA"].memory_mib == limit


def test_the_memory_factor_scales_the_limit_and_other_keys_do_not_count() -> None:
    config = device_config.parse(
        "nvidia: {resourceCountName: x/gpu, resourceMemoryName: x/mem, resourceCoreName: x/cores, memoryFactor: 4}"
    )
    objects = [
        kube.ResourceQuota(spec=kube.QuotaSpec(hard={"limits.x/mem": 10, "requests.x/cores": "5", "x/cores": "5"})),
        kube.ResourceQuota(spec=kube.QuotaSpec(hard={"limits.x/gpu": "1"})),
    ]
    assert quota.limits(objects, config)["NVIDIA"] == quota.QuotaLimits(memory_mib=40)


@pytest.mark.parametrize("text", ["100E", "9223372036854775807", "1e30"])
def test_a_limit_beyond_64_bits_is_the_largest_that_is_told_apart(text: str) -> None:
    quotas = [msgspec.convert({"spec": {"hard": {"limits.nvidia.com/gpumem": text}}}, kube.ResourceQuota)]
    config = device_config.parse(
        "nvidia: {resourceCountName: nvidia.com/gpu, resourceMemoryName: nvidia.com/gpumem, memoryFactor: 2}"
    )
    assert quota.limits(quotas, config)["NVIDIA"].memory_mib == quota.LARGEST
