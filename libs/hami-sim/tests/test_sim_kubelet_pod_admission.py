"""Pods are admitted, or refused, over real plugin sockets."""

import asyncio
import json

import grpc
import pytest
from hami_sim.kubelet.device_plugins import PluginEndpoint, PluginRegistry
from hami_sim.kubelet.ports import PluginError
from hami_sim.kubelet.scripted_plugin import Refused, ScriptedPlugin
from kubelet_api.deviceplugin_v1beta1_pb2 import ContainerAllocateResponse
from kubelet_api.deviceplugin_v1beta1_pb2_grpc import add_DevicePluginServicer_to_server
from kubelet_node import FOREVER, RESOURCE, container


async def test_a_pod_that_finds_no_devices_fails_and_the_next_one_finds_them_free_again(prefix_node):
    node, plugin = prefix_node, ScriptedPlugin(RESOURCE, ["a", "b"])
    async with node.kubelet_and(plugin, 2):
        node.run(container(FOREVER, gpus=2), name="first")
        await node.running("first")
        node.run(container("true", gpus=1), name="second")
        refused = await node.kube.until_phase("second", "Failed")
        node.kube.ask_deletion("first", 1)
        await node.kube.until_gone("first")
        node.run(container("true", gpus=2), name="third")
        await node.kube.until_phase("third", "Succeeded")

    assert refused["reason"] == "UnexpectedAdmissionError"
    assert "Requested: 1, Available: 0, which is unexpected" in refused["message"]


async def test_an_allocate_that_is_refused_fails_the_pod(prefix_node):
    def refuse(_: list[str]) -> ContainerAllocateResponse:
        raise Refused("no binding pod found")

    plugin = ScriptedPlugin(RESOURCE, ["a"])
    plugin.allocate = refuse
    async with prefix_node.kubelet_and(plugin, 1):
        prefix_node.run(container("true", gpus=1))
        status = await prefix_node.kube.until_phase("pod", "Failed")

    assert status["message"] == (
        "Pod was rejected: Allocate failed due to rpc error: code = Unknown desc = no binding pod found, "
        "which is unexpected"
    )


class SilentPlugin(ScriptedPlugin):
    """Is asked, and ends before it answers."""

    async def Allocate(self, request, _context):  # noqa: N802
        await self._note("Allocate", request)
        await asyncio.Event().wait()


async def test_a_plugin_that_ends_in_a_call_fails_that_call_and_nothing_else(short_root):
    """Its channel is closed once its list of devices ends, which cancels the calls on it: as if the caller were."""
    plugin = SilentPlugin(RESOURCE, ["a"])
    server = grpc.aio.server()
    add_DevicePluginServicer_to_server(plugin, server)
    server.add_insecure_port(f"unix:{short_root / 'scripted.sock'}")
    await server.start()
    endpoint = PluginEndpoint(RESOURCE, short_root / "scripted.sock")
    await endpoint.connect()
    asked = [asyncio.create_task(endpoint.allocate(["a"])) for _ in range(2)]
    async with plugin.called:
        await plugin.called.wait_for(lambda: len(plugin.bodies("Allocate")) == len(asked))
    asked[1].cancel()
    await asyncio.wait([asked[1]])
    await endpoint.close()
    with pytest.raises(PluginError, match="Unavailable"):
        await asked[0]
    assert asked[1].cancelled()
    await server.stop(None)


async def test_a_plugin_that_registers_while_kubelet_ends_is_told_so(prefix_node):
    async with prefix_node.kubelet() as ended:
        pass
    registry = PluginRegistry(prefix_node.plugin_folder, lambda *_: None, lambda _: None, ended.spawn)
    await registry.start()
    with pytest.raises(grpc.aio.AioRpcError, match="kubelet is ending"):
        async with ScriptedPlugin(RESOURCE, ["a"]).serving(prefix_node.plugin_folder):
            pass
    await registry.stop()


async def test_a_resource_that_no_plugin_ever_registered_is_not_the_kubelets_business(prefix_node):
    async with prefix_node.kubelet():
        prefix_node.run(container("true", resources={"limits": {"example.com/other": "5", "cpu": "1"}}))
        await prefix_node.kube.until_phase("pod", "Succeeded")


async def test_pods_are_admitted_one_after_another_oldest_first(prefix_node):
    node, plugin = prefix_node, ScriptedPlugin(RESOURCE, [f"d{i}" for i in range(6)])
    order = []
    for index, size in enumerate((3, 1, 2)):
        node.kube.run_pod(
            "n1",
            {"restartPolicy": "Never", "containers": [container("true", gpus=size)]},
            f"p{size}",
            creationTimestamp=f"2026-01-01T00:00:0{(2, 0, 1)[index]}Z",
        )
    # Known to the kubelet, not yet connected: as after a restart.
    node.plugin_folder.mkdir()
    (node.plugin_folder / "kubelet_internal_checkpoint").write_text(
        json.dumps({"Data": {"PodDeviceEntries": None, "RegisteredDevices": {RESOURCE: []}}, "Checksum": 0})
    )
    async with node.kubelet():
        for size in (1, 2, 3):
            status = await node.kube.until_phase(f"p{size}", "Failed")
            order.append(status["message"])
    assert all(f"cannot allocate unregistered device {RESOURCE}" in message for message in order)
    assert [pod for pod, _, _ in node.kube.warnings] == ["p1", "p2", "p3"]
    assert plugin.calls == []
