"""The running service on real sockets: HTTPS, bounds, certificate renewal, quotas from an API server, metrics."""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import structlog
from hami_chassis.bus import BusSettings
from hami_chassis.clock import SystemClock
from hami_chassis.http import HttpServer, HttpSettings
from hami_chassis.kube import KubeSettings
from hami_chassis.tls import TlsSettings
from hami_model import events
from hami_sim.controlplane.layout import CertificateFiles
from hami_sim.controlplane.pki import CertificateAuthority
from hami_sim.fake_kube import FakeKube
from hami_sim.fake_kube.faults import EVERY
from hami_sim.loopback_ports import choose_free_ports
from hami_webhook.adapters import quota_informers
from hami_webhook.adapters.admission_http import AdmissionEndpoint, EventOrigin
from hami_webhook.config import AdmissionSettings, EventSettings, WebhookSettings
from hami_webhook.core.quota import NamespaceQuota
from hami_webhook.main import build
from hami_webhook.metrics import WebhookMetrics
from prometheus_client import CollectorRegistry
from webhook_builders import Json, Reviewed, decoded, gpu_pod, policy, quota, review_body, running_pod

HOST = "127.0.0.1"
LIMIT_BYTES = 4096


class Service:
    """A running webhook, seen from outside."""

    def __init__(
        self, settings: WebhookSettings, authority: CertificateAuthority, client: aiohttp.ClientSession
    ) -> None:
        self.settings = settings
        self.authority = authority
        self.url = f"https://{HOST}:{settings.https.port}/webhook"
        self.observed = f"http://{HOST}:{settings.observation.port}"
        self._client = client

    async def post(self, body: bytes, content_type: str = "application/json") -> tuple[int, bytes]:
        async with self._client.post(self.url, data=body, headers={"Content-Type": content_type}) as response:
            return response.status, await response.read()

    async def review(self, document: Json) -> Reviewed:
        return decoded(*await self.post(review_body(document)), document)

    async def observe(self, path: str) -> tuple[int, str]:
        async with self._client.get(self.observed + path) as response:
            return response.status, await response.text()


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await holds():
            return
        await asyncio.sleep(0.02)


def issue(authority: CertificateAuthority, folder: Path) -> CertificateFiles:
    folder.mkdir(parents=True, exist_ok=True)
    return authority.issue_server(CertificateFiles(folder / "tls.crt", folder / "tls.key"), "webhook", (HOST,))


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority.load_or_create(CertificateFiles(tmp_path / "ca.crt", tmp_path / "ca.key"), "ca")


@pytest.fixture
async def fake_kube() -> AsyncIterator[FakeKube]:
    fake = FakeKube()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def service(fake_kube: FakeKube, authority: CertificateAuthority, tmp_path: Path) -> AsyncIterator[Service]:
    """The whole service, its certificate reached through a link as in a mounted Secret."""
    issue(authority, tmp_path / "first")
    mounted = tmp_path / "mounted"
    mounted.symlink_to(tmp_path / "first")
    https_port, observation_port = choose_free_ports(2)
    settings = WebhookSettings(
        admission=AdmissionSettings(body_limit_bytes=LIMIT_BYTES),
        https=HttpSettings(port=https_port),
        tls=TlsSettings(cert_file=str(mounted / "tls.crt"), key_file=str(mounted / "tls.key"), reload_seconds=0.02),
        observation=HttpSettings(port=observation_port),
        kube=KubeSettings(kubeconfig=fake_kube.url, timeout_seconds=60.0),
        bus=BusSettings(servers=()),
        events=EventSettings(instance="w-0"),
    )
    trust = ssl.create_default_context(cafile=str(authority.files.certificate))
    async with AsyncExitStack() as stack:
        tasks = [asyncio.create_task(root.run()) for root in await build(settings, stack)]
        client = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust, force_close=True))
        )
        found = Service(settings, authority, client)

        async def is_ready() -> bool:
            try:
                return (await found.observe("/readyz"))[0] == 200
            except aiohttp.ClientConnectionError:
                return False

        await eventually(is_ready)
        yield found
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def stored(found: msgspec.Struct) -> Json:
    document: Json = msgspec.to_builtins(found)
    return document


async def test_a_review_over_https(service: Service) -> None:
    reviewed = await service.review(gpu_pod(gpu=1))
    assert reviewed.pod["spec"]["schedulerName"] == "hami-scheduler"
    _, metrics = await service.observe("/metrics")
    assert 'hami_webhook_reviews_total{reason="",verdict="changed"} 1.0' in metrics


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_refused(service: Service, chunked: bool) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(8):
            yield b" " * 1024

    async with aiohttp.ClientSession() as client:
        trust = ssl.create_default_context(cafile=str(service.authority.files.certificate))
        body: Any = chunks() if chunked else b" " * (LIMIT_BYTES + 1)
        async with client.post(service.url, data=body, ssl=trust) as response:
            assert response.status == 413
            assert "error" in await response.json()
    _, metrics = await service.observe("/metrics")
    assert "hami_webhook_oversized_bodies_total 1.0" in metrics
    assert (await service.review(gpu_pod(gpu=1))).allowed


async def test_malformed_json_gets_400_with_the_place(service: Service) -> None:
    status, body = await service.post(b'{"request": ')
    assert status == 400
    assert "not JSON" in json.loads(body)["response"]["status"]["message"]
    status, _ = await service.post(review_body(gpu_pod(gpu=1)), "text/plain")
    assert status == 400


async def test_other_paths_and_methods(service: Service) -> None:
    trust = ssl.create_default_context(cafile=str(service.authority.files.certificate))
    async with aiohttp.ClientSession() as client:
        async with client.get(service.url, ssl=trust) as response:
            assert response.status == 405
        async with client.post(service.url + "x", ssl=trust) as response:
            assert response.status == 404


async def test_refusals_tell_what_to_change(service: Service) -> None:
    document = gpu_pod(gpu=1)
    document["spec"]["nodeName"] = "n1"
    reviewed = await service.review(document)
    assert not reviewed.allowed
    assert "nodeSelector" in reviewed.message
    _, metrics = await service.observe("/metrics")
    assert 'hami_webhook_reviews_total{reason="node-assigned",verdict="rejected"} 1.0' in metrics


# ---- quotas ----------------------------------------------------------------------------------------------------


async def test_quota_and_usage_follow_the_api_server(service: Service, fake_kube: FakeKube) -> None:
    fake_kube.put("resourcequotas", stored(quota(gpumem="5000")))
    fake_kube.put("pods", stored(running_pod("a", "GPU-1,NVIDIA,4000,30:;")))
    document = gpu_pod(gpu=1, gpumem=1001)

    async def allowed() -> bool:
        return (await service.review(document)).allowed

    async def refused() -> bool:
        return not await allowed()

    await eventually(refused)
    ended = msgspec.structs.replace(
        running_pod("a", "GPU-1,NVIDIA,4000,30:;"), status=running_pod("a", ";", status={"phase": "Failed"}).status
    )
    fake_kube.put("pods", stored(ended))
    await eventually(allowed)
    fake_kube.put("resourcequotas", stored(quota(gpumem="1000")))
    await eventually(refused)
    fake_kube.remove("resourcequotas", "q", "team-a")
    await eventually(allowed)


async def test_no_pod_is_refused_because_the_watch_is_late(
    service: Service, fake_kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit that was raised, or a pod that has ended, counts for the review that comes after it."""
    monkeypatch.setattr(quota_informers, "_LOOK_SECONDS", 60.0)  # a machine that stands still is another matter
    fake_kube.put("resourcequotas", stored(quota(gpumem="5000")))
    fake_kube.put("pods", stored(running_pod("a", "GPU-1,NVIDIA,4000,30:;")))

    async def refused(gpumem: int) -> bool:
        return not (await service.review(gpu_pod(gpu=1, gpumem=gpumem))).allowed

    await eventually(lambda: refused(1001))
    fake_kube.pause_watches("pods")
    fake_kube.pause_watches("resourcequotas")
    fake_kube.put("resourcequotas", stored(quota(gpumem="6000")))
    assert not await refused(2000)
    assert await refused(2001)
    fake_kube.remove("pods", "a", "team-a")
    assert not await refused(6000)
    fake_kube.fail("list", "pods", 503, times=EVERY)
    assert await refused(6000)  # nobody says that it is otherwise than what was seen last


async def test_reviews_go_on_while_quotas_are_not_known(service: Service, fake_kube: FakeKube) -> None:
    async def known() -> bool:
        return "hami_webhook_quota_known 1.0" in (await service.observe("/metrics"))[1]

    await eventually(known)
    assert (await service.review(gpu_pod(gpu=1))).warnings == []
    await fake_kube.stop()
    assert (await service.review(gpu_pod(gpu=1))).allowed
    await fake_kube.start()


async def test_before_the_first_list_the_check_is_skipped_and_that_is_said(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    fake = FakeKube()
    fake.put("resourcequotas", stored(quota(gpumem="0")))
    held = fake.hold("list", "resourcequotas")
    await fake.start()
    files = issue(authority, tmp_path / "cert")
    https_port, observation_port = choose_free_ports(2)
    settings = WebhookSettings(
        https=HttpSettings(port=https_port),
        tls=TlsSettings(cert_file=str(files.certificate), key_file=str(files.key)),
        observation=HttpSettings(port=observation_port),
        kube=KubeSettings(kubeconfig=fake.url, timeout_seconds=60.0),
        bus=BusSettings(servers=()),
    )
    trust = ssl.create_default_context(cafile=str(authority.files.certificate))
    async with AsyncExitStack() as stack:
        tasks = [asyncio.create_task(root.run()) for root in await build(settings, stack)]
        client = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)))
        found = Service(settings, authority, client)
        await fake.wait_for_requests("list", "resourcequotas")

        async def answers() -> bool:
            try:
                reviewed = await found.review(gpu_pod(gpu=1))
            except aiohttp.ClientConnectionError:
                return False
            assert reviewed.allowed
            assert "not known yet" in reviewed.warnings[0]
            return True

        await eventually(answers)
        assert 'hami_webhook_quota_checks_total{result="unknown"}' in (await found.observe("/metrics"))[1]
        held.release()

        async def refused() -> bool:
            return not (await found.review(gpu_pod(gpu=1))).allowed

        await eventually(refused)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await fake.stop()


# ---- certificate -----------------------------------------------------------------------------------------------


async def served_certificate(service: Service) -> str:
    """Digest of the certificate in a new handshake."""
    trust = ssl.create_default_context(cafile=str(service.authority.files.certificate))
    _, writer = await asyncio.open_connection(HOST, service.settings.https.port, ssl=trust)
    raw = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    return hashlib.sha256(raw).hexdigest()


def digest_of(files: CertificateFiles) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(files.certificate.read_text())).hexdigest()


@pytest.mark.case("WHK-04")
async def test_a_renewed_certificate_is_served_and_a_broken_one_is_not(service: Service, tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    mounted = tmp_path / "mounted"

    def swap(folder: Path) -> None:
        aside = tmp_path / "aside"
        aside.symlink_to(folder)
        aside.rename(mounted)

    before = await served_certificate(service)
    assert before == digest_of(CertificateFiles(first / "tls.crt", first / "tls.key"))

    broken = issue(service.authority, second)
    broken.key.write_bytes((first / "tls.key").read_bytes())
    with structlog.testing.capture_logs() as lines:
        swap(second)

        async def is_reported() -> bool:
            return any(line["event"] == "certificate-not-reloaded" for line in lines)

        await eventually(is_reported)
    assert await served_certificate(service) == before

    renewed = digest_of(issue(service.authority, third))
    swap(third)

    async def is_served() -> bool:
        return await served_certificate(service) == renewed

    await eventually(is_served)
    assert (await service.review(gpu_pod(gpu=1))).allowed


# ---- events ----------------------------------------------------------------------------------------------------


class RecordingSink:
    """Keeps what is published."""

    def __init__(self) -> None:
        self.published: list[tuple[str, events.Event | events.UnknownEvent, Mapping[str, str]]] = []

    def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> None:
        self.published.append((subject, events.decode(payload), headers))


class NoQuotas:
    def view(self, _namespace: str) -> NamespaceQuota:
        return NamespaceQuota()

    async def look(self, _namespace: str) -> NamespaceQuota:
        return NamespaceQuota()


async def test_changes_and_refusals_are_announced() -> None:
    sink = RecordingSink()
    endpoint = AdmissionEndpoint(
        policy(),
        quota=NoQuotas(),
        sink=sink,
        origin=EventOrigin(source="/hami/webhook/w-0", prefix="mine"),
        metrics=WebhookMetrics(CollectorRegistry()),
        clock=SystemClock(),
        body_limit_bytes=LIMIT_BYTES,
    )
    server = HttpServer(endpoint.app(), HttpSettings())
    task = asyncio.create_task(server.run())
    await server.listening.wait()
    async with aiohttp.ClientSession() as client:
        for document in (gpu_pod(gpu=1), gpu_pod(gpu=1, gpumem="4Gi"), gpu_pod(cpu=1)):
            async with client.post(f"{server.url}/webhook", json=json.loads(review_body(document))) as response:
                assert response.status == 200
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    subjects = [subject for subject, _, _ in sink.published]
    assert subjects == ["mine.v1.admission.team-a.admitted", "mine.v1.admission.team-a.rejected"]
    (_, admitted, headers), (_, rejected, _) = sink.published
    assert isinstance(admitted, events.AdmissionAdmitted)
    assert headers["ce-id"] == headers["Nats-Msg-Id"] == "u-1.admitted"
    assert isinstance(rejected, events.AdmissionRejected)
    assert "MiB" in rejected.reason
