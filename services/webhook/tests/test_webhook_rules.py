"""What the rules make of a pod, by the whole core: limits, environment, runtime class, refusals."""

from __future__ import annotations

from typing import Any

import pytest
from hami_model.device_config import DeviceConfig
from hami_model.vendors import ResourceNames
from webhook_builders import Json, configured, container, gpu_pod, pod, policy, review_pod

RENAMED = ResourceNames(
    count="corp.example/vcuda",
    memory="corp.example/vcuda-memory",
    memory_percentage="corp.example/vcuda-percent",
    cores="corp.example/vcuda-core",
    priority="corp.example/vcuda-priority",
)


def limits_of(document: Json, config: DeviceConfig | None = None) -> dict[str, str]:
    """Limits of the first container after the review, names without `nvidia.com/`."""
    reviewed = review_pod(document, under=policy(config))
    assert reviewed.allowed, reviewed.message
    limits = reviewed.pod["spec"]["containers"][0]["resources"]["limits"]
    return {name.removeprefix("nvidia.com/"): value for name, value in limits.items()}


def env_of(container_after: Json) -> list[tuple[str, str]]:
    return [(entry["name"], entry["value"]) for entry in container_after.get("env", [])]


@pytest.mark.case("REQ-04")
@pytest.mark.parametrize(
    ("asked", "cores"),
    [
        pytest.param({"gpu": 1}, "100", id="a whole card has all its cores"),
        pytest.param({"gpu": 1, "gpumem_percentage": 100}, "100", id="all memory by percentage"),
        pytest.param({"gpu": 1, "gpumem_percentage": 50}, None, id="half of the memory"),
        pytest.param({"gpu": 1, "gpumem": 8192}, None, id="some memory"),
        pytest.param({"gpu": 1, "gpumem": 0}, None, id="memory named, though 0"),
        pytest.param({"gpu": 1, "gpucores": 30}, "30", id="named cores are kept"),
        pytest.param({"gpu": 1, "gpucores": 0}, "0", id="named cores are kept, though 0"),
        pytest.param({"gpu": 0}, "100", id="no card at all"),
    ],
)
def test_cores_of_a_whole_card(asked: dict[str, int], cores: str | None) -> None:
    assert limits_of(gpu_pod(**asked)).get("gpucores") == cores


def test_family_without_memory_resource_shares_no_card() -> None:
    names = configured().vendors[0].resources
    without_memory = ResourceNames(count=names.count, cores=names.cores)
    assert limits_of(gpu_pod(gpu=1), configured(resources=without_memory))["gpucores"] == "100"


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        pytest.param({"limits": {"nvidia.com/gpumem": "100"}}, {"gpu": "1", "gpumem": "100"}, id="memory alone"),
        pytest.param({"limits": {"nvidia.com/gpucores": "10"}}, {"gpu": "1", "gpucores": "10"}, id="cores alone"),
        pytest.param(
            {"limits": {"nvidia.com/gpumem-percentage": "10"}}, {"gpu": "1", "gpumem-percentage": "10"}, id="percentage"
        ),
        pytest.param(
            {"limits": {"nvidia.com/gpumem": "100"}, "requests": {"nvidia.com/gpu": "3"}},
            {"gpu": "3", "gpumem": "100"},
            id="the requested count, which a limit must equal",
        ),
        pytest.param({"requests": {"nvidia.com/gpu": "1"}}, {"gpucores": "100"}, id="a count among the requests only"),
    ],
)
def test_what_is_added_to_limits(containers: Json, expected: dict[str, str]) -> None:
    assert limits_of(pod(container(**containers))) == expected


@pytest.mark.case("REQ-08")
@pytest.mark.parametrize(
    "resource", ["corp.example/vcuda-core", "corp.example/vcuda-memory", "corp.example/vcuda-percent"]
)
def test_renamed_resources_get_the_default_count(resource: str) -> None:
    config = configured(resources=RENAMED, default_count=2)
    limits = limits_of(pod(container(limits={resource: "10"})), config)
    assert limits["corp.example/vcuda"] == "2"


@pytest.mark.case("REQ-08")
@pytest.mark.parametrize(
    "resource", ["corp.example/vcuda-core", "corp.example/vcuda-memory", "corp.example/vcuda-percent"]
)
def test_without_a_default_count_the_pod_is_told_what_to_add(resource: str) -> None:
    config = configured(resources=RENAMED, default_count=0)
    reviewed = review_pod(pod(container(limits={resource: "10"})), under=policy(config))
    assert (reviewed.allowed, reviewed.code) == (False, 403)
    assert "corp.example/vcuda: 1" in reviewed.message


def test_requests_without_limits_are_left_to_the_api_server() -> None:
    reviewed = review_pod(pod(container(requests={"nvidia.com/gpumem": "1Gi"})))
    assert reviewed.allowed
    assert reviewed.patch == []


@pytest.mark.case("REQ-01")
@pytest.mark.parametrize("memory", ["2147483648", "2Gi", "4Gi", "16Gi", "3G", "4096Mi", "1M", "500m", "0.5"])
def test_memory_that_is_not_whole_mib_is_refused_with_advice(memory: str) -> None:
    reviewed = review_pod(gpu_pod(gpu=1, gpumem=memory))
    assert (reviewed.allowed, reviewed.code) == (False, 403)
    assert "nvidia.com/gpumem" in reviewed.message
    assert "MiB" in reviewed.message
    assert "container main" in reviewed.message


@pytest.mark.case("REQ-01")
@pytest.mark.case("REQ-02")
@pytest.mark.parametrize("memory", ["2147483647", "5k", "5Ki", "3e3", "5000", "0"])
def test_whole_mib_are_admitted_as_they_are_written(memory: str) -> None:
    assert limits_of(gpu_pod(gpu=1, gpumem=memory))["gpumem"] == memory


@pytest.mark.case("REQ-01")
@pytest.mark.parametrize("place", ["containers", "initContainers"])
def test_memory_is_checked_in_every_container(place: str) -> None:
    wrong = container("wrong", limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4Gi"})
    document = pod(container()) if place == "initContainers" else pod(container(), wrong)
    if place == "initContainers":
        document["spec"]["initContainers"] = [wrong]
    reviewed = review_pod(document)
    assert not reviewed.allowed
    assert "container wrong" in reviewed.message


def test_memory_factor_narrows_what_fits() -> None:
    config = configured(memory_factor=1024)
    assert limits_of(gpu_pod(gpu=1, gpumem="2097151"), config)["gpumem"] == "2097151"
    reviewed = review_pod(gpu_pod(gpu=1, gpumem="2097152"), under=policy(config))
    assert not reviewed.allowed
    assert "2097151" in reviewed.message


@pytest.mark.parametrize("count", ["500m", "1.5", "4294967297"])
def test_a_count_that_is_no_number_of_cards_is_refused(count: str) -> None:
    reviewed = review_pod(gpu_pod(gpu=count, gpumem=100))
    assert (reviewed.allowed, reviewed.code) == (False, 403)
    assert "nvidia.com/gpu" in reviewed.message


@pytest.mark.case("REQ-03")
@pytest.mark.parametrize("percent", ["-1", "101", "150", "1k", "100.5"])
def test_percentage_out_of_bounds_is_refused(percent: str) -> None:
    reviewed = review_pod(gpu_pod(gpu=1, gpumem_percentage=percent))
    assert (reviewed.allowed, reviewed.code) == (False, 500)
    assert "must be an integer between 0 and 100" in reviewed.message


@pytest.mark.case("REQ-03")
@pytest.mark.parametrize("percent", ["0", "1", "50", "100"])
def test_percentage_within_bounds_is_admitted(percent: str) -> None:
    assert limits_of(gpu_pod(gpu=1, gpumem_percentage=percent))["gpumem-percentage"] == percent


@pytest.mark.parametrize(
    ("priority", "expected"), [("0", "0"), ("1", "1"), ("1500m", "2"), ("1k", "1000"), ("-1", "-1")]
)
def test_priority_becomes_a_variable(priority: str, expected: str) -> None:
    reviewed = review_pod(gpu_pod(priority=priority))
    assert env_of(reviewed.pod["spec"]["containers"][0]) == [("CUDA_TASK_PRIORITY", expected)]
    assert "schedulerName" not in reviewed.pod["spec"], "priority alone asks for no card"


@pytest.mark.parametrize(
    ("present", "after"),
    [
        pytest.param([("CUDA_TASK_PRIORITY", "7")], ["7", "5"], id="the last entry holds"),
        pytest.param([("CUDA_TASK_PRIORITY", "5")], ["5"], id="what holds already is not repeated"),
        pytest.param(
            [("CUDA_TASK_PRIORITY", "5"), ("CUDA_TASK_PRIORITY", "7")], ["5", "7", "5"], id="the last one counts"
        ),
    ],
)
def test_priority_beside_a_variable_of_the_user(present: list[tuple[str, str]], after: list[str]) -> None:
    document = gpu_pod(gpu=1, gpumem=100, priority=5)
    document["spec"]["containers"][0]["env"] = [{"name": name, "value": value} for name, value in present]
    reviewed = review_pod(document)
    assert [value for _, value in env_of(reviewed.pod["spec"]["containers"][0])] == after


def test_core_policy_goes_to_every_container() -> None:
    document = pod(container(limits={"nvidia.com/gpu": "1"}), container("side"), initContainers=[container("init")])
    reviewed = review_pod(document, under=policy(configured(core_policy="force")))
    spec = reviewed.pod["spec"]
    for found in (*spec["initContainers"], *spec["containers"]):
        assert env_of(found) == [("GPU_CORE_UTILIZATION_POLICY", "force")]


def test_cards_are_hidden_from_containers_that_ask_for_none() -> None:
    document = pod(
        container(limits={"nvidia.com/gpu": "1"}),
        container("side", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
    )
    reviewed = review_pod(document, under=policy(configured(overwrite_env=True)))
    asking, side = reviewed.pod["spec"]["containers"]
    assert env_of(asking) == []
    assert env_of(side)[-1] == ("NVIDIA_VISIBLE_DEVICES", "none")


@pytest.mark.parametrize("zero", [0, "0", "00", "0.0", "-0", "0m", "0k", "0Ki", "0e3"])
@pytest.mark.parametrize("place", ["limits", "requests"])
def test_a_count_of_zero_is_no_card(zero: str | int, place: str) -> None:
    beside: Json = {"limits": {"nvidia.com/gpumem": "100"}} if place == "requests" else {}
    document = pod(container(**{**beside, place: {"nvidia.com/gpu": zero}}))
    under = policy(configured(overwrite_env=True, runtime_class="nvidia"))
    reviewed = review_pod(document, under=under)
    spec = reviewed.pod["spec"]
    assert env_of(spec["containers"][0]) == [("NVIDIA_VISIBLE_DEVICES", "none")]
    assert "runtimeClassName" not in spec
    assert spec["schedulerName"] == "hami-scheduler", "naming the resource routes the pod"
    assert review_pod(reviewed.pod, under=under).patch == []


def test_a_count_of_zero_beside_a_container_with_a_card() -> None:
    document = pod(container("none", limits={"nvidia.com/gpu": "0"}), container(limits={"nvidia.com/gpu": "1"}))
    spec = review_pod(document, under=policy(configured(overwrite_env=True, runtime_class="nvidia"))).pod["spec"]
    assert [env_of(found) for found in spec["containers"]] == [[("NVIDIA_VISIBLE_DEVICES", "none")], []]
    assert spec["runtimeClassName"] == "nvidia"


def test_a_default_count_is_a_card() -> None:
    document = gpu_pod(gpumem=100)
    config = configured(overwrite_env=True, runtime_class="nvidia", default_count=1)
    spec = review_pod(document, under=policy(config)).pod["spec"]
    assert env_of(spec["containers"][0]) == []
    assert spec["runtimeClassName"] == "nvidia"


def test_cards_are_left_in_sight_unless_the_configuration_hides_them() -> None:
    reviewed = review_pod(gpu_pod(gpu=0))
    assert env_of(reviewed.pod["spec"]["containers"][0]) == []
    assert limits_of(gpu_pod(gpu=0))["gpucores"] == "100"


@pytest.mark.parametrize(
    ("spec", "limits", "expected"),
    [
        pytest.param({}, {"nvidia.com/gpu": "1"}, "nvidia", id="none named"),
        pytest.param({"runtimeClassName": "mine"}, {"nvidia.com/gpu": "1"}, "mine", id="one named"),
        pytest.param({}, {"cpu": "1"}, None, id="no card asked for"),
    ],
)
def test_runtime_class(spec: Json, limits: Json, expected: str | None) -> None:
    reviewed = review_pod(pod(container(limits=limits), **spec), under=policy(configured(runtime_class="nvidia")))
    assert reviewed.pod["spec"].get("runtimeClassName") == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"core_policy": "force", "overwrite_env": True, "runtime_class": "nvidia"},
        {"default_count": 4, "core_policy": "disable"},
    ],
)
def test_a_second_review_changes_nothing(changes: dict[str, Any]) -> None:
    document = pod(
        container(limits={"nvidia.com/gpumem": "100", "nvidia.com/priority": "1"}),
        container("whole", limits={"nvidia.com/gpu": "1"}),
        container("side"),
        initContainers=[container("init")],
    )
    first = review_pod(document, under=policy(configured(**changes)))
    assert first.patch
    second = review_pod(first.pod, under=policy(configured(**changes)))
    assert second.patch == []
