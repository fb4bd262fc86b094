"""Containers start, fail and start again."""

import errno
from pathlib import Path

import msgspec
from hami_sim.kubelet import KubeletStandIn
from hami_sim.kubelet.log_server import LogServer
from hami_sim.kubelet.scripted_plugin import Refused, ScriptedPlugin
from hami_sim.kubelet.settings import LogServerSettings
from hami_sim.kubelet.shim_server import ShimServer
from kubelet_node import FOREVER, RESOURCE, alive, container


async def test_a_refused_pre_start_is_tried_again_and_the_container_does_not_run(node):
    refusals = iter(["first", "second"])

    def refuse_twice(_: list[str]) -> None:
        text = next(refusals, None)
        if text:
            raise Refused(text)

    plugin = ScriptedPlugin(RESOURCE, ["a", "b"])
    plugin.pre_start = refuse_twice
    async with node.kubelet_and(plugin, 2):
        node.run(container("echo ran", gpus=2))
        message = await node.waiting("CreateContainerConfigError")
        assert not node.folder().exists()
        status = await node.kube.until_phase("pod", "Succeeded")

    assert "PreStartContainer rpc failed with err: rpc error: code = Unknown desc = " in message
    assert [sorted(body["devices_ids"]) for body in plugin.bodies("PreStartContainer")] == [["a", "b"]] * 3
    assert len(plugin.bodies("Allocate")) == 1
    assert (node.log(), status["containerStatuses"][0]["restartCount"]) == ("ran\n", 0)


async def test_a_process_that_cannot_be_started_is_tried_again_and_the_node_goes_on(prefix_node):
    class FirstFails(ShimServer):
        failures = 1

        async def start_shim(self, folder: Path) -> None:
            if self.failures:
                self.failures -= 1
                raise BlockingIOError(errno.EAGAIN, "no more processes")
            await super().start_shim(folder)

    prefix_node.settings = msgspec.structs.replace(prefix_node.settings, time_scale=0.1)
    async with prefix_node.kubelet(FirstFails()):
        prefix_node.run(container("echo ran"))
        message = await prefix_node.waiting("CreateContainerError")
        assert not prefix_node.folder().exists()
        status = await prefix_node.kube.until_phase("pod", "Succeeded")

    assert message == "its process cannot be started: [Errno 11] no more processes"
    assert (prefix_node.log(), status["containerStatuses"][0]["restartCount"]) == ("ran\n", 0)


async def test_a_container_that_fails_comes_back_and_pre_start_comes_each_time(prefix_node):
    node, plugin = prefix_node, ScriptedPlugin(RESOURCE, ["a"])
    script = f"echo x >> {node.root}/runs; [ $(wc -l < {node.root}/runs) -ge 3 ]"
    async with node.kubelet_and(plugin, 1):
        node.run(container(script, gpus=1), policy="OnFailure")
        status = await node.kube.until_phase("pod", "Succeeded")

    assert status["containerStatuses"][0]["restartCount"] == 2
    assert status["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 1
    assert len(plugin.bodies("PreStartContainer")) == 3
    assert len(plugin.bodies("Allocate")) == 1


async def test_a_container_that_always_ends_is_held_back(prefix_node):
    prefix_node.settings = msgspec.structs.replace(prefix_node.settings, time_scale=10.0)
    async with prefix_node.kubelet():
        prefix_node.run(container("exit 3"), policy="Always")
        message = await prefix_node.waiting("CrashLoopBackOff")

    assert message.startswith("back-off 100s restarting failed container=main pod=pod_default(")
    assert prefix_node.state()["restartCount"] == 1
    assert prefix_node.state()["lastState"]["terminated"]["exitCode"] == 3
    assert prefix_node.kube.pods["pod"]["status"]["phase"] == "Running"


async def test_init_containers_run_in_order_before_the_others(prefix_node):
    root = prefix_node.root
    async with prefix_node.kubelet():
        prefix_node.run(
            container(f"cat {root}/order"),
            initContainers=[
                container(f"sleep 0.2; echo one >> {root}/order", name="one"),
                container(f"echo two >> {root}/order", name="two"),
            ],
        )
        await prefix_node.kube.until_phase("pod", "Succeeded")

    assert prefix_node.log() == "one\ntwo\n"


async def test_a_failed_init_container_fails_a_pod_that_never_restarts(prefix_node):
    async with prefix_node.kubelet():
        prefix_node.run(container("true"), initContainers=[container("exit 4", name="init")])
        status = await prefix_node.kube.until_phase("pod", "Failed")

    assert status["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 4
    assert status["containerStatuses"][0]["state"]["waiting"]["reason"] == "PodInitializing"


async def test_a_sidecar_runs_beside_the_others_and_ends_after_them(prefix_node):
    root = prefix_node.root
    script = f'trap "echo bye; exit 0" TERM; touch {root}/up; {FOREVER}'
    async with prefix_node.kubelet():
        prefix_node.run(
            container(f"while [ ! -e {root}/up ]; do sleep 0.05; done; echo worked"),
            initContainers=[container(script, name="side", restartPolicy="Always")],
            terminationGracePeriodSeconds=300,
        )
        await prefix_node.kube.until_phase("pod", "Succeeded")

    assert (prefix_node.log(), prefix_node.log(container="side")) == ("worked\n", "bye\n")


async def test_what_a_container_leaves_behind_ends_with_it(node):
    async with node.kubelet():
        node.run(container(f"setsid sh -c '{FOREVER}' & echo $!; sleep 0.2"))
        await node.kube.until_phase("pod", "Succeeded")

    assert not alive(int(node.log()))


async def test_a_pod_past_its_deadline_fails(prefix_node):
    async with prefix_node.kubelet():
        prefix_node.run(container(FOREVER), activeDeadlineSeconds=1)
        status = await prefix_node.kube.until_phase("pod", "Failed")

    assert status["reason"] == "DeadlineExceeded"


async def test_the_image_comes_before_pre_start_and_pre_start_before_the_process(prefix_node):
    order: list[str] = []
    plugin = ScriptedPlugin(RESOURCE, ["a"])
    plugin.pre_start = lambda _: order.append("pre-start" if not prefix_node.folder().exists() else "too late")

    async def pull(image: str) -> None:
        order.append(image)

    async with LogServer(LogServerSettings()).serving() as logs:
        stand_in = await KubeletStandIn.create(
            prefix_node.settings, prefix_node.kube, events=prefix_node.kube, log_server=logs, pull=pull
        )
        async with stand_in.running(), plugin.serving(prefix_node.plugin_folder):
            await prefix_node.allocatable(1)
            prefix_node.run(container("true", gpus=1))
            await prefix_node.kube.until_phase("pod", "Succeeded")

    assert order == ["any", "pre-start"]
