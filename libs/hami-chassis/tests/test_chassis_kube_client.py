"""Every way a call can end is one of our errors, and says whether a write may have happened."""

from __future__ import annotations

import asyncio
import base64
import inspect
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from hami_chassis.clock import SystemClock
from hami_chassis.errors import ChassisError, OutcomeUnknown, Permanent, Transient
from hami_chassis.kube import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeClient,
    KubePermanent,
    KubeSettings,
    KubeTransient,
    KubeUnknown,
    NotFound,
    ObjectMeta,
    Unauthorized,
)
from hami_chassis.kube.client import Undecodable
from hami_chassis.kube.credentials import CredentialsUnusable, TokenFile, find_endpoint
from hami_chassis.kube.errors import decode_status, error_from_status
from hami_chassis.kube.objects import Status, StatusCause, StatusDetails
from hami_chassis.kube.resources import PODS, Resource
from hami_chassis.kube.transport import Call, translate_failure
from hami_chassis.metrics import ChassisMetrics
from hami_sim.fake_kube import FakeKube
from hami_sim.manual_clock import ManualClock
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry


class Pod(msgspec.Struct, frozen=True):
    metadata: ObjectMeta


@pytest.fixture
async def fake() -> AsyncIterator[FakeKube]:
    fake = FakeKube()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def client(fake, metrics) -> AsyncIterator[KubeClient]:
    settings = KubeSettings(kubeconfig=fake.url, timeout_seconds=60.0)
    client = await KubeClient.connect(settings, metrics=metrics, clock=SystemClock())
    yield client
    await client.close()


@pytest.mark.parametrize(
    ("code", "reason", "is_write", "expected"),
    [
        (400, "BadRequest", True, Invalid),
        (401, "Unauthorized", True, Unauthorized),
        (403, "Forbidden", True, Forbidden),
        (404, "NotFound", False, NotFound),
        (405, "MethodNotAllowed", True, KubePermanent),
        (409, "Conflict", True, Conflict),
        (409, "AlreadyExists", True, AlreadyExists),
        (410, "Expired", False, Gone),
        (410, "Gone", False, Gone),
        (413, "RequestEntityTooLarge", True, KubePermanent),
        (422, "Invalid", True, Invalid),
        (429, "TooManyRequests", True, KubeTransient),
        (503, "ServiceUnavailable", True, KubeTransient),
        (500, "InternalError", False, KubeTransient),
        (500, "InternalError", True, KubeUnknown),
        (502, "", True, KubeUnknown),
        (504, "Timeout", True, KubeUnknown),
        (504, "Timeout", False, KubeTransient),
        (301, "", False, KubePermanent),
    ],
)
def test_each_answer_is_one_error(code, reason, is_write, expected):
    error = error_from_status(Status(code=code, reason=reason), request="create pods a/b", is_write=is_write)
    assert type(error) is expected
    assert "create pods a/b" in str(error)
    assert str(code) in str(error)


def test_a_version_from_the_future_counts_as_gone():
    causes = [StatusCause(reason="ResourceVersionTooLarge")]
    status = Status(code=504, reason="Timeout", details=StatusDetails(causes=causes))
    assert isinstance(error_from_status(status, request="watch pods", is_write=False), Gone)


@given(st.binary(), st.integers(300, 599), st.booleans())
def test_any_answer_at_all_becomes_an_error(body, code, is_write):
    error = error_from_status(decode_status(body, code), request="get pods", is_write=is_write)
    assert isinstance(error, Transient | Permanent)


def library_errors() -> list[type[aiohttp.ClientError]]:
    """Every error class of aiohttp's client."""
    return [
        member
        for _, member in inspect.getmembers(aiohttp, inspect.isclass)
        if issubclass(member, aiohttp.ClientError) or member is TimeoutError
    ]


@pytest.mark.parametrize("library_error", [*library_errors(), TimeoutError, OSError, ConnectionResetError])
@pytest.mark.parametrize("is_write", [False, True])
def test_each_error_of_the_library_is_one_of_ours(library_error, is_write):
    printable = type("Printable", (library_error,), {"__init__": lambda _self: None, "__str__": lambda _self: "x"})
    error = printable()
    translated = translate_failure(Call("create", "pods"), error, is_write=is_write)
    assert isinstance(translated, KubeTransient)
    never_sent = issubclass(library_error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
    assert isinstance(translated, OutcomeUnknown) == (is_write and not never_sent)


async def test_a_write_whose_answer_was_lost_is_of_unknown_outcome_and_has_happened(fake, client):
    fake.cut("create", "pods", after_effect=True)
    with pytest.raises(KubeUnknown):
        await client.create(PODS, {"metadata": {"name": "a"}}, namespace="ns", into=Pod)
    assert (await client.get(PODS, "a", namespace="ns", into=Pod)).metadata.name == "a"


async def test_a_write_that_times_out_is_of_unknown_outcome(fake, client):
    hold = fake.hold("create", "pods/binding")
    fake.put("pods", {"metadata": {"name": "a", "namespace": "ns", "uid": "u"}})
    await client.get(PODS, "a", namespace="ns", into=Pod)  # there is a connection: a write that found none was not sent
    with pytest.raises(KubeUnknown):
        await client.bind(namespace="ns", name="a", uid="u", node="n", timeout_seconds=0.5)
    hold.release()


async def test_a_read_that_times_out_is_only_transient(fake, client):
    hold = fake.hold("get", "pods")
    with pytest.raises(KubeTransient) as caught:
        await client.get(PODS, "a", namespace="ns", into=Pod, timeout_seconds=0.1)
    assert not isinstance(caught.value, OutcomeUnknown)
    hold.release()


async def test_a_server_that_is_away_has_certainly_done_nothing(fake, client):
    await fake.stop()
    with pytest.raises(KubeTransient) as caught:
        await client.create(PODS, {"metadata": {"name": "a"}}, namespace="ns", into=Pod)
    assert not isinstance(caught.value, OutcomeUnknown)


async def test_the_server_may_ask_for_a_pause(fake, client):
    fake.fail("create", "pods", 429, reason="TooManyRequests", retry_after_seconds=7)
    with pytest.raises(KubeTransient) as caught:
        await client.create(PODS, {"metadata": {"name": "a"}}, namespace="ns", into=Pod)
    assert caught.value.retry_after_seconds == 7


@pytest.mark.parametrize(
    ("asked", "granted"),
    [("7", 7), ("86400", 60), ("0", None), ("-5", None), ("²", None), ("9" * 5000, None), ("Wed, 21 Oct 2026", None)],
)
async def test_no_server_is_left_alone_for_long(asked, granted):
    async def refuse(_request):
        return web.Response(status=429, headers={"Retry-After": asked})

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", refuse)
    async with TestServer(app) as server:
        settings = KubeSettings(kubeconfig=str(server.make_url("")))
        client = await KubeClient.connect(settings, metrics=ChassisMetrics(CollectorRegistry()), clock=SystemClock())
        with pytest.raises(KubeTransient) as caught:
            await client.get(PODS, "a", namespace="ns", into=Pod)
        await client.close()
    assert caught.value.retry_after_seconds == granted


@pytest.mark.parametrize(("asked", "granted"), [(7, 7), (86400, 60), (0, None), (-5, None), (10**400, 60)])
def test_no_status_asks_for_a_long_pause(asked, granted):
    status = Status(code=503, details=StatusDetails(retry_after_seconds=asked))
    error = error_from_status(status, request="get pods a/b", is_write=False)
    assert error.retry_after_seconds == granted


async def test_an_answer_of_another_shape_is_undecodable(fake, client):
    class Strange(msgspec.Struct):
        metadata: int

    fake.put("pods", {"metadata": {"name": "a", "namespace": "ns"}})
    with pytest.raises(Undecodable):
        await client.get(PODS, "a", namespace="ns", into=Strange)


async def test_five_hundred_binds_run_side_by_side(fake, client):
    """The client puts no limit of its own between a placement and its bind."""
    for number in range(500):
        fake.put("pods", {"metadata": {"name": f"p{number}", "namespace": "ns", "uid": f"u{number}"}})
    fake.delay("create", "pods/binding", 0.2)
    async with asyncio.TaskGroup() as group:
        for number in range(500):
            group.create_task(client.bind(namespace="ns", name=f"p{number}", uid=f"u{number}", node="n"))
    assert all(pod["spec"]["nodeName"] == "n" for pod in fake.all("pods"))


@pytest.mark.parametrize(
    ("resource", "namespace", "name", "subresource", "path"),
    [
        (PODS, "", "", "", "/api/v1/pods"),
        (PODS, "ns", "", "", "/api/v1/namespaces/ns/pods"),
        (PODS, "ns", "a/../b", "", "/api/v1/namespaces/ns/pods/a%2F..%2Fb"),
        (PODS, "ns", "a", "binding", "/api/v1/namespaces/ns/pods/a/binding"),
        (Resource("apis/g/v1", "things", namespaced=False), "", "x", "", "/apis/g/v1/things/x"),
    ],
)
def test_paths(resource, namespace, name, subresource, path):
    assert resource.path(namespace, name, subresource) == path


def test_a_namespaced_object_without_namespace_is_a_defect():
    with pytest.raises(ValueError, match="namespace"):
        PODS.path(name="a")


# ---- credentials ---------------------------------------------------------------------------------------------


def write_kubeconfig(folder: Path, user: dict[str, object], **cluster: object) -> Path:
    path = folder / "kubeconfig"
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:1/"} | cluster}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


async def header_of(path: Path, environment: dict[str, str] | None = None) -> str | None:
    endpoint = await find_endpoint(kubeconfig=str(path), context="", clock=SystemClock(), environment=environment or {})
    assert endpoint.url == "http://127.0.0.1:1"
    return await endpoint.authorization.header()


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        pytest.param({"token": "t"}, "Bearer t", id="token"),
        pytest.param({"tokenFile": "token.txt"}, "Bearer from-file", id="token file beside the kubeconfig"),
        pytest.param(
            {"username": "a", "password": "b"}, "Basic " + base64.b64encode(b"a:b").decode(), id="user and password"
        ),
        pytest.param({}, None, id="nothing"),
    ],
)
async def test_a_kubeconfig_says_who_we_are(tmp_path, user, expected):
    (tmp_path / "token.txt").write_text("from-file\n")
    assert await header_of(write_kubeconfig(tmp_path, user)) == expected


async def test_an_exec_plugin_gives_the_token(tmp_path):
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "from-plugin"},
    }
    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!/bin/sh\necho '{msgspec.json.encode(credential).decode()}'\n")
    plugin.chmod(0o755)
    user = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "interactiveMode": "Never"}
    }
    assert await header_of(write_kubeconfig(tmp_path, user)) == "Bearer from-plugin"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(None, "No such file", id="missing"),
        pytest.param("a: [", "not YAML", id="no YAML"),
        pytest.param("just text", "not a mapping", id="no mapping"),
        pytest.param("{}", "contexts has no entry", id="empty"),
        pytest.param(
            "current-context: c\ncontexts: [{name: c, context: {cluster: k}}]", "clusters has no", id="cluster"
        ),
    ],
)
async def test_a_kubeconfig_that_cannot_be_used_says_why(tmp_path, text, says):
    path = tmp_path / "kubeconfig"
    if text is not None:
        path.write_text(text)
    with pytest.raises(CredentialsUnusable, match=says):
        await find_endpoint(kubeconfig=str(path), context="", clock=SystemClock(), environment={})


async def test_no_server_at_all_says_what_to_set():
    with pytest.raises(CredentialsUnusable, match="KUBECONFIG"):
        await find_endpoint(kubeconfig="", context="", clock=SystemClock(), environment={})


async def test_a_renewed_token_is_used_within_a_minute(tmp_path):
    clock = ManualClock()
    path = tmp_path / "token"
    path.write_text("old")
    token = TokenFile(path, clock)
    assert await token.header() == "Bearer old"
    path.write_text("new")
    assert await token.header() == "Bearer old"
    clock.advance(60)
    assert await token.header() == "Bearer new"
    path.unlink()
    clock.advance(60)
    assert await token.header() == "Bearer new"  # rather an old one than none


async def test_a_token_file_that_never_was_says_so(tmp_path):
    with pytest.raises(CredentialsUnusable, match="token"):
        await TokenFile(tmp_path / "missing", ManualClock()).header()


async def test_credentials_that_fail_are_errors_of_the_call(tmp_path, metrics):
    settings = KubeSettings(kubeconfig=str(write_kubeconfig(tmp_path, {"tokenFile": "missing"})))
    client = await KubeClient.connect(settings, metrics=metrics, clock=SystemClock())
    with pytest.raises(ChassisError, match="missing"):
        await client.get(PODS, "a", namespace="ns", into=Pod)
    await client.close()


async def test_an_answer_that_breaks_off_is_transient(metrics):
    async def broken(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b'{"metadata":')
        assert request.transport is not None
        request.transport.abort()
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", broken)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    settings = KubeSettings(kubeconfig=f"http://127.0.0.1:{runner.addresses[0][1]}")
    client = await KubeClient.connect(settings, metrics=metrics, clock=SystemClock())
    with pytest.raises(KubeTransient):
        await client.get(PODS, "a", namespace="ns", into=Pod)
    with pytest.raises(KubeUnknown):
        await client.bind(namespace="ns", name="a", uid="u", node="n")
    await client.close()
    await runner.cleanup()
