"""The kubelet stand-in against what a real kubelet was recorded to do (tests/data/kube).

A scripted plugin answers as the recorded one did. The same pod must lead to the same calls in the same order with equal
messages, to the same checkpoint and to the same PodResources answer. Ids are compared by the container that holds them,
because kubelet keeps them in sets and their order is chance.
"""

import base64
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from hami_sim.kubelet import KubeletSettings, KubeletStandIn, end_containers
from hami_sim.kubelet.checkpoint_sum import checkpoint_sum
from hami_sim.kubelet.log_server import LogServer
from hami_sim.kubelet.memory_kube import MemoryKube
from hami_sim.kubelet.scripted_plugin import ScriptedPlugin
from hami_sim.kubelet.settings import LogServerSettings
from kubelet_api import podresources_v1_pb2 as resources
from kubelet_api.checkpoint import Checkpoint, read_checkpoint
from kubelet_api.deviceplugin_v1beta1_pb2 import ContainerAllocateResponse
from kubelet_api.podresources_v1_pb2_grpc import PodResourcesListerStub
from msgspec import convert

DATA = Path(__file__).parents[1] / "data/kube"
IDS = [f"dev-{i}" for i in range(10)]
RESOURCE = "example.com/gpu-mem"


def recording(name: str) -> list[tuple[str, Any]]:
    lines = (DATA / name / "device-plugin-calls.jsonl").read_text().splitlines()
    return [(line["call"], line["body"]) for line in map(json.loads, filter(None, lines))]


def calls_of(recorded: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """What kubelet sent to the plugin, and when its Register was answered."""
    beside = {"AllocateResponse", "checkpoint", "PodResources"}
    return [(call, body or {}) for call, body in recorded if call not in beside]


def without_order(value: Any) -> Any:
    """Lists of ids are sets, and so are the maps inside the serialised answers of Allocate."""
    if isinstance(value, dict):
        return {key: decoded(item) if key == "AllocResp" else without_order(item) for key, item in value.items()}
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [without_order(item) for item in value]
    return value


def decoded(response: str) -> dict[str, Any]:
    return MessageToDict(ContainerAllocateResponse.FromString(base64.b64decode(response)))


def comparable(calls: list[tuple[str, Any]]) -> list[Any]:
    """Kubelet opens the stream while it answers Register, so which of the two is first is chance."""
    registered, stream = calls.index(("registered", {})), calls.index(("ListAndWatch", {}))
    assert {registered, stream} == {1, 2}
    return without_order([calls[0], *calls[3:]])


def same_choice(available: list[str], size: int) -> list[str]:
    """What the recorded plugin answered: the ids that are in the Allocate calls."""
    wanted = {4: ["dev-6", "dev-7", "dev-8", "dev-9"], 2: ["dev-4", "dev-5"]}[size]
    assert set(wanted) <= set(available)
    return wanted


@pytest.fixture
async def root() -> AsyncIterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="kl"))
    yield folder
    await end_containers(folder)
    shutil.rmtree(folder)


def container(name: str, count: int, script: str = "true") -> dict:
    return {
        "name": name,
        "image": "any",
        "command": ["/bin/sh", "-c", script],
        "resources": {"limits": {RESOURCE: count}},
    }


class Recorder:
    """Runs one pod as it was run before the recorded kubelet."""

    def __init__(self, root: Path, plugin: ScriptedPlugin) -> None:
        self.root = root
        self.plugin = plugin
        self.kube = MemoryKube()
        self.checkpoints: list[dict] = []

    async def run(self, spec: dict) -> str:
        settings = KubeletSettings(node_name="n1", root_dir=str(self.root), mode="prefix", cdi_dirs=(str(self.root),))
        folder = self.root / "device-plugins"
        file = folder / "kubelet_internal_checkpoint"
        self.plugin.pre_start = lambda _: self.checkpoints.append(json.loads(file.read_text()))
        async with (
            LogServer(LogServerSettings()).serving() as logs,
            (await KubeletStandIn.create(settings, self.kube, events=self.kube, log_server=logs)).running(),
            self.plugin.serving(folder),
        ):
            await self.kube.until(lambda: self.kube.nodes["n1"]["status"].get("allocatable", {}).get(RESOURCE) == "10")
            uid = self.kube.run_pod("n1", {"restartPolicy": "Never", **spec}, "e2e")
            await self.kube.until(
                lambda: all(
                    "running" in one["state"]
                    for one in self.kube.pods["e2e"]["status"].get("containerStatuses", [{"state": {}}])
                )
            )
            async with grpc.aio.insecure_channel(f"unix:{self.root}/pod-resources/kubelet.sock") as channel:
                lister = PodResourcesListerStub(channel)
                self.pod_resources = await lister.List(resources.ListPodResourcesRequest())
                self.one = await lister.Get(resources.GetPodResourcesRequest(pod_name="e2e", pod_namespace="default"))
                self.allocatable = await lister.GetAllocatableResources(resources.AllocatableResourcesRequest())
                with pytest.raises(grpc.aio.AioRpcError, match="NOT_FOUND"):
                    await lister.Get(resources.GetPodResourcesRequest(pod_name="none", pod_namespace="default"))
            return uid


async def test_two_containers_as_recorded(root):
    plugin = ScriptedPlugin(RESOURCE, IDS)
    plugin.choose = same_choice
    recorder = Recorder(root, plugin)

    await recorder.run({"containers": [container("a", 4, "sleep 3600"), container("b", 2, "sleep 3600")]})

    recorded = calls_of(recording("v1.34.4-e2e-kubelet"))
    assert comparable(plugin.calls) == comparable(recorded)


async def test_an_init_container_and_two_others_as_recorded(root):
    recorded = recording("v1.37.2-late-binding")
    answers = iter([body["container_responses"][0] for call, body in recorded if call == "AllocateResponse"])
    # The recorded checkpoint files the ids under NUMA node 0: the plugin advertised them there.
    plugin = ScriptedPlugin(RESOURCE, IDS, numa_node=0)
    plugin.choose = same_choice
    plugin.allocate = lambda _: ParseDict(next(answers), ContainerAllocateResponse())
    (root / "slices.json").write_text(
        json.dumps(
            {
                "cdiVersion": "0.6.0",
                "kind": "hami.io/slice",
                "devices": [{"name": name} for name in ("9698180e889d190f", "ca1b32bf313df02b", "3dfdd4683ef43592")],
            }
        )
    )
    recorder = Recorder(root, plugin)

    uid = await recorder.run(
        {
            "initContainers": [container("init", 4)],
            "containers": [container("a", 4, "sleep 3600"), container("b", 2, "sleep 3600")],
        }
    )

    assert comparable(plugin.calls) == comparable(calls_of(recorded))

    expected = [body for call, body in recorded if call == "checkpoint"]
    theirs = {entry["PodUID"] for entry in expected[0]["Data"]["PodDeviceEntries"]}
    renamed = json.loads(json.dumps(expected).replace(theirs.pop(), uid))
    without_sum = [without_order(one["Data"]) for one in recorder.checkpoints]
    assert without_sum == [without_order(one["Data"]) for one in renamed]
    for one in recorder.checkpoints:
        assert one["Checksum"] == checkpoint_sum(convert(one, Checkpoint).data)

    last = [body for call, body in recorded if call == "PodResources"][-1]
    assert by_device(recorder.pod_resources) == by_device(ParseDict(last, resources.ListPodResourcesResponse()))
    assert recorder.one.pod_resources == recorder.pod_resources.pod_resources[0]
    assert sorted(one.device_ids[0] for one in recorder.allocatable.devices) == IDS


def by_device(response: resources.ListPodResourcesResponse) -> list[tuple[str, ...]]:
    """One row a device; the recording left the topology out."""
    return sorted(
        (pod.namespace, pod.name, one.name, devices.resource_name, *devices.device_ids)
        for pod in response.pod_resources
        for one in pod.containers
        for devices in one.devices
    )


@pytest.mark.parametrize(
    "recorded",
    [body for call, body in recording("v1.37.2-late-binding") if call == "checkpoint"],
)
def test_the_checksum_is_the_recorded_one(recorded):
    checkpoint = convert(recorded, Checkpoint)

    assert checkpoint_sum(checkpoint.data) == checkpoint.checksum


@pytest.mark.parametrize("name", ["v1.34.4-e2e-kubelet", "v1.37.2-late-binding"])
def test_recorded_bodies_are_messages_of_our_definitions(name):
    import kubelet_api.deviceplugin_v1beta1_pb2 as pb  # noqa: PLC0415

    kinds = {
        "GetPreferredAllocation": pb.PreferredAllocationRequest,
        "Allocate": pb.AllocateRequest,
        "AllocateResponse": pb.AllocateResponse,
        "PreStartContainer": pb.PreStartContainerRequest,
        "PodResources": resources.ListPodResourcesResponse,
    }
    for call, body in recording(name):
        if call in kinds:
            message = ParseDict(body, kinds[call]())
            again = kinds[call].FromString(message.SerializeToString())
            assert MessageToDict(again, preserving_proto_field_name=True) == body
        elif call == "checkpoint":
            assert read_checkpoint(json.dumps(body).encode()).unreadable == ()
