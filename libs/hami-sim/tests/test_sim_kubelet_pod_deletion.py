"""Pods end."""

import asyncio

from hami_sim.kubelet.scripted_plugin import Refused, ScriptedPlugin
from kubelet_node import FOREVER, RESOURCE, alive, container


async def test_a_deleted_pod_may_say_goodbye(node):
    async with node.kubelet():
        node.run(
            container(
                f'trap "echo bye > {node.root}/bye; exit 7" TERM; touch {node.root}/up; {FOREVER}',
                volumeMounts=[{"name": "root", "mountPath": str(node.root)}],
            ),
            volumes=[{"name": "root", "hostPath": {"path": str(node.root)}}],
        )
        await node.running()
        while not (node.root / "up").exists():  # noqa: ASYNC110 (another process writes it)
            await asyncio.sleep(0.02)
        folder = node.folder()
        node.kube.ask_deletion("pod", 300)
        await node.kube.until_gone("pod")

    assert (node.root / "bye").read_text() == "bye\n"
    assert not folder.exists()


async def test_a_pod_that_does_not_listen_is_killed_when_its_grace_is_over(prefix_node):
    async with prefix_node.kubelet():
        prefix_node.run(container(f'trap "" TERM; {FOREVER}'))
        await prefix_node.running()
        pid = prefix_node.pid()
        prefix_node.kube.ask_deletion("pod", 1)
        await prefix_node.kube.until_gone("pod")

    assert not alive(pid)


async def test_a_pod_can_be_deleted_while_its_start_is_refused(prefix_node):
    def refuse(_: list[str]) -> None:
        raise Refused("never")

    plugin = ScriptedPlugin(RESOURCE, ["a"])
    plugin.pre_start = refuse
    async with prefix_node.kubelet_and(plugin, 1):
        prefix_node.run(container("true", gpus=1))
        await prefix_node.waiting("CreateContainerConfigError")
        prefix_node.kube.ask_deletion("pod", 30)
        await prefix_node.kube.until_gone("pod")


async def test_a_pod_removed_by_force_is_ended(prefix_node):
    async with prefix_node.kubelet() as stand_in:
        prefix_node.run(container(FOREVER), terminationGracePeriodSeconds=1)
        await prefix_node.running()
        process = next(iter(stand_in._processes.all_of(prefix_node.kube.pods["pod"]["metadata"]["uid"])))
        prefix_node.kube.ask_deletion("pod", 0)
        end = await process.ended()

    assert end.signal is not None
