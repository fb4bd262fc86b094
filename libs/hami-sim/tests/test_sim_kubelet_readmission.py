"""Pods that a kubelet finds started after its own restart, while the device plugin has not come back."""

from __future__ import annotations

import msgspec
import pytest
from hami_sim.kubelet.scripted_plugin import ScriptedPlugin
from kubelet_node import FOREVER, RESOURCE, container

SELDOM = 1000.0
"""Factor on kubelet's delays: what failed is not tried again in a test."""


@pytest.mark.parametrize("anew", [True, False])
async def test_only_who_runs_is_sure_of_its_devices(prefix_node, anew):
    kubelet, plugin = prefix_node, ScriptedPlugin(RESOURCE, ["a", "b", "c"])
    kubelet.settings = msgspec.structs.replace(kubelet.settings, time_scale=SELDOM, admits_started_pods_anew=anew)
    async with kubelet.kubelet_and(plugin, 3):
        kubelet.run(container(FOREVER, gpus=1), name="runs", policy="Always")
        await kubelet.running("runs")
        kubelet.run(container("exit 3", gpus=1), name="waits", policy="Always")
        await kubelet.waiting("CrashLoopBackOff", "waits")
    pid = kubelet.pid("runs")

    async with kubelet.kubelet():
        kubelet.run(container("true", gpus=1), name="new")
        status = await kubelet.kube.until_phase("new", "Failed")
        assert f"cannot allocate unregistered device {RESOURCE}" in status["message"]
        if anew:
            status = await kubelet.kube.until_phase("waits", "Failed")
            assert status["reason"] == "UnexpectedAdmissionError"
        else:
            await kubelet.waiting("CrashLoopBackOff", "waits")
        async with plugin.serving(kubelet.plugin_folder):
            await kubelet.allocatable(3)
            kubelet.run(container("true", gpus=1), name="later")
            await kubelet.kube.until_phase("later", "Succeeded")
        assert (kubelet.kube.pods["runs"]["status"]["phase"], kubelet.pid("runs")) == ("Running", pid)
