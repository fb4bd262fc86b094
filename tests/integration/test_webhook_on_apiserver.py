"""The webhook, as its own process with the least rights, under a real kube-apiserver and nats-server.

The device configuration sets a core policy, so that both entries of the registration are in force.
"""

from __future__ import annotations

import asyncio
import copy
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import nats
import pytest
import yaml
from hami_model import events
from hami_sim.controlplane import ApiError, ControlPlane, RestClient
from hami_sim.loopback_ports import choose_free_ports
from hami_sim.processes import start_program, stop_program, wait_until_ready
from hami_sim.testing import run_outside_loop

Json = dict[str, Any]

COMMAND = Path(sys.executable).with_name("hami-webhook")
OWN_NAMESPACE = "hami-system"
WEBHOOK_USER = "system:serviceaccount:hami-system:hami-webhook"
SCHEDULER_USER = "system:serviceaccount:hami-system:hami-scheduler"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
COLLECTIONS = {
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
DEVICE_CONFIG = {
    "nvidia": {
        "resourceCountName": "nvidia.com/gpu",
        "resourceMemoryName": "nvidia.com/gpumem",
        "resourceMemoryPercentageName": "nvidia.com/gpumem-percentage",
        "resourceCoreName": "nvidia.com/gpucores",
        "resourcePriorityName": "nvidia.com/priority",
        "defaultGPUNum": 1,
        "gpuCorePolicy": "force",
    }
}
HELD = {
    "hami.io/vgpu-node": "n1",
    "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,4000,30:;",
    "hami.io/vgpu-devices-to-allocate": "GPU-1,NVIDIA,4000,30:;",
}


class RunningWebhook(NamedTuple):
    settings: tuple[str, ...]
    """What the registration depends on, as arguments."""
    ca: Path


def pod(name: str = "", *, limits: Json | None = None, **spec: Any) -> Json:
    container = {"name": "main", "image": "example/none:1", "resources": {"limits": limits or {}}}
    metadata = {"name": name} if name else {"generateName": "many-"}
    return {"metadata": metadata, "spec": {"containers": [container], **spec}}


def pods_in(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    """Returns when it holds; the test's own time limit bounds it."""
    while True:
        if await holds():
            return
        await asyncio.sleep(0.1)


async def refusal(work: Awaitable[Any]) -> ApiError:
    """The error of a request that must be refused."""
    try:
        done = await work
    except ApiError as error:
        return error
    raise AssertionError(f"not refused: {done}")


async def is_refused(work: Awaitable[Any], said: str) -> bool:
    """Whether a request is refused; where it is, for this reason."""
    try:
        await work
    except ApiError as error:
        if said in error.message:
            return True
        raise
    return False


def registration_objects(*arguments: str) -> list[Json]:
    printed = subprocess.run([COMMAND, "registration", "--output", "json", *arguments], check=True, capture_output=True)
    items: list[Json] = json.loads(printed.stdout)["items"]
    return items


async def apply(kube: RestClient, objects: list[Json]) -> None:
    for found in objects:
        path = f"{ADMISSION}/{COLLECTIONS[found['kind']]}/{found['metadata']['name']}"
        await kube.apply(path, found, field_manager="test")


async def delete(kube: RestClient, objects: list[Json]) -> None:
    for found in reversed(objects):
        try:
            await kube.delete(f"{ADMISSION}/{COLLECTIONS[found['kind']]}/{found['metadata']['name']}")
        except ApiError as error:
            if error.status != 404:  # one that stays would refuse pods of the tests that come after
                raise


async def prepare(control_plane: ControlPlane) -> None:
    """Our namespace, and for the webhook the right to watch pods and quotas, nothing else."""
    async with control_plane.client() as kube:
        namespaces = {found["metadata"]["name"] for found in (await kube.get("/api/v1/namespaces"))["items"]}
        if OWN_NAMESPACE not in namespaces:
            await control_plane.create_namespace(OWN_NAMESPACE)
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        rule = {"apiGroups": [""], "resources": ["pods", "resourcequotas"], "verbs": ["list", "watch"]}
        await kube.apply(
            f"{rbac}/clusterroles/hami-webhook",
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRole",
                "metadata": {"name": "hami-webhook"},
                "rules": [rule],
            },
            field_manager="test",
        )
        await kube.apply(
            f"{rbac}/clusterrolebindings/hami-webhook",
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": "hami-webhook"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "hami-webhook"},
                "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": WEBHOOK_USER}],
            },
            field_manager="test",
        )


async def wait_in_force(control_plane: ControlPlane) -> None:
    """The API server takes up registrations a moment after they are written."""
    async with control_plane.client() as kube:

        async def entries_are() -> bool:
            try:
                asking = await kube.post(pods_in("default"), pod("probe", limits={"nvidia.com/gpu": "1"}), dryRun="All")
                other = await kube.post(pods_in("default"), pod("probe"), dryRun="All")
            except ApiError:  # the webhook answered too late
                return False
            return asking["spec"]["schedulerName"] == "hami-scheduler" and "env" in other["spec"]["containers"][0]

        async def policy_is() -> bool:
            probe = pod("probe")
            probe["metadata"] |= {"annotations": dict(HELD), "labels": {"hami.io/webhook": "ignore"}}
            try:
                await kube.post(pods_in("default"), probe, dryRun="All")
            except ApiError as error:
                return error.status == 403
            return False

        await eventually(entries_are)
        await eventually(policy_is)


@pytest.fixture(scope="module")
def webhook(
    control_plane: ControlPlane, nats_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningWebhook]:
    folder = tmp_path_factory.mktemp("webhook")
    run_outside_loop(prepare(control_plane))
    certificate, key = control_plane.issue_serving_certificate("webhook", ("127.0.0.1",))
    (folder / "devices.yaml").write_text(yaml.safe_dump(DEVICE_CONFIG))
    kubeconfig = folder / "kubeconfig"
    control_plane.write_user_kubeconfig(kubeconfig, WEBHOOK_USER, ())
    https_port, observation_port = choose_free_ports(2)
    settings = (
        "--set",
        f"admission.device_config_file={folder / 'devices.yaml'}",
    )
    program = start_program(
        "hami-webhook",
        [
            COMMAND, "serve", *settings,
            *("--set", f"https.port={https_port}"),
            *("--set", f"observation.port={observation_port}"),
            *("--set", f"tls.cert_file={certificate}"),
            *("--set", f"tls.key_file={key}"),
            *("--set", f"kube.kubeconfig={kubeconfig}"),
            *("--set", f"bus.servers={nats_url}"),
            *("--set", "events.prefix=webhook-test"),
            *("--set", "events.instance=w-0"),
        ],
        log_path=folder / "log",
        process_file=folder / "process.json",
    )  # fmt: skip
    observed = f"http://127.0.0.1:{observation_port}"

    async def probe() -> str | None:
        async with aiohttp.ClientSession() as client:
            try:
                async with client.get(f"{observed}/metrics") as metrics, client.get(f"{observed}/readyz") as ready:
                    known = "hami_webhook_quota_known 1.0" in await metrics.text()
                    return None if ready.status == 200 and known else await ready.text() or "quotas are not known"
            except aiohttp.ClientConnectionError as error:
                return str(error)

    objects = registration_objects(
        *("--url", f"https://127.0.0.1:{https_port}/webhook", "--ca", str(control_plane.ca_certificate)), *settings
    )

    async def register() -> None:
        async with control_plane.client() as kube:
            await apply(kube, objects)
        await wait_in_force(control_plane)

    async def unregister() -> None:
        async with control_plane.client() as kube:
            await delete(kube, objects)

    try:
        run_outside_loop(wait_until_ready(program, probe, timeout_seconds=300))
        run_outside_loop(register())
        yield RunningWebhook(settings, control_plane.ca_certificate)
    finally:
        try:
            run_outside_loop(unregister())
        finally:
            run_outside_loop(stop_program(program))


pytestmark = pytest.mark.usefixtures("webhook")


# ---- what becomes of pods --------------------------------------------------------------------------------------


async def test_pod_with_cards_is_completed_and_routed(kube: RestClient, namespace: str) -> None:
    created = await kube.post(pods_in(namespace), pod("a", limits={"nvidia.com/gpu": "1"}))
    (container,) = created["spec"]["containers"]
    assert created["spec"]["schedulerName"] == "hami-scheduler"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "100"}
    assert container["env"] == [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"}]


async def test_init_containers_ask_too(kube: RestClient, namespace: str) -> None:
    document = pod("a")
    document["spec"]["initContainers"] = [
        {"name": "i", "image": "example/none:1", "resources": {"limits": {"nvidia.com/gpumem": "100"}}}
    ]
    created = await kube.post(pods_in(namespace), document)
    assert created["spec"]["schedulerName"] == "hami-scheduler"
    assert created["spec"]["initContainers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


@pytest.mark.case("REQ-01")
@pytest.mark.case("REQ-07")
@pytest.mark.case("WHK-01")
@pytest.mark.parametrize(
    ("limits", "spec", "said"),
    [
        pytest.param({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4Gi"}, {}, "counted in MiB", id="memory in bytes"),
        pytest.param({"nvidia.com/gpu": "1"}, {"nodeName": "n1"}, "nodeSelector", id="a node is set"),
    ],
)
async def test_refusals_reach_the_user(kube: RestClient, namespace: str, limits: Json, spec: Json, said: str) -> None:
    error = await refusal(kube.post(pods_in(namespace), pod("a", limits=limits, **spec)))
    assert error.status == 403
    assert said in error.message


async def test_privileged_pod_with_cards_is_refused(kube: RestClient, namespace: str) -> None:
    document = pod("a", limits={"nvidia.com/gpu": "1"})
    document["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    error = await refusal(kube.post(pods_in(namespace), document))
    assert "container main is privileged" in error.message


async def test_pod_without_cards_gets_only_what_is_for_every_pod(kube: RestClient, namespace: str) -> None:
    created = await kube.post(pods_in(namespace), pod("a", limits={"cpu": "1"}))
    assert created["spec"]["schedulerName"] == "default-scheduler"
    assert created["spec"]["containers"][0]["env"] == [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"}]


async def test_a_field_of_the_pod_that_we_do_not_know_survives(kube: RestClient, namespace: str) -> None:
    document = pod("a", limits={"nvidia.com/gpu": "1"}, schedulingGates=[{"name": "example.com/gate"}])
    created = await kube.post(pods_in(namespace), document)
    assert created["spec"]["schedulingGates"] == [{"name": "example.com/gate"}]


@pytest.mark.parametrize("excluded", ["kube-system", OWN_NAMESPACE])
async def test_excluded_namespaces_are_left_alone(kube: RestClient, excluded: str) -> None:
    created = await kube.post(pods_in(excluded), pod("a", limits={"nvidia.com/gpu": "1"}), dryRun="All")
    assert created["spec"]["schedulerName"] == "default-scheduler"


async def test_ignored_pods_and_namespaces_are_left_alone(kube: RestClient, namespace: str) -> None:
    document = pod("a", limits={"nvidia.com/gpu": "1"})
    labelled = copy.deepcopy(document)
    labelled["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    created = await kube.post(pods_in(namespace), labelled, dryRun="All")
    assert created["spec"]["schedulerName"] == "default-scheduler"
    await kube.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {"hami.io/webhook": "ignore"}}})

    async def untouched() -> bool:
        created = await kube.post(pods_in(namespace), document, dryRun="All")
        return created["spec"]["schedulerName"] == "default-scheduler"

    await eventually(untouched)


async def test_pods_of_a_controller_are_routed(kube: RestClient, namespace: str) -> None:
    template = pod("x", limits={"nvidia.com/gpu": "1"})["spec"]
    labels = {"app": "web"}
    await kube.post(
        f"/apis/apps/v1/namespaces/{namespace}/deployments",
        {
            "metadata": {"name": "web"},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": template},
            },
        },
    )
    found = await kube.wait_until(pods_in(namespace), lambda found: len((found or {}).get("items", [])) == 2)
    assert found is not None
    assert {item["spec"]["schedulerName"] for item in found["items"]} == {"hami-scheduler"}


# ---- quota -----------------------------------------------------------------------------------------------------


@pytest.mark.case("QUO-09")
async def test_quota_and_bound_pods_are_seen(kube: RestClient, control_plane: ControlPlane, namespace: str) -> None:
    asks = pod(limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1001"})

    async def refused() -> bool:
        return await is_refused(kube.post(pods_in(namespace), asks, dryRun="All"), "exceeding resource quota")

    async def allowed() -> bool:
        return not await refused()

    await kube.post(
        f"/api/v1/namespaces/{namespace}/resourcequotas",
        {"metadata": {"name": "q"}, "spec": {"hard": {"limits.nvidia.com/gpumem": "5000"}}},
    )
    assert await allowed()
    holder = await kube.post(pods_in(namespace), pod("holder", limits={"nvidia.com/gpu": "1"}))
    async with control_plane.user_client(SCHEDULER_USER, ("system:masters",)) as scheduler:
        await scheduler.post(
            f"{pods_in(namespace)}/holder/binding",
            {
                "metadata": {"name": "holder", "uid": holder["metadata"]["uid"], "annotations": HELD},
                "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
            },
        )
    await eventually(refused)
    await kube.delete(f"{pods_in(namespace)}/holder", gracePeriodSeconds="0")
    await eventually(allowed)


# ---- allocations are ours to write -----------------------------------------------------------------------------


@pytest.fixture
async def scheduler(control_plane: ControlPlane) -> AsyncIterator[RestClient]:
    """Requests as our scheduler; the group makes roles irrelevant here."""
    async with control_plane.user_client(SCHEDULER_USER, ("system:masters",)) as client:
        yield client


async def test_the_policy_has_no_type_errors(kube: RestClient) -> None:
    found = await kube.wait_until(
        f"{ADMISSION}/validatingadmissionpolicies/hami-webhook-allocations",
        lambda found: "typeChecking" in (found or {}).get("status", {}),
    )
    assert found is not None
    assert found["status"]["typeChecking"].get("expressionWarnings", []) == []


@pytest.mark.parametrize("limits", [{"nvidia.com/gpu": "1"}, {}])
async def test_allocation_on_a_created_pod_is_taken_off(kube: RestClient, namespace: str, limits: Json) -> None:
    document = pod("a", limits=limits)
    document["metadata"] |= {"annotations": {**HELD, "mine": "1"}, "labels": {"hami.io/vgpu-node": "n1", "mine": "1"}}
    created = await kube.post(pods_in(namespace), document)
    assert created["metadata"]["annotations"] == {"mine": "1"}
    assert created["metadata"]["labels"] == {"mine": "1"}


@pytest.mark.parametrize("subresource", ["", "/status"])
async def test_only_the_scheduler_changes_an_allocation(
    kube: RestClient, scheduler: RestClient, namespace: str, subresource: str
) -> None:
    await kube.post(pods_in(namespace), pod("a", limits={"nvidia.com/gpu": "1"}))
    path = f"{pods_in(namespace)}/a{subresource}"
    change = {"metadata": {"annotations": HELD, "labels": {"hami.io/vgpu-node": "n1"}}}
    error = await refusal(kube.patch(path, change))
    assert error.status == 403
    assert "only the scheduler and the node-agent" in error.message
    assert "hami.io/vgpu-devices-allocated" in error.message
    await scheduler.patch(path, change)
    for undone in ({"annotations": {"hami.io/vgpu-node": None}}, {"labels": {"hami.io/vgpu-node": None}}):
        error = await refusal(kube.patch(path, {"metadata": undone}))
        assert "hami.io/vgpu-node" in error.message
    await kube.patch(path, {"metadata": {"annotations": {"mine": "1"}, "labels": {"mine": "1"}}})


async def test_only_the_scheduler_binds_with_an_allocation(
    kube: RestClient, scheduler: RestClient, namespace: str
) -> None:
    created = await kube.post(pods_in(namespace), pod("a", limits={"nvidia.com/gpu": "1"}))
    binding = {
        "metadata": {"name": "a", "uid": created["metadata"]["uid"], "annotations": HELD},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    error = await refusal(kube.post(f"{pods_in(namespace)}/a/binding", binding))
    assert error.status == 403
    await scheduler.post(f"{pods_in(namespace)}/a/binding", binding)
    bound = await kube.get(f"{pods_in(namespace)}/a")
    assert bound["metadata"]["annotations"] == HELD


async def test_where_the_webhook_is_not_asked_an_allocation_is_refused(kube: RestClient) -> None:
    document = pod("a")
    document["metadata"]["annotations"] = dict(HELD)
    error = await refusal(kube.post(pods_in("kube-system"), document, dryRun="All"))
    assert error.status == 403


# ---- events, and life without the webhook ----------------------------------------------------------------------


async def test_what_was_done_is_announced(kube: RestClient, namespace: str, nats_url: str) -> None:
    client = await nats.connect(nats_url)
    subscription = await client.subscribe(f"webhook-test.v1.admission.{namespace}.*")
    await client.flush()
    await kube.post(pods_in(namespace), pod("never", limits={"nvidia.com/gpu": "1"}), dryRun="All")
    await kube.post(pods_in(namespace), pod(limits={"nvidia.com/gpu": "1"}))
    await refusal(kube.post(pods_in(namespace), pod("b", limits={"nvidia.com/gpumem": "4Gi"})))
    first, second = [await subscription.next_msg(timeout=120) for _ in range(2)]
    await client.close()
    admitted, rejected = events.decode(first.data), events.decode(second.data)
    assert isinstance(admitted, events.AdmissionAdmitted)
    assert (admitted.namespace, admitted.name, admitted.generate_name) == (namespace, "", "many-")
    assert "/spec/schedulerName" in [change.path for change in admitted.changes]
    assert admitted.source == "/hami/webhook/w-0"
    assert isinstance(rejected, events.AdmissionRejected)
    assert rejected.name == "b"
    assert "MiB" in rejected.reason


async def test_without_the_webhook_pods_with_cards_wait_and_others_go_on(
    kube: RestClient, namespace: str, webhook: RunningWebhook
) -> None:
    (dead_port,) = choose_free_ports(1)
    *_, entry = registration_objects(
        *("--url", f"https://127.0.0.1:{dead_port}/webhook", "--ca", str(webhook.ca), "--name", "hami-webhook-away"),
        *webhook.settings,
    )
    for found in entry["webhooks"]:
        found["name"] = f"away.{found['name']}"
    asks, other = pod("a", limits={"nvidia.com/gpu": "1"}), pod("b")

    async def refused() -> bool:
        return await is_refused(kube.post(pods_in(namespace), asks, dryRun="All"), "failed calling webhook")

    async def allowed() -> bool:
        return not await refused()

    await apply(kube, [entry])
    try:
        await eventually(refused)
        created = await kube.post(pods_in(namespace), other)
        assert created["spec"]["schedulerName"] == "default-scheduler"
    finally:
        await delete(kube, [entry])
    await eventually(allowed)
