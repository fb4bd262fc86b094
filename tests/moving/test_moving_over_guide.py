"""Steps of docs/moving-over.md on a real API server with its controllers: a label moves a node over, and back."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml
from hami_sim.binaries import Binaries
from hami_sim.controlplane import ControlPlane, RestClient
from scheduler_builders import node

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/moving-over.md").read_text()
MOVING = ROOT / "k8s/overlays/moving"
PATCH = MOVING / "hami-device-plugin-patch.json"
OURS = ("hami-node-agent", "hami-monitor")
Json = dict[str, Any]


def their_daemon_set(namespace: str) -> Json:
    """What HAMi's chart makes, as far as choosing nodes goes."""
    labels = {"app.kubernetes.io/component": "hami-device-plugin"}
    container = {"name": "device-plugin", "image": "projecthami/hami:v2.10.0"}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "hami-device-plugin", "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                # There is no kubelet here that would end them.
                "spec": {"terminationGracePeriodSeconds": 0, "nodeSelector": {"gpu": "on"}, "containers": [container]},
            },
        },
    }


def our_daemon_sets(kubectl: Path, namespace: str) -> list[Json]:
    done = subprocess.run([kubectl, "kustomize", MOVING], capture_output=True, text=True, check=True)
    found = [each for each in yaml.safe_load_all(done.stdout) if each["kind"] == "DaemonSet"]
    assert {each["metadata"]["name"] for each in found} == set(OURS)
    for each in found:
        each["metadata"]["namespace"] = namespace
        # The account is of another namespace; there is no kubelet here that would end the pods.
        pod = each["spec"]["template"]["spec"]
        del pod["serviceAccountName"]
        pod["terminationGracePeriodSeconds"] = 0
    return found


class Pods:
    """Of DaemonSets of one namespace on one node."""

    def __init__(self, kube: RestClient, namespace: str, node_name: str) -> None:
        self._kube = kube
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._node = node_name

    def _owners(self, pods: Json | None) -> set[str]:
        """DaemonSets that have a pod there which is not about to end."""
        return {
            pod["metadata"]["ownerReferences"][0]["name"]
            for pod in (pods or {"items": []})["items"]
            if self._node in json.dumps(pod["spec"].get("affinity", {})) and "deletionTimestamp" not in pod["metadata"]
        }

    async def are_of(self, *daemon_sets: str) -> None:
        await self._kube.wait_until(
            self._path, lambda found: self._owners(found) == set(daemon_sets), timeout_seconds=400
        )


@pytest.mark.timeout(900)
async def test_one_label_moves_a_node_over_and_back(
    kubernetes_binaries: Binaries, control_plane: ControlPlane, kube: RestClient, namespace: str
) -> None:
    del control_plane
    name = f"node-{uuid.uuid4().hex[:8]}"
    body = node(name)
    body["metadata"]["labels"] = {"gpu": "on", "kubernetes.io/hostname": name}
    await kube.post("/api/v1/nodes", body)
    sets = f"/apis/apps/v1/namespaces/{namespace}/daemonsets"
    pods = Pods(kube, namespace, name)

    await kube.post(sets, their_daemon_set(namespace))
    for ours in our_daemon_sets(kubernetes_binaries.kubectl, namespace):
        await kube.post(sets, ours)
    await pods.are_of("hami-device-plugin")
    await kube.patch(f"{sets}/hami-device-plugin", json.loads(PATCH.read_text()))
    await pods.are_of("hami-device-plugin")

    await kube.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {"hami.io/node-agent": "ours"}}})
    await pods.are_of(*OURS)
    await kube.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {"hami.io/node-agent": None}}})
    await pods.are_of("hami-device-plugin")

    await kube.delete(sets)
    await kube.delete(f"/api/v1/nodes/{name}")


def test_the_registration_of_the_guide_lets_hami_s_device_plugin_write(tmp_path: Path) -> None:
    """The command as it stands in the guide, with an authority that is there."""
    command = re.search(r"hami-webhook (registration .*?)\| kubectl", GUIDE.replace("\\\n", " "), re.DOTALL)
    assert command is not None
    authority = tmp_path / "authority.crt"
    authority.write_text("-----BEGIN CERTIFICATE-----\n")
    words = command[1].replace("out/secrets/webhook-authority.crt", str(authority)).replace("$HAMI", "kube-system")
    printed = subprocess.run(
        [Path(sys.executable).with_name("hami-webhook"), *words.split()], capture_output=True, text=True, check=True
    )
    objects = {each["kind"]: each for each in yaml.safe_load_all(printed.stdout)}
    policy = objects["ValidatingAdmissionPolicy"]
    (trusted,) = [each for each in policy["spec"]["matchConditions"] if each["name"] == "not-trusted"]
    for account in ("hami-system:hami-scheduler", "hami-system:hami-node-agent", "kube-system:hami-device-plugin"):
        assert f'"system:serviceaccount:{account}"' in trusted["expression"]
    names = {each["metadata"]["name"] for each in objects.values()}
    deleted = re.findall(r"kubectl delete \S+ (hami-webhook\S*)", GUIDE)
    assert names == set(deleted), "going back deletes what was made"


def test_the_guide_names_files_that_are_there() -> None:
    named = set(re.findall(r"(?:k8s|tests)/[\w./-]*[\w]", GUIDE))
    assert len(named) > 4
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
