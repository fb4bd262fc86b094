"""The stand-in or a plugin goes and comes back; pods go on."""

import asyncio
import os

import grpc
import msgspec
import pytest
from hami_sim.kubelet.scripted_plugin import ScriptedPlugin
from kubelet_api.deviceplugin_v1beta1_pb2 import RegisterRequest
from kubelet_api.deviceplugin_v1beta1_pb2_grpc import RegistrationStub
from kubelet_node import FOREVER, RESOURCE, alive, container


async def test_a_plugin_may_go_and_come_back(prefix_node):
    node, plugin = prefix_node, ScriptedPlugin(RESOURCE, ["a", "b"])
    async with node.kubelet():
        async with plugin.serving(node.plugin_folder):
            await node.allocatable(2)
            node.run(container(FOREVER, gpus=1), name="stays")
            await node.running("stays")
            pid = node.pid("stays")
        await node.allocatable(0)
        assert node.kube.nodes["n1"]["status"]["capacity"][RESOURCE] == "2"
        async with plugin.serving(node.plugin_folder, "again.sock"):
            await node.allocatable(2)
            node.run(container("true", gpus=1), name="next")
            await node.kube.until_phase("next", "Succeeded")
            node.run(container("true", gpus=2), name="too-much")
            await node.kube.until_phase("too-much", "Failed")
        assert alive(pid)


async def test_an_unhealthy_device_is_not_allocatable(prefix_node):
    plugin = ScriptedPlugin(RESOURCE, ["a", "b"])
    async with prefix_node.kubelet_and(plugin, 2):
        plugin.set_health({"a": False})
        await prefix_node.allocatable(1)
        prefix_node.run(container("true", gpus=1))
        await prefix_node.kube.until_phase("pod", "Succeeded")

    assert plugin.bodies("Allocate") == [{"container_requests": [{"devices_ids": ["b"]}]}]


async def test_a_new_stand_in_takes_processes_and_devices_over(node):
    plugin = ScriptedPlugin(RESOURCE, ["a", "b"])
    script = f"while [ ! -e {node.root}/go ]; do sleep 0.05; done; exit 5"
    async with node.kubelet_and(plugin, 2):
        node.run(
            container(script, gpus=2, volumeMounts=[{"name": "root", "mountPath": str(node.root)}]),
            volumes=[{"name": "root", "hostPath": {"path": str(node.root)}}],
        )
        await node.running()
        pid = node.pid()
    assert alive(pid), "containers outlive the stand-in"
    async with node.kubelet():
        assert node.kube.nodes["n1"]["status"]["allocatable"][RESOURCE] == "0"
        async with plugin.serving(node.plugin_folder):
            await node.allocatable(2)
            node.run(container("true", gpus=1), name="second")
            await node.kube.until_phase("second", "Failed")
            assert node.pid() == pid
            (node.root / "go").touch()
            status = await node.kube.until_phase("pod", "Failed")

    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 5
    assert len(plugin.bodies("Allocate")) == 1


async def test_an_end_that_nobody_saw_is_known_afterwards(prefix_node):
    node = prefix_node
    async with node.kubelet():
        node.run(container(f"while [ ! -e {node.root}/go ]; do sleep 0.05; done; exit 6"))
        await node.running()
        exit_file = node.folder() / "exit.json"
    (node.root / "go").touch()
    while not exit_file.exists():  # noqa: ASYNC110 (another process writes it)
        await asyncio.sleep(0.02)
    async with node.kubelet():
        status = await node.kube.until_phase("pod", "Failed")

    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 6


async def test_processes_of_a_pod_that_was_removed_meanwhile_are_ended(prefix_node):
    node = prefix_node
    async with node.kubelet():
        node.run(container(FOREVER))
        await node.running()
        pid, folder = node.pid(), node.folder()
    node.kube.ask_deletion("pod", 0)
    async with node.kubelet():
        assert not alive(pid)
        assert not folder.exists()


async def test_a_start_that_an_earlier_life_left_half_done_is_done_anew(prefix_node):
    prefix_node.run(container("echo ran"))
    prefix_node.folder().mkdir(parents=True)
    (prefix_node.folder() / "spec.json").write_text("{}")
    async with prefix_node.kubelet():
        status = await prefix_node.kube.until_phase("pod", "Succeeded")

    assert (prefix_node.log(), status["containerStatuses"][0]["restartCount"]) == ("ran\n", 0)


async def test_processes_of_a_pod_that_is_finished_are_ended(prefix_node):
    node = prefix_node
    async with node.kubelet():
        node.run(container(FOREVER))
        await node.running()
        pid = node.pid()
    node.kube.pods["pod"]["status"]["phase"] = "Failed"
    async with node.kubelet():
        while not (node.folder() / "exit.json").exists():  # noqa: ASYNC110 (another process writes it)
            await asyncio.sleep(0.02)
    assert not alive(pid)


async def test_a_plugin_may_register_anew_without_going(prefix_node):
    first, second = ScriptedPlugin(RESOURCE, ["a"]), ScriptedPlugin(RESOURCE, ["b", "c"])
    async with prefix_node.kubelet_and(first, 1), second.serving(prefix_node.plugin_folder, "second.sock"):
        await prefix_node.allocatable(2)
        prefix_node.run(container("true", gpus=1))
        await prefix_node.kube.until_phase("pod", "Succeeded")

    assert (len(first.bodies("Allocate")), len(second.bodies("Allocate"))) == (0, 1)


async def test_a_plugin_of_another_version_is_refused(prefix_node):
    async with (
        prefix_node.kubelet(),
        grpc.aio.insecure_channel(f"unix:{prefix_node.plugin_folder}/kubelet.sock") as channel,
    ):
        for request in (
            RegisterRequest(version="v1", endpoint="x.sock", resource_name=RESOURCE),
            RegisterRequest(version="v1beta1", endpoint="x.sock", resource_name="gpu"),
            RegisterRequest(version="v1beta1", endpoint="../x.sock", resource_name=RESOURCE),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match="INVALID_ARGUMENT"):
                await RegistrationStub(channel).Register(request)


async def test_sockets_of_an_earlier_life_are_removed(prefix_node):
    prefix_node.plugin_folder.mkdir()
    plugin = ScriptedPlugin(RESOURCE, ["a"])
    async with prefix_node.kubelet_and(plugin, 1):
        left = prefix_node.plugin_folder / "scripted.sock"
        os.link(left, prefix_node.plugin_folder / "left.sock")
    async with prefix_node.kubelet():
        assert [path.name for path in prefix_node.plugin_folder.glob("*.sock")] == ["kubelet.sock"]


async def test_a_status_is_written_when_the_api_server_is_back(prefix_node):
    node = prefix_node
    async with node.kubelet():
        node.run(container(f"while [ ! -e {node.root}/go ]; do sleep 0.05; done"))
        await node.running()
        exit_file = node.folder() / "exit.json"
        node.kube.away = True
        (node.root / "go").touch()
        while not exit_file.exists():  # noqa: ASYNC110 (another process writes it)
            await asyncio.sleep(0.02)
        node.kube.away = False
        await node.kube.until_phase("pod", "Succeeded")


async def test_a_node_and_its_pods_are_ready_again_after_silence(prefix_node):
    node = prefix_node
    node.settings = msgspec.structs.replace(
        node.settings, lease_duration_seconds=1, lease_renew_seconds=0.1, reconcile_seconds=0.0
    )
    status = node.kube.nodes

    def node_ready() -> str:
        return next(c["status"] for c in status["n1"]["status"]["conditions"] if c["type"] == "Ready")

    def pod_ready() -> str:
        conditions = node.kube.pods["pod"]["status"]["conditions"]
        return next((c["status"] for c in conditions if c["type"] == "Ready"), "")

    async with node.kubelet():
        node.run(container(FOREVER))
        await node.kube.until(lambda: pod_ready() == "True")
        node.kube.away = True
        await node.kube.until_called_in_vain(2)
        for condition in [*status["n1"]["status"]["conditions"], *node.kube.pods["pod"]["status"]["conditions"]]:
            condition["status"] = "Unknown" if condition["type"] == "Ready" else condition["status"]
        node.kube.away = False
        await node.kube.until(lambda: node_ready() == "True")
        node.kube.touch("pod")
        await node.kube.until(lambda: pod_ready() == "True")
