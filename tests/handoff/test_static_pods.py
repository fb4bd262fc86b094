"""Static pods: kubelet knows them by a hash, the API server by a mirror object that names the hash."""

from __future__ import annotations

import json

import grpc
import pytest
from case_cluster import BareKubelet, bare_kubelet
from handoff_world import LIMIT, book, card_id, container, slot, specifications, until
from kubelet_api import checkpoint
from kubelet_api import deviceplugin_v1beta1_pb2 as pb
from kubelet_api.constants import CHECKPOINT_FILE

HASH = "8f2c6ddcd0d1b4f7a9e34dc2b1f0a6c5"
MIRROR = {"kubernetes.io/config.mirror": HASH}


async def admit(kubelet: BareKubelet, uid: str, device: str, name: str = "main") -> None:
    """Allocate, and kubelet's checkpoint afterwards."""
    answer = await kubelet.allocate(device)
    entry = checkpoint.pod_devices_entry(uid, name, "nvidia.com/gpu", {-1: [device]}, answer)
    written = checkpoint.Checkpoint(checkpoint.CheckpointData([entry], {}))
    file = kubelet.world.root / "kl" / "device-plugins" / CHECKPOINT_FILE
    file.write_bytes(checkpoint.write_checkpoint(written))


async def start(kubelet: BareKubelet, device: str) -> str:
    """Why the container may not start; empty where it may."""
    try:
        await kubelet.stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=[device]))
    except grpc.aio.AioRpcError as error:
        return str(error.details())
    return ""


def limits(kubelet: BareKubelet) -> list[str]:
    written = [json.loads(path.read_text()) for path in specifications(kubelet.world)]
    variables = [text for found in written for text in found["devices"][0]["containerEdits"]["env"]]
    return [text for text in variables if text.startswith(LIMIT)]


async def test_a_static_pod_is_served_by_what_its_mirror_carries_and_forgotten_with_it() -> None:
    async with bare_kubelet("late-binding") as kubelet:
        world, device = kubelet.world, f"{card_id(0)}-0"
        await admit(kubelet, HASH, device)
        assert "not known to the API server" in await start(kubelet, device)
        world.bind_pod("etcd-n1", slot((0, 3000, 0)), container(gpus=1), annotations=MIRROR)
        assert await start(kubelet, device) == ""
        assert limits(kubelet) == [f"{LIMIT}=3000m"]
        assert list(book(world)) == [HASH]
        await until(lambda: world.phase("etcd-n1") == "success", "the phase")
        world.fake.remove("pods", "etcd-n1", "default")
        await until(lambda: not specifications(world) and not book(world), "nothing to be left")


async def test_a_static_pod_without_an_allocation_is_refused_with_the_reason() -> None:
    async with bare_kubelet("late-binding") as kubelet:
        device = f"{card_id(0)}-0"
        kubelet.world.bind_pod("etcd-n1", None, container(gpus=1), annotations=MIRROR)
        await admit(kubelet, HASH, device)
        assert "not placed by the HAMi scheduler" in await start(kubelet, device)
        assert specifications(kubelet.world) == []


@pytest.mark.parametrize("broken", ["list", "watch"])
async def test_while_the_api_server_is_away_nothing_is_taken_for_gone(broken: str) -> None:
    """A new agent knows no pod until it has listed them; what an earlier one wrote stays."""
    async with bare_kubelet("late-binding") as kubelet:
        world, device = kubelet.world, f"{card_id(0)}-0"
        uid = world.bind_pod("p", slot((0, 3000, 0)), container(gpus=1))
        await admit(kubelet, uid, device)
        assert await start(kubelet, device) == ""
        await world.kill_agent()
        world.fake.fail(broken, "pods", 503, times=10**6)
        asked = world.fake.count(broken, "pods")
        world.start_agent()
        await until(lambda: world.fake.count(broken, "pods") > asked + 3, "the agent to ask in vain")
        assert limits(kubelet) == [f"{LIMIT}=3000m"]
        assert list(book(world)) == [uid]
        world.fake.clear_faults()
        world.fake.remove("pods", "p", "default")
        await until(lambda: not specifications(world) and not book(world), "nothing to be left")
