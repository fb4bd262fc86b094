"""Manifests of node-agent and monitor: what keeps pods alive at an upgrade, which paths they share with the host, and
that every setting which base and overlays name is one that the service has."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hami_chassis.settings import load_settings, settable_fields
from hami_monitor.config import MonitorSettings
from hami_monitor.config import serving_faults as monitor_faults
from hami_node_agent.config import NodeAgentSettings
from hami_node_agent.config import serving_faults as agent_faults
from hami_scheduler.config import SchedulerSettings
from hami_sim.binaries import Binaries
from hami_sim.controlplane import RestClient
from hami_webhook.config import WebhookSettings

sys.path.insert(0, str(Path(__file__).parent))

from k8s_manifests import BASE, K8S, KubernetesObject, config_map, containers, pod_templates, render

OVERLAYS = sorted(folder for folder in (K8S / "overlays").iterdir() if folder.is_dir())
FOLDERS = [BASE, *OVERLAYS]
SETTINGS: dict[str, type[Any]] = {
    "hami-scheduler": SchedulerSettings,
    "hami-webhook": WebhookSettings,
    "hami-node-agent": NodeAgentSettings,
    "hami-monitor": MonitorSettings,
}
NODE_SIDE = ("hami-node-agent", "hami-monitor")


@pytest.fixture(scope="module")
def every(kubernetes_binaries: Binaries) -> dict[str, list[KubernetesObject]]:
    """The objects of base and of each overlay, by the folder's name."""
    return {folder.name: render(kubernetes_binaries, folder) for folder in FOLDERS}


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def rendered(request: pytest.FixtureRequest, every: dict[str, list[KubernetesObject]]) -> list[KubernetesObject]:
    return every[request.param.name]


def daemon_set(objects: list[KubernetesObject], name: str) -> KubernetesObject:
    (found,) = [each for each in objects if each["kind"] == "DaemonSet" and each["metadata"]["name"] == name]
    spec: KubernetesObject = found["spec"]
    return spec


def main_container(objects: list[KubernetesObject], name: str) -> KubernetesObject:
    found: KubernetesObject = daemon_set(objects, name)["template"]["spec"]["containers"][0]
    return found


def settings_of(objects: list[KubernetesObject], name: str, folder: Path) -> Any:
    """As the container would load them."""
    file = folder / f"{name}.yaml"
    file.write_text(config_map(objects, name)["settings.yaml"])
    environment = {each["name"]: each.get("value", "given") for each in main_container(objects, name)["env"]}
    return load_settings(SETTINGS[name], file=file, environment=environment)


def test_every_variable_of_ours_is_a_setting(rendered: list[KubernetesObject]) -> None:
    """A name that no service reads would be passed over in silence."""
    for name, _, container in containers(rendered):
        if name not in SETTINGS:
            continue
        known = {f"HAMI_{leaf.path.upper().replace('.', '_')}" for leaf in settable_fields(SETTINGS[name])}
        given = {each["name"] for each in container.get("env", []) if each["name"].startswith("HAMI_")}
        assert given <= known, name


@pytest.mark.parametrize("name", NODE_SIDE)
def test_the_settings_are_complete(name: str, rendered: list[KubernetesObject], tmp_path: Path) -> None:
    faults = {"hami-node-agent": agent_faults, "hami-monitor": monitor_faults}[name]
    assert list(faults(settings_of(rendered, name, tmp_path))) == []


@pytest.mark.parametrize("name", NODE_SIDE)
def test_an_upgrade_ends_one_pod_before_it_starts_the_next_and_has_no_hook(
    name: str, rendered: list[KubernetesObject]
) -> None:
    spec = daemon_set(rendered, name)
    assert spec["updateStrategy"]["type"] == "RollingUpdate"
    assert spec["updateStrategy"]["rollingUpdate"].get("maxSurge", 0) == 0
    pod = spec["template"]["spec"]
    assert 5 <= pod["terminationGracePeriodSeconds"] <= 60
    assert pod["priorityClassName"] == "system-node-critical"
    assert not any("lifecycle" in container for container in pod["containers"])


def mounts_of(objects: list[KubernetesObject], name: str) -> dict[str, tuple[str, bool]]:
    """Folder of the host, and whether it is only read, by the folder in the container."""
    pod = daemon_set(objects, name)["template"]["spec"]
    hosts = {each["name"]: each["hostPath"]["path"] for each in pod["volumes"] if "hostPath" in each}
    return {
        mount["mountPath"]: (hosts[mount["name"]], mount.get("readOnly", False))
        for mount in pod["containers"][0]["volumeMounts"]
        if mount["name"] in hosts
    }


def writable_at_its_place(mounts: dict[str, tuple[str, bool]], path: str) -> bool:
    """Whether a file there is that of the host, under the same path, and can be written."""
    inside = [folder for folder in mounts if Path(path).is_relative_to(folder)]
    return bool(inside) and mounts[max(inside, key=len)] == (max(inside, key=len), False)


def test_what_the_agent_writes_and_names_to_kubelet_has_one_path_in_and_out(
    rendered: list[KubernetesObject], tmp_path: Path
) -> None:
    settings = settings_of(rendered, "hami-node-agent", tmp_path)
    mounts = mounts_of(rendered, "hami-node-agent")
    vgpu = f"{settings.files.hook_path}/vgpu"
    for path in (
        vgpu,
        f"{vgpu}/containers",
        f"{vgpu}/limits",
        settings.files.lock_dir,
        settings.files.cdi_dir,
        settings.files.state_dir,
        settings.kubelet.plugins_dir,
    ):
        assert writable_at_its_place(mounts, path), path
    for folder in (*settings.files.nvidia_cdi_dirs, str(Path(settings.kubelet.pod_resources_socket).parent)):
        assert mounts[folder][0] == folder
    if settings.nvml.driver_root not in ("", "/"):
        assert mounts[settings.nvml.driver_root] == (settings.nvml.host_driver_root, True)


def test_the_monitor_writes_regions_and_nothing_else(rendered: list[KubernetesObject], tmp_path: Path) -> None:
    settings = settings_of(rendered, "hami-monitor", tmp_path)
    vgpu = f"{settings.node.hook_path}/vgpu"
    mounts = mounts_of(rendered, "hami-monitor")
    assert mounts == {vgpu: (vgpu, True), f"{vgpu}/containers": (f"{vgpu}/containers", False)}
    agent = settings_of(rendered, "hami-node-agent", tmp_path)
    assert agent.files.hook_path == settings.node.hook_path


def test_agent_and_monitor_run_on_the_same_nodes_and_survive_their_taints(rendered: list[KubernetesObject]) -> None:
    pods = [daemon_set(rendered, name)["template"]["spec"] for name in NODE_SIDE]
    assert pods[0]["nodeSelector"] == pods[1]["nodeSelector"]
    assert pods[0]["tolerations"] == pods[1]["tolerations"]
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pods[0]["tolerations"]


def test_overlays_say_what_they_are_named_for(every: dict[str, list[KubernetesObject]], tmp_path: Path) -> None:
    def agent(overlay: str) -> Any:
        return settings_of(every[overlay], "hami-node-agent", tmp_path)

    assert agent("base").handoff.mode == "late-binding"
    assert agent("lock").handoff.mode == "lock"
    assert agent("gpu-operator").nvml.driver_root == "/driver-root"
    for name in NODE_SIDE:
        pod = daemon_set(every["gpu-operator"], name)["template"]["spec"]
        assert pod["runtimeClassName"] == "nvidia"
        assert daemon_set(every["moving"], name)["template"]["spec"]["nodeSelector"] == {"hami.io/node-agent": "ours"}
    mig = agent("mig").node
    maps = {each["metadata"]["name"]: each["data"] for each in every["mig"] if each["kind"] == "ConfigMap"}
    (overrides,) = [data for name, data in maps.items() if name.startswith("hami-node-overrides")]
    assert {mig.overrides_file, mig.device_config_file} == {f"/config/{name}" for name in overrides}
    # Without profiles that may be made no card in MIG mode is offered.
    assert yaml.safe_load(overrides["device-config.yaml"])["nvidia"]["migProfileAllowlist"]
    added = main_container(every["mig"], "hami-node-agent")["securityContext"]["capabilities"]["add"]
    assert "SYS_ADMIN" in added


def test_only_the_overlay_for_mig_asks_for_power_over_the_system(every: dict[str, list[KubernetesObject]]) -> None:
    asking = {
        overlay
        for overlay, objects in every.items()
        for _, _, container in containers(objects)
        if "SYS_ADMIN" in container["securityContext"]["capabilities"].get("add", [])
    }
    assert asking == {"mig"}


def documents(file: Path) -> list[KubernetesObject]:
    return list(yaml.safe_load_all(file.read_text()))


@pytest.mark.parametrize("file", sorted((K8S / "examples").rglob("*.yaml")), ids=lambda file: file.name)
async def test_examples_are_pods_that_the_api_server_takes(file: Path, kube: RestClient, namespace: str) -> None:
    """Those beside this one run in the local cluster; the ones below need nodes that it has not."""
    for document in documents(file):
        path = {"Pod": f"/api/v1/namespaces/{namespace}/pods"}.get(
            document["kind"], f"/apis/apps/v1/namespaces/{namespace}/{document['kind'].lower()}s"
        )
        await kube.post(path, document, dryRun="All", fieldValidation="Strict")


def test_prometheus_operator_finds_every_service_once(every: dict[str, list[KubernetesObject]]) -> None:
    objects = every["pod-monitor"]
    monitors = [each["spec"] for each in objects if each["kind"] == "PodMonitor"]
    labels = {name: template["metadata"]["labels"] for name, template in pod_templates(objects)}
    ports = {name: {each["name"] for each in container["ports"]} for name, _, container in containers(objects)}
    for name in SETTINGS:
        scraped = [
            endpoint["port"]
            for monitor in monitors
            if selects(monitor["selector"], labels[name])
            for endpoint in monitor["podMetricsEndpoints"]
        ]
        assert len(scraped) == 1, name
        assert set(scraped) <= ports[name]


def selects(selector: KubernetesObject, labels: dict[str, str]) -> bool:
    """matchLabels, and `In` of matchExpressions."""
    wanted = selector.get("matchLabels", {}).items() <= labels.items()
    return wanted and all(
        labels.get(each["key"]) in each["values"]
        for each in selector.get("matchExpressions", [])
        if each["operator"] == "In"
    )
