"""The real control plane: starts, schedules through an extender, binds with annotations, ends without a trace."""

from __future__ import annotations

import asyncio
import base64
import ssl
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from aiohttp import web
from hami_sim.binaries import Binaries
from hami_sim.controlplane import ApiError, ControlPlane, ControlPlaneError, ControlPlaneSettings, RestClient
from hami_sim.loopback_ports import are_free
from hami_sim.processes import ProgramEndedError

NODE = "node-a"
# As kube-apiserver gives quantities back: 3000 has become 3k.
GPU_LIMITS_CANONICAL = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k", "nvidia.com/gpucores": "30"}
GPU_LIMITS = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}


class FilterBody(msgspec.Struct, forbid_unknown_fields=True):
    """What kube-scheduler posts to `/filter`, key for key."""

    Pod: dict[str, Any]
    Nodes: None
    NodeNames: list[str]


class BindBody(msgspec.Struct, forbid_unknown_fields=True):
    """What kube-scheduler posts to `/bind`, key for key."""

    PodName: str
    PodNamespace: str
    PodUID: str
    Node: str


class Extender(NamedTuple):
    url: str
    filters: list[bytes]
    binds: list[bytes]

    def filters_of(self, namespace: str) -> list[FilterBody]:
        """kube-scheduler may still ask about pods that another test left."""
        asked = [msgspec.json.decode(body, type=FilterBody) for body in self.filters]
        return [body for body in asked if body.Pod["metadata"]["namespace"] == namespace]

    def binds_of(self, namespace: str) -> list[BindBody]:
        asked = [msgspec.json.decode(body, type=BindBody) for body in self.binds]
        return [body for body in asked if body.PodNamespace == namespace]


def node(name: str) -> dict[str, Any]:
    resources = {"cpu": "4", "memory": "8Gi", "pods": "110", "nvidia.com/gpu": "10"}
    return {
        "metadata": {"name": name},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": "by hand"}],
        },
    }


def pod(name: str, *, limits: dict[str, str] | None = None, scheduler: str = "hami-scheduler") -> dict[str, Any]:
    container = {"name": "main", "image": "example/none:1", "resources": {"limits": limits or {}}}
    return {"metadata": {"name": name}, "spec": {"schedulerName": scheduler, "containers": [container]}}


def application_of(*routes: web.RouteDef) -> web.Application:
    application = web.Application()
    application.add_routes(routes)
    return application


@pytest.fixture
async def a_node(kube: RestClient) -> AsyncIterator[str]:
    """Its name is new: the controllers remember by name when they last saw a node alive."""
    name = f"node-{uuid.uuid4().hex[:8]}"
    await kube.post("/api/v1/nodes", node(name))
    await kube.wait_until(f"/api/v1/nodes/{name}", lambda found: not (found or {})["spec"].get("taints"))
    yield name
    await kube.delete(f"/api/v1/nodes/{name}")


@pytest.fixture
async def extender(control_plane: ControlPlane, kube: RestClient) -> AsyncIterator[Extender]:
    """Takes every node and binds where it is told, and keeps what was posted."""
    seen = Extender("", [], [])

    async def filter_nodes(request: web.Request) -> web.Response:
        seen.filters.append(await request.read())
        names = msgspec.json.decode(seen.filters[-1], type=FilterBody).NodeNames
        return web.json_response({"NodeNames": names, "FailedNodes": {}, "Error": ""})

    async def bind(request: web.Request) -> web.Response:
        seen.binds.append(await request.read())
        asked = msgspec.json.decode(seen.binds[-1], type=BindBody)
        body = {"metadata": {"name": asked.PodName, "uid": asked.PodUID}, "target": {"name": asked.Node}}
        await kube.post(f"/api/v1/namespaces/{asked.PodNamespace}/pods/{asked.PodName}/binding", body)
        return web.json_response({"Error": ""})

    runner = web.AppRunner(application_of(web.post("/filter", filter_nodes), web.post("/bind", bind)))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    seen = seen._replace(url=f"http://{host}:{port}")
    await control_plane.use_extender(seen.url)
    yield seen
    await control_plane.use_extender(None)
    await runner.cleanup()


async def wait_until_bound(kube: RestClient, namespace: str, name: str) -> dict[str, Any]:
    found = await kube.wait_until(
        f"/api/v1/namespaces/{namespace}/pods/{name}", lambda found: bool((found or {})["spec"].get("nodeName"))
    )
    assert found is not None
    return found


async def test_plain_kubectl_works_with_the_kubeconfig(control_plane: ControlPlane) -> None:
    process = await asyncio.create_subprocess_exec(
        control_plane.binaries.kubectl,
        f"--kubeconfig={control_plane.kubeconfig}",
        "get",
        "serviceaccount",
        "default",
        "--output=name",
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate()
    assert printed == b"serviceaccount/default\n"


async def test_a_pod_that_asks_for_a_slice_goes_through_the_extender(
    kube: RestClient, namespace: str, a_node: str, extender: Extender
) -> None:
    created = await kube.post(f"/api/v1/namespaces/{namespace}/pods", pod("slice", limits=GPU_LIMITS))

    bound = await wait_until_bound(kube, namespace, "slice")

    uid = created["metadata"]["uid"]
    asked = extender.filters_of(namespace)[0]
    assert asked.NodeNames == [a_node]
    assert asked.Pod["metadata"]["uid"] == uid
    assert asked.Pod["spec"]["containers"][0]["resources"] == {
        "limits": GPU_LIMITS_CANONICAL,
        "requests": GPU_LIMITS_CANONICAL,
    }
    assert asked.Pod["spec"]["serviceAccountName"] == "default"
    assert extender.binds_of(namespace) == [BindBody("slice", namespace, uid, a_node)]
    assert bound["spec"]["nodeName"] == a_node


async def test_a_pod_without_managed_resources_never_reaches_the_extender(
    kube: RestClient, namespace: str, a_node: str, extender: Extender
) -> None:
    await kube.post(f"/api/v1/namespaces/{namespace}/pods", pod("plain", limits={"cpu": "100m"}))
    bound = await wait_until_bound(kube, namespace, "plain")
    asked = extender.filters_of(namespace), extender.binds_of(namespace)
    assert (bound["spec"]["nodeName"], *asked) == (a_node, [], [])


async def test_both_scheduler_names_schedule(kube: RestClient, namespace: str, a_node: str) -> None:
    for name in ("default-scheduler", "hami-scheduler"):
        await kube.post(f"/api/v1/namespaces/{namespace}/pods", pod(name, scheduler=name))
        assert (await wait_until_bound(kube, namespace, name))["spec"]["nodeName"] == a_node


async def test_a_binding_carries_annotations_and_labels_into_the_pod_in_one_step(
    kube: RestClient, namespace: str, a_node: str
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    created = await kube.post(pods, pod("bound", scheduler="nobody"))
    binding = {
        "metadata": {
            "name": "bound",
            "uid": created["metadata"]["uid"],
            "annotations": {"hami.io/allocation-id": "0199"},
            "labels": {"hami.io/placed": "yes"},
        },
        "target": {"name": a_node},
    }
    version = created["metadata"]["resourceVersion"]
    async with kube.watch(pods, resourceVersion=version) as events:
        await kube.post(f"{pods}/bound/binding", binding)
        first_change = await anext(events)

    changed = first_change["object"]
    assert changed["spec"]["nodeName"] == a_node
    assert changed["metadata"]["annotations"] == {"hami.io/allocation-id": "0199"}
    assert changed["metadata"]["labels"] == {"hami.io/placed": "yes"}


async def test_a_binding_for_another_uid_is_refused_and_changes_nothing(
    kube: RestClient, namespace: str, a_node: str
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    created = await kube.post(pods, pod("kept", scheduler="nobody"))
    other_uid = "00000000-0000-4000-8000-000000000000"
    binding = {
        "metadata": {"name": "kept", "uid": other_uid, "annotations": {"hami.io/allocation-id": "0199"}},
        "target": {"name": a_node},
    }

    with pytest.raises(ApiError) as refused:
        await kube.post(f"{pods}/kept/binding", binding)

    assert refused.value.status == 409
    kept = await kube.get(f"{pods}/kept")
    assert kept["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]


async def test_kubectl_logs_reaches_a_kubelet_with_a_certificate_it_can_check(
    control_plane: ControlPlane, kube: RestClient, namespace: str, a_node: str
) -> None:
    files = control_plane.issue_serving_certificate("test-kubelet", ("127.0.0.1",))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(control_plane.ca_certificate))
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_cert_chain(files.certificate, files.key)
    asked: list[str] = []

    async def logs(request: web.Request) -> web.Response:
        subject = dict(entry[0] for entry in request.get_extra_info("peercert")["subject"])
        asked.append(f"{subject['commonName']} {request.path}")
        return web.Response(text="hello from the container\n")

    route = web.get("/containerLogs/{namespace}/{pod}/{container}", logs)
    runner = web.AppRunner(application_of(route))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": runner.addresses[0][1]}},
    }
    await kube.patch(f"/api/v1/nodes/{a_node}/status", {"status": status})
    await kube.post(f"/api/v1/namespaces/{namespace}/pods", pod("talker"))
    await wait_until_bound(kube, namespace, "talker")

    text = await kube.get_text(f"/api/v1/namespaces/{namespace}/pods/talker/log")
    await runner.cleanup()

    assert text == "hello from the container\n"
    assert asked == [f"kube-apiserver-kubelet-client /containerLogs/{namespace}/talker/main"]


async def test_a_webhook_on_loopback_is_called_and_its_patch_applied(
    control_plane: ControlPlane, kube: RestClient, namespace: str
) -> None:
    files = control_plane.issue_serving_certificate("test-webhook", ("127.0.0.1",))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(files.certificate, files.key)
    patch = base64.b64encode(b'[{"op":"add","path":"/metadata/labels","value":{"seen":"yes"}}]').decode()

    async def admit(request: web.Request) -> web.Response:
        review = await request.json()
        response = {"uid": review["request"]["uid"], "allowed": True, "patchType": "JSONPatch", "patch": patch}
        return web.json_response({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response})

    runner = web.AppRunner(application_of(web.post("/webhook", admit)))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    configurations = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    webhook = {
        "name": "test.hami.io",
        "clientConfig": {
            "url": f"https://127.0.0.1:{runner.addresses[0][1]}/webhook",
            "caBundle": base64.b64encode(control_plane.ca_certificate.read_bytes()).decode(),
        },
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
    }
    await kube.post(configurations, {"metadata": {"name": namespace}, "webhooks": [webhook]})

    async def created_labels(attempt: int) -> dict[str, str]:
        created = await kube.post(f"/api/v1/namespaces/{namespace}/pods", pod(f"p{attempt}", scheduler="nobody"))
        labels: dict[str, str] = created["metadata"].get("labels", {})
        return labels

    # A new registration takes effect when the API server's own watch has seen it.
    attempt = 0
    while (labels := await created_labels(attempt)) == {}:
        attempt += 1
        await asyncio.sleep(0.1)
    await kube.delete(f"{configurations}/{namespace}")
    await runner.cleanup()
    assert labels == {"seen": "yes"}


async def until_allowed(client: RestClient, path: str) -> dict[str, Any]:
    """What is there. A new role counts when the API server's own watch has seen it."""
    while True:
        try:
            return await client.get(path)
        except ApiError as error:
            if error.status != 403:
                raise
        await asyncio.sleep(0.1)


async def test_a_service_account_has_exactly_its_own_roles(
    control_plane: ControlPlane, kube: RestClient, namespace: str, tmp_path: Path
) -> None:
    await kube.post(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "reader"}})
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    role = {"metadata": {"name": "reader"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]}
    await kube.post(f"{rbac}/roles", role)
    binding = {
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": namespace}],
    }
    await kube.post(f"{rbac}/rolebindings", binding)
    token = await control_plane.service_account_token(namespace, "reader")

    async with control_plane.token_client(token) as reader:
        assert (await until_allowed(reader, f"/api/v1/namespaces/{namespace}/pods"))["items"] == []
        with pytest.raises(ApiError, match="403 Forbidden"):
            await reader.get(f"/api/v1/namespaces/{namespace}/secrets")

    path = await control_plane.write_service_account_kubeconfig(tmp_path / "reader.kubeconfig", namespace, "reader")
    assert token != msgspec.json.decode(path.read_bytes())["users"][0]["user"]["token"]


async def test_a_minted_node_identity_may_write_its_own_node_only(control_plane: ControlPlane) -> None:
    async with control_plane.user_client("system:node:own", ("system:nodes",)) as kubelet:
        await kubelet.post("/api/v1/nodes", node("own"))
        with pytest.raises(ApiError, match="403 Forbidden"):
            await kubelet.post("/api/v1/nodes", node("other"))
    async with control_plane.client() as admin:
        await admin.delete("/api/v1/nodes/own")


async def test_two_clusters_run_side_by_side_and_a_stop_leaves_nothing(
    control_plane: ControlPlane, kube: RestClient, kubernetes_binaries: Binaries, tmp_path: Path
) -> None:
    settings = ControlPlaneSettings(controllers=False)
    second = await ControlPlane.start(tmp_path / "second", kubernetes_binaries, settings)
    programs = list(second.programs().values())
    try:
        await second.create_namespace("only-here")
        async with second.client() as client:
            await client.post("/api/v1/nodes", node(NODE))
            await client.post("/api/v1/namespaces/only-here/pods", pod("one"))
            await wait_until_bound(client, "only-here", "one")
        assert await kube.wait_until("/api/v1/namespaces/only-here", lambda _found: True) is None
    finally:
        await second.stop()

    assert [program.name for program in programs] == ["etcd", "kube-apiserver", "kube-scheduler"]
    assert [program.name for program in programs if program.is_alive()] == []
    assert are_free(list(msgspec.structs.astuple(second.ports)))
    assert list(second.layout.run.iterdir()) == []
    assert set(control_plane.programs()) == {
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
    }


START_AND_LEAVE = """
import asyncio, sys
from pathlib import Path
from hami_sim.binaries import find_binaries
from hami_sim.controlplane import ControlPlane, ControlPlaneSettings
settings = ControlPlaneSettings(controllers=False)
asyncio.run(ControlPlane.start(Path(sys.argv[1]), find_binaries(), settings))
"""


async def test_a_cluster_outlives_its_starter_and_keeps_its_data_over_a_stop(
    kubernetes_binaries: Binaries, tmp_path: Path
) -> None:
    starter = await asyncio.create_subprocess_exec(sys.executable, "-c", START_AND_LEAVE, str(tmp_path / "state"))
    assert await starter.wait() == 0

    cluster = ControlPlane.attach(tmp_path / "state")
    try:
        assert set(cluster.programs()) == {"etcd", "kube-apiserver", "kube-scheduler"}
        await cluster.create_namespace("kept")
        await cluster.stop()
        assert cluster.programs() == {}

        cluster = await ControlPlane.start(tmp_path / "state", kubernetes_binaries, cluster.settings)
        async with cluster.client() as client:
            assert (await client.get("/api/v1/namespaces/kept"))["status"]["phase"] == "Active"

        await cluster.kill("kube-apiserver")
        assert set(cluster.programs()) == {"etcd", "kube-scheduler"}
        await cluster.restart("kube-apiserver")
        async with cluster.client() as client:
            await client.post("/api/v1/nodes", node(NODE))
            await client.post("/api/v1/namespaces/kept/pods", pod("after-the-crash"))
            await wait_until_bound(client, "kept", "after-the-crash")
        with pytest.raises(ControlPlaneError, match="etcd, kube-apiserver, kube-scheduler still run"):
            await ControlPlane.start(tmp_path / "state", kubernetes_binaries)
    finally:
        await cluster.stop()


async def test_a_program_that_fails_is_named_with_its_last_words_and_the_others_are_ended(
    kubernetes_binaries: Binaries, tmp_path: Path
) -> None:
    settings = ControlPlaneSettings(extra_apiserver_arguments=("--no-such-flag",))

    with pytest.raises(ProgramEndedError, match=r"(?s)kube-apiserver ended.*unknown flag: --no-such-flag"):
        await ControlPlane.start(tmp_path / "failing", kubernetes_binaries, settings)

    assert ControlPlane.attach(tmp_path / "failing").programs() == {}
