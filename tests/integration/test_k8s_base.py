"""k8s/base against the real API server: objects are accepted, roles suffice and are the least, no power is spare."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hami_chassis.settings import load_settings
from hami_model import device_config
from hami_monitor.config import MonitorSettings
from hami_node_agent.config import NodeAgentSettings
from hami_scheduler.config import SchedulerSettings
from hami_sim.binaries import Binaries
from hami_sim.cluster.objects import apply_objects, identities
from hami_sim.controlplane import ControlPlane, RestClient
from hami_sim.controlplane.scheduler_config import scheduler_configuration
from hami_sim.nats_server import find_nats_server
from hami_webhook.config import WebhookSettings
from hami_webhook.registration import Registration, ServiceReference, registration_objects

sys.path.insert(0, str(Path(__file__).parent))

from k8s_manifests import (
    BASE,
    K8S,
    NAMESPACE,
    KubernetesObject,
    config_map,
    containers,
    is_foreign,
    pod_templates,
    render,
)

SERVICES = ("hami-scheduler", "hami-webhook", "hami-node-agent", "hami-monitor")
AS_ROOT = {
    "hami-node-agent": "sockets and folders of kubelet and of the runtime are root's",
    "hami-monitor": "region files belong to whoever runs in the containers",
}
SEES_PROCESSES = {"hami-monitor": "the driver tells processes by the host's pids"}
CAPABILITIES = {
    # Folders of containers that are gone hold files of any user.
    "hami-node-agent": {"DAC_OVERRIDE"},
    # Region files are of any user and mode; what other users' processes map is told to few.
    "hami-monitor": {"DAC_OVERRIDE", "SYS_PTRACE"},
}
OVERLAYS = sorted(folder for folder in (K8S / "overlays").iterdir() if folder.is_dir())


@pytest.fixture(scope="module")
def rendered(kubernetes_binaries: Binaries) -> list[KubernetesObject]:
    return render(kubernetes_binaries, BASE)


@pytest.fixture
async def applied(control_plane: ControlPlane, kube: RestClient) -> RestClient:
    """The namespace, accounts and roles are there; they stay, since other tests use the same ones."""
    await control_plane.create_namespace(NAMESPACE)
    await apply_objects(kube, identities(BASE))
    return kube


async def run(argv: list[str | Path], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(subprocess.run, argv, cwd=cwd, capture_output=True, text=True, check=False)


def test_the_kustomization_names_every_file() -> None:
    listed = set(yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"])
    assert listed == {str(file.relative_to(BASE)) for file in BASE.rglob("*.yaml")} - {"kustomization.yaml"}


@pytest.mark.usefixtures("applied")
@pytest.mark.parametrize("folder", [BASE, *OVERLAYS], ids=lambda folder: folder.name)
async def test_the_api_server_accepts_every_object(
    folder: Path, kubernetes_binaries: Binaries, control_plane: ControlPlane, tmp_path: Path
) -> None:
    # Prometheus Operator's kinds are not Kubernetes' own: test_k8s_node_side.py looks at them.
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(each for each in render(kubernetes_binaries, folder) if not is_foreign(each)))
    kubectl = [kubernetes_binaries.kubectl, f"--kubeconfig={control_plane.kubeconfig}"]
    dry_run = ["apply", "--server-side", "--dry-run=server", "--validate=strict", "--force-conflicts", "--output=name"]
    done = await run([*kubectl, *dry_run, "-f", file])
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    names = done.stdout.split()
    for expected in (
        "deployment.apps/hami-scheduler", "deployment.apps/hami-kube-scheduler", "deployment.apps/hami-webhook",
        "daemonset.apps/hami-node-agent", "daemonset.apps/hami-monitor", "statefulset.apps/nats",
        "mutatingwebhookconfiguration.admissionregistration.k8s.io/hami-webhook",
        "validatingadmissionpolicy.admissionregistration.k8s.io/hami-webhook-allocations",
    ):  # fmt: skip
        assert expected in names


async def test_pods_of_the_workloads_would_be_admitted(applied: RestClient, rendered: list[KubernetesObject]) -> None:
    """A workload is accepted with a pod template that no pod could be made of: so make the pods."""
    for name, template in pod_templates(rendered):
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{name}-x", "labels": template["metadata"]["labels"]},
            "spec": template["spec"],
        }
        claims = {mount["name"] for each in template["spec"]["containers"] for mount in each["volumeMounts"]} - {
            volume["name"] for volume in template["spec"]["volumes"]
        }
        pod["spec"]["volumes"] += [{"name": claim, "emptyDir": {}} for claim in claims]
        await applied.post(f"/api/v1/namespaces/{NAMESPACE}/pods", pod, dryRun="All", fieldValidation="Strict")


def test_no_container_is_privileged(rendered: list[KubernetesObject]) -> None:
    for name, pod, container in containers(rendered):
        security = container["securityContext"]
        assert not security.get("privileged", False), name
        assert security["allowPrivilegeEscalation"] is False, name
        assert security["readOnlyRootFilesystem"] is True, name
        assert security["capabilities"]["drop"] == ["ALL"], name
        assert set(security["capabilities"].get("add", [])) == CAPABILITIES.get(name, set()), name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for field in ("hostNetwork", "hostIPC"):
            assert not pod.get(field, False), name
        assert pod.get("hostPID", False) == (name in SEES_PROCESSES), name
        root = security.get("runAsUser", pod["securityContext"].get("runAsUser")) == 0
        assert root == (name in AS_ROOT), name
        if not root:
            assert pod["securityContext"]["runAsNonRoot"] is True, name
            assert not any("hostPath" in volume for volume in pod["volumes"]), name


def test_every_container_has_probes_and_resources(rendered: list[KubernetesObject]) -> None:
    for name, _pod, container in containers(rendered):
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            port = container[probe]["httpGet"]["port"]
            assert port in {each["name"] for each in container["ports"]}, f"{name}: {probe}"
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys(), name
        assert "memory" in container["resources"]["limits"], name


def test_services_select_pods_that_the_workloads_make(rendered: list[KubernetesObject]) -> None:
    labels = {name: template["metadata"]["labels"] for name, template in pod_templates(rendered)}
    for service in (each for each in rendered if each["kind"] == "Service"):
        selector = dict(service["spec"]["selector"])
        if service["metadata"]["name"] == "hami-scheduler":
            assert selector.pop("hami.io/scheduler-role") == "leader"
        assert any(selector.items() <= found.items() for found in labels.values()), service["metadata"]["name"]


@pytest.mark.parametrize(
    ("name", "settings", "environment"),
    [
        ("hami-scheduler", SchedulerSettings, {"HAMI_ELECTION_POD_NAME": "a"}),
        ("hami-webhook", WebhookSettings, {}),
        ("hami-node-agent", NodeAgentSettings, {"HAMI_NODE_NAME": "a"}),
        ("hami-monitor", MonitorSettings, {"HAMI_NODE_NAME": "a"}),
    ],
)
def test_the_services_take_their_settings(
    name: str, settings: type[Any], environment: dict[str, str], rendered: list[KubernetesObject], tmp_path: Path
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(config_map(rendered, name)["settings.yaml"])
    read = load_settings(settings, file=file, environment=environment)
    assert read.observation.host == "0.0.0.0"
    assert read.bus.servers == ("nats://nats.hami-system.svc:4222",)
    (container,) = [each for owner, _, each in containers(rendered) if owner == name]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert read.observation.port in ports.values()
    assert {each["name"] for each in container.get("env", [])} >= environment.keys()
    if name == "hami-scheduler":
        assert read.extender.tls.client_ca_file
        assert ports["extender"] == read.extender.http.port


def test_kube_scheduler_asks_the_extender_as_in_the_local_cluster(rendered: list[KubernetesObject]) -> None:
    document = yaml.safe_load(config_map(rendered, "hami-kube-scheduler")["configuration.yaml"])
    local = yaml.safe_load(scheduler_configuration(Path("/kubeconfig"), document["extenders"][0]["urlPrefix"]))
    extender = dict(document["extenders"][0])
    assert extender.pop("tlsConfig")["certFile"].startswith("/etc/hami/extender/")
    assert extender == local["extenders"][0]
    assert document["percentageOfNodesToScore"] == local["percentageOfNodesToScore"]
    assert document["profiles"] == [{"schedulerName": "hami-scheduler"}]
    names = {each["name"] for each in extender["managedResources"]}
    assert names == device_config.default_config().managed_resources


@pytest.mark.parametrize("folder", [BASE, K8S / "overlays/ha"], ids=lambda folder: folder.name)
def test_nats_takes_its_configuration(folder: Path, kubernetes_binaries: Binaries, tmp_path: Path) -> None:
    rendered = render(kubernetes_binaries, folder)
    file = tmp_path / "nats.conf"
    file.write_text(config_map(rendered, "nats")["nats.conf"])
    (tmp_path / "authorization.conf").write_text(config_map(rendered, "nats")["authorization.conf"])
    (nats,) = (container for name, _, container in containers(rendered) if name == "nats")
    environment = {variable["name"]: "given" for variable in nats["env"]}
    check = [find_nats_server(), "-t", "--config", file]
    checked = subprocess.run(check, env=environment, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    replicas = {name: settings_of_streams(container) for name, _, container in containers(rendered) if name in SERVICES}
    members = next(each["spec"]["replicas"] for each in rendered if each["kind"] == "StatefulSet")
    assert set(replicas.values()) == {members}


def settings_of_streams(container: KubernetesObject) -> int:
    environment = {each["name"]: each["value"] for each in container.get("env", []) if "value" in each}
    return load_settings(WebhookSettings, environment=environment).events.streams.replicas


def test_the_registration_is_what_the_webhook_prints(rendered: list[KubernetesObject]) -> None:
    registration = Registration(target=ServiceReference(namespace=NAMESPACE, name="hami-webhook"), ca_pem=b"")
    expected = registration_objects(registration, device_config.default_config())
    committed = list(yaml.safe_load_all((BASE / "webhook/registration.yaml").read_text()))
    assert committed == list(expected)
    assert all(each in rendered for each in committed)


# Verb, resource, namespace, name: what the code of each service asks of the API server.
ANY = "default"
NEEDED = {
    "hami-scheduler": [
        *((verb, resource, "", "") for verb in ("list", "watch") for resource in ("pods", "nodes", "resourcequotas")),
        ("get", "pods", ANY, "a"),
        ("patch", "pods", ANY, "a"),
        ("create", "pods/binding", ANY, "a"),
        ("get", "nodes", "", "a"),
        ("patch", "nodes", "", "a"),
        ("create", "events", ANY, ""),
        ("patch", "events", ANY, "a"),
        ("create", "leases.coordination.k8s.io", NAMESPACE, ""),
        ("get", "leases.coordination.k8s.io", NAMESPACE, "hami-scheduler"),
        ("update", "leases.coordination.k8s.io", NAMESPACE, "hami-scheduler"),
    ],
    "hami-webhook": [(verb, resource, "", "") for verb in ("list", "watch") for resource in ("pods", "resourcequotas")],
    "hami-node-agent": [
        ("list", "pods", "", ""),
        ("watch", "pods", "", ""),
        ("get", "pods", ANY, "a"),
        ("patch", "pods", ANY, "a"),
        *((verb, "nodes", "", "") for verb in ("list", "watch")),
        ("get", "nodes", "", "a"),
        ("patch", "nodes", "", "a"),
        ("create", "events", ANY, ""),
        ("patch", "events", ANY, "a"),
    ],
    "hami-monitor": [("list", "pods", "", ""), ("watch", "pods", "", "")],
    "hami-kube-scheduler": [
        ("list", "pods", "", ""),
        ("create", "pods/binding", ANY, "a"),
        ("get", "leases.coordination.k8s.io", NAMESPACE, "hami-kube-scheduler"),
        ("update", "leases.coordination.k8s.io", NAMESPACE, "hami-kube-scheduler"),
        ("get", "configmaps", "kube-system", "extension-apiserver-authentication"),
    ],
}
NEVER = [
    ("get", "secrets", ANY, "a"),
    ("list", "secrets", "", ""),
    ("create", "pods", ANY, ""),
    ("delete", "pods", ANY, "a"),
    ("create", "pods/exec", ANY, "a"),
    ("delete", "nodes", "", "a"),
    ("update", "leases.coordination.k8s.io", "kube-system", "kube-scheduler"),
    ("create", "clusterrolebindings.rbac.authorization.k8s.io", "", ""),
    ("impersonate", "users", "", "a"),
]


SEEN_SECONDS = 120
"""Roles count when the API server's own watch has seen them, soon after they were written."""


async def may(kube: RestClient, account: str, call: tuple[str, str, str, str]) -> bool:
    verb, resource, namespace, name = call
    resource, _, group = resource.partition(".")
    resource, _, subresource = resource.partition("/")
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{NAMESPACE}:{account}",
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated"],
            "resourceAttributes": {
                "verb": verb,
                "group": group,
                "resource": resource,
                "subresource": subresource,
                "namespace": namespace,
                "name": name,
            },
        },
    }
    answer = await kube.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    allowed: bool = answer["status"]["allowed"]
    return allowed


@pytest.mark.parametrize("account", NEEDED)
async def test_the_roles_suffice(account: str, applied: RestClient) -> None:
    deadline = time.monotonic() + SEEN_SECONDS
    while refused := [call for call in NEEDED[account] if not await may(applied, account, call)]:
        assert time.monotonic() < deadline, refused
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("account", SERVICES)
async def test_the_roles_are_the_least(account: str, applied: RestClient) -> None:
    allowed = [call for call in NEVER if await may(applied, account, call)]
    assert allowed == []
    # Nobody has what only another service needs.
    calls = {call for needed in (NEEDED[each] for each in SERVICES) for call in needed}
    surplus = [call for call in calls - set(NEEDED[account]) if await may(applied, account, call)]
    assert surplus == []


async def test_the_secrets_fit_what_the_workloads_name(
    applied: RestClient, rendered: list[KubernetesObject], tmp_path: Path
) -> None:
    made = await run([K8S / "make-secrets", tmp_path])
    assert made.returncode == 0, made.stderr
    secrets = list(yaml.safe_load_all((tmp_path / "secrets.yaml").read_text()))
    for secret in secrets:
        path = f"/api/v1/namespaces/{NAMESPACE}/secrets"
        await applied.post(path, secret, dryRun="All", fieldValidation="Strict")
    mounted = {
        volume["secret"]["secretName"]
        for _, template in pod_templates(rendered)
        for volume in template["spec"]["volumes"]
        if "secret" in volume
    }
    references = [
        variable["valueFrom"]["secretKeyRef"]
        for _, _, container in containers(rendered)
        for variable in container.get("env", [])
        if "secretKeyRef" in variable.get("valueFrom", {})
    ]
    keys = {secret["metadata"]["name"]: set(secret.get("stringData", {})) for secret in secrets}
    assert keys.keys() == mounted | {reference["name"] for reference in references}
    assert all(reference["key"] in keys[reference["name"]] for reference in references)
    for authority, certificate, purpose, host in (
        ("extender-authority", "extender", "sslserver", "hami-scheduler.hami-system.svc"),
        ("extender-authority", "kube-scheduler", "sslclient", ""),
        ("webhook-authority", "webhook", "sslserver", "hami-webhook.hami-system.svc"),
    ):
        check = ["openssl", "verify", "-CAfile", f"{authority}.crt", "-purpose", purpose]
        hostname = ["-verify_hostname", host] if host else []
        checked = await run([*check, *hostname, f"{certificate}.crt"], cwd=tmp_path)
        assert checked.returncode == 0, checked.stderr
    patch = yaml.safe_load((tmp_path / "registration-patch.json").read_text())
    authority_pem = (tmp_path / "webhook-authority.crt").read_bytes()
    assert [base64.b64decode(each["value"]) for each in patch] == [authority_pem]
