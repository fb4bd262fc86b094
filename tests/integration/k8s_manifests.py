"""The objects of k8s/, as `kubectl apply -k` would send them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from hami_sim.binaries import Binaries

K8S = Path(__file__).resolve().parents[2] / "k8s"
BASE = K8S / "base"
NAMESPACE = "hami-system"
WORKLOADS = ("Deployment", "DaemonSet", "StatefulSet")

KubernetesObject = dict[str, Any]


def render(binaries: Binaries, folder: Path) -> list[KubernetesObject]:
    """What `kubectl apply -k FOLDER` would send."""
    done = subprocess.run([binaries.kubectl, "kustomize", str(folder)], capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


def is_foreign(found: KubernetesObject) -> bool:
    """Of a kind that the API server knows only when somebody installed it."""
    group = str(found["apiVersion"]).rpartition("/")[0]
    return "." in group and not group.endswith(".k8s.io")


def pod_templates(objects: list[KubernetesObject]) -> Iterator[tuple[str, KubernetesObject]]:
    for each in objects:
        if each["kind"] in WORKLOADS:
            yield each["metadata"]["name"], each["spec"]["template"]


def containers(objects: list[KubernetesObject]) -> Iterator[tuple[str, KubernetesObject, KubernetesObject]]:
    """Workload, pod spec, container."""
    for name, template in pod_templates(objects):
        spec = template["spec"]
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            yield name, spec, container


def config_map(objects: list[KubernetesObject], name: str) -> dict[str, str]:
    found = [each for each in objects if each["kind"] == "ConfigMap" and each["metadata"]["name"] == name]
    assert len(found) == 1
    data: dict[str, str] = found[0]["data"]
    return data
