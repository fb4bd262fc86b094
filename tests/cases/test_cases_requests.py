"""Cases of the area request-parsing: what a container asks for, at the webhook and, if that is bypassed, at filter."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from case_placing import ask, placing
from hami_model import device_config
from hami_scheduler.config import PlacementSettings
from hami_sim.fake_kube import FakeKube
from scheduler_builders import ALLOCATED_KEY, card, container, node
from scheduler_service import series
from webhook_builders import configured, gpu_pod, policy, review_pod
from webhook_builders import container as plain_container
from webhook_builders import pod as plain_pod

LIBVGPU = Path(__file__).parents[2] / "libvgpu" / "build"


def wide_node() -> Any:
    """A card so large that only a request that cannot be understood is refused for another reason than memory."""
    return node("n1", [card("n1-0", memory_mib=40_000)])


# ---- memory in MiB -----------------------------------------------------------------------------------------------


@pytest.mark.case("REQ-01")
@pytest.mark.parametrize("memory", ["2147483648", "2Gi", "4Gi", "16Gi", "3G", "512Mi", "16M", "0.5"])
async def test_memory_that_is_no_number_of_mib_is_refused_by_the_webhook_and_on_every_node(
    fake_kube: FakeKube, memory: str
) -> None:
    reviewed = review_pod(gpu_pod(gpu=1, gpumem=memory))
    assert (reviewed.allowed, reviewed.code) == (False, 403)
    assert "MiB" in reviewed.message
    async with placing(fake_kube, wide_node(), node("n2")) as placed:
        answer = await placed.filter("a", "n1", "n2", memory=memory)
        assert answer["NodeNames"] is None
        reasons = answer["FailedAndUnresolvableNodes"]
        assert reasons.keys() == {"n1", "n2"}
        assert all("nvidia.com/gpumem" in reason and "MiB" in reason for reason in reasons.values())


@pytest.mark.case("REQ-01")
async def test_the_largest_memory_is_understood_and_just_does_not_fit(fake_kube: FakeKube) -> None:
    assert review_pod(gpu_pod(gpu=1, gpumem=2147483647)).allowed
    async with placing(fake_kube, wide_node()) as placed:
        assert await placed.refused("a", memory=2147483647) == {"n1": "1/1 CardInsufficientMemory"}


@pytest.mark.case("REQ-02")
@pytest.mark.parametrize(("memory", "mib"), [("5k", 5000), ("5Ki", 5120), ("3e3", 3000), ("5000", 5000)])
async def test_suffixes_that_still_mean_mib(fake_kube: FakeKube, memory: str, mib: int) -> None:
    """The limit in the container is that of the annotation: test_cases_handover, `the limits of a pod`."""
    assert review_pod(gpu_pod(gpu=1, gpumem=memory)).allowed
    async with placing(fake_kube, wide_node()) as placed:
        await placed.place("a", memory=memory)
        assert placed.allocated("a") == f"n1-0,NVIDIA,{mib},0:;"


# ---- memory as a percentage --------------------------------------------------------------------------------------


@pytest.mark.case("REQ-03")
@pytest.mark.parametrize(
    ("percent", "memory", "mib"),
    [
        pytest.param("50", None, 40779, id="a half, rounded down"),
        pytest.param("33", None, 26914, id="a third, rounded down"),
        pytest.param("100", None, 81559, id="all"),
        pytest.param("0", None, 81559, id="0 is not given: all"),
        pytest.param("150", None, 81559, id="too much, the webhook bypassed: all"),
        pytest.param("50", "1000", 1000, id="memory in MiB wins"),
    ],
)
async def test_a_percentage_is_of_the_card_that_was_chosen(
    fake_kube: FakeKube, percent: str, memory: str | None, mib: int
) -> None:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": percent}
    limits |= {} if memory is None else {"nvidia.com/gpumem": memory}
    async with placing(fake_kube, node("n1", [card("n1-0", memory_mib=81559)])) as placed:
        await placed.place("a", containers=[container(ask=limits)])
        assert placed.allocated("a") == f"n1-0,NVIDIA,{mib},0:;"


@pytest.mark.case("REQ-03")
@pytest.mark.parametrize(("percent", "allowed"), [(-1, False), (101, False), (150, False), (0, True), (100, True)])
def test_the_webhook_refuses_percentages_out_of_bounds(percent: int, allowed: bool) -> None:
    assert review_pod(gpu_pod(gpu=1, gpumem_percentage=percent)).allowed is allowed


# ---- a whole card ------------------------------------------------------------------------------------------------


@pytest.mark.case("REQ-04")
@pytest.mark.parametrize(
    ("asked", "cores"),
    [
        pytest.param({"gpu": 1}, 100, id="a card and nothing else"),
        pytest.param({"gpu": 1, "gpumem_percentage": 100}, 100, id="all of its memory"),
        pytest.param({"gpu": 1, "gpumem_percentage": 50}, 0, id="half of its memory"),
        pytest.param({"gpu": 1, "gpucores": 30}, 30, id="cores of its own"),
    ],
)
async def test_an_exclusive_card_is_booked_with_all_its_cores(
    fake_kube: FakeKube, asked: dict[str, int], cores: int
) -> None:
    """Through both: what the webhook made of the pod is what the scheduler books, and what metrics then show."""
    reviewed = review_pod(gpu_pod(**asked))
    completed = reviewed.pod["spec"]["containers"]
    assert completed[0]["resources"]["limits"].get("nvidia.com/gpucores") == (str(cores) if cores else None)
    async with placing(fake_kube) as placed:
        bound = await placed.place("a", containers=completed)
        assert bound["metadata"]["annotations"][ALLOCATED_KEY].endswith(f",{cores}:;")
        _, metrics = await placed.scheduler.observe("/metrics")
        assert series(metrics, "hami_scheduler_card_cores_allocated_ratio", card="n1-0") == cores / 100


# ---- a limit below what is in use --------------------------------------------------------------------------------


def _run(tmp_path: Path, limit: str, *words: str) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "HAMI_SIM_DRIVER": str(tmp_path / "driver.json"),
        "LD_LIBRARY_PATH": str(LIBVGPU / "sim"),
        "LD_PRELOAD": str(LIBVGPU / "lib" / "libvgpu.so"),
        "CUDA_DEVICE_MEMORY_LIMIT_0": limit,
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "region.cache"),
    }
    return subprocess.Popen([LIBVGPU / "bin" / "vgpu-workload", *words], env=environment, stdout=subprocess.PIPE)


@pytest.mark.case("REQ-06")
def test_more_in_use_than_the_limit_reads_as_nothing_free_not_as_an_error(tmp_path: Path) -> None:
    """120 MiB are in use when the limit becomes 100, as a limit below a process's first need would have it."""
    uuid = "GPU-11111111-2222-3333-4444-000000000000"
    description = {"cards": [{"uuid": uuid, "name": "NVIDIA A100", "memory_mib": 40960}]}
    (tmp_path / "driver.json").write_bytes(msgspec.json.encode(description))
    holder = _run(tmp_path, "200m", "alloc", "--mib", "120", "--hold-until-signal")
    assert holder.stdout is not None
    try:
        assert b"allocated" in holder.stdout.readline()
        _set_limit(tmp_path / "region.cache", before=200 << 20, after=100 << 20)
        looker = _run(tmp_path, "100m", "info")
        output, _ = looker.communicate()
        assert looker.returncode == 0
        (seen,) = [found for line in output.splitlines() if (found := msgspec.json.decode(line))["event"] == "device"]
        assert (seen["memory_total_bytes"], seen["free_bytes"]) == (100 << 20, 0)
    finally:
        holder.terminate()
        holder.wait()
        holder.stdout.close()


def _set_limit(region: Path, *, before: int, after: int) -> None:
    """Writes the limit of card 0 anew: the first 64-bit word of the region that holds it."""
    with region.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        position = memory.find(struct.pack("<Q", before))
        assert position >= 0
        memory[position : position + 8] = struct.pack("<Q", after)


# ---- names of resources, every family ----------------------------------------------------------------------------

RENAMED = """
nvidia:
  resourceCountName: corp.example/vcuda
  resourceMemoryName: corp.example/vcuda-memory
  resourceMemoryPercentageName: corp.example/vcuda-percent
  resourceCoreName: corp.example/vcuda-core
  defaultGPUNum: {count}
"""


@pytest.mark.case("REQ-08")
@pytest.mark.parametrize("name", ["vcuda-core", "vcuda-memory", "vcuda-percent"])
async def test_a_renamed_resource_alone_is_completed_and_accounted(
    fake_kube: FakeKube, tmp_path: Path, name: str
) -> None:
    file = tmp_path / "devices.yaml"
    file.write_text(RENAMED.format(count=2))
    config = device_config.parse(file.read_text())
    asks = plain_pod(plain_container(limits={f"corp.example/{name}": "10"}))
    reviewed = review_pod(asks, under=policy(config))
    assert reviewed.pod["spec"]["containers"][0]["resources"]["limits"]["corp.example/vcuda"] == "2"
    cards = node("n1", 2)
    for amounts in (cards["status"]["capacity"], cards["status"]["allocatable"]):
        amounts["corp.example/vcuda"] = "20"
    async with placing(fake_kube, cards, placement=PlacementSettings(device_config_file=str(file))) as placed:
        await placed.filter("a", containers=reviewed.pod["spec"]["containers"])
        assert await placed.bind("a") == ""
        assert placed.allocated("a").count("NVIDIA") == 2
    refused = review_pod(asks, under=policy(device_config.parse(RENAMED.format(count=0))))
    assert not refused.allowed
    assert "corp.example/vcuda: 1" in refused.message


@pytest.mark.case("REQ-09")
@pytest.mark.parametrize("memory", ["0.5", "9Gi"])
async def test_a_request_with_bad_memory_stays_a_request_and_is_never_bound(fake_kube: FakeKube, memory: str) -> None:
    """NVIDIA's, by a running scheduler; every family: test_cases_families."""
    name = "nvidia.com/gpumem"
    limits = {"nvidia.com/gpu": "1", name: memory}
    assert not review_pod(plain_pod(plain_container(limits=limits)), under=policy(configured())).allowed
    async with placing(fake_kube, wide_node()) as placed:
        reasons = await placed.refused("a", containers=[container(ask=limits)])
        assert name in reasons["n1"]
        assert "no slice is reserved" in await placed.bind("a")
        assert fake_kube.get("pods", "a", "default")["spec"].get("nodeName") is None


@pytest.mark.case("REQ-07")
async def test_a_pod_that_names_its_node_is_refused_by_the_webhook_and_holds_nothing(fake_kube: FakeKube) -> None:
    """What the node agent does with one that comes all the same: test_cases_handover."""
    document = gpu_pod(gpu=1)
    document["spec"]["nodeName"] = "n1"
    reviewed = review_pod(document)
    assert (reviewed.allowed, reviewed.message) == (False, "pod has node assigned")
    async with placing(fake_kube) as placed:
        await placed.place("a", containers=[container(**ask(4000))])
        fake_kube.put("pods", {**document, "metadata": {"name": "b", "namespace": "default", "uid": "b"}})
        await placed.caught_up()
        assert await placed.used_mib() == 4000
