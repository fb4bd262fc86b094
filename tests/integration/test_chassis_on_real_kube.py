"""Informer, leader election and Events of the chassis against a real kube-apiserver, which is restarted under them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import msgspec
import pytest
from hami_chassis.clock import SystemClock
from hami_chassis.kube import (
    EventRecorder,
    Informer,
    KubeClient,
    KubeSettings,
    LeaderElector,
    LeaderSettings,
    ObjectMeta,
    ObjectReference,
)
from hami_chassis.kube.resources import CONFIG_MAPS, EVENTS, LEASES
from hami_chassis.metrics import ChassisMetrics
from hami_sim.controlplane import ControlPlane
from prometheus_client import CollectorRegistry


class ConfigMap(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    data: dict[str, str] = {}


class Anything(msgspec.Struct, frozen=True, rename="camel"):
    metadata: ObjectMeta
    spec: dict[str, Any] = {}
    reason: str = ""
    count: int = 0
    involved_object: dict[str, Any] = {}


class Book:
    """Holds what an informer tells; an impossible step fails."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}
        self._changed = asyncio.Event()

    def added(self, new: tuple[str, str]) -> None:
        assert new[0] not in self.held
        self._set(new)

    def modified(self, old: tuple[str, str], new: tuple[str, str]) -> None:
        assert self.held[old[0]] == old[1]
        self._set(new)

    def deleted(self, last: tuple[str, str]) -> None:
        del self.held[last[0]]
        self._changed.set()

    async def until(self, expected: dict[str, str]) -> None:
        while self.held != expected:
            self._changed.clear()
            await self._changed.wait()

    def _set(self, new: tuple[str, str]) -> None:
        self.held[new[0]] = new[1]
        self._changed.set()


@contextlib.asynccontextmanager
async def running(work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture
def metrics() -> ChassisMetrics:
    return ChassisMetrics(CollectorRegistry())


@pytest.fixture
async def client(control_plane: ControlPlane, metrics: ChassisMetrics) -> AsyncIterator[KubeClient]:
    settings = KubeSettings(kubeconfig=str(control_plane.kubeconfig))
    client = await KubeClient.connect(settings, metrics=metrics, clock=SystemClock())
    yield client
    await client.close()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  # neither lease nor counter announces its changes to a test
        await asyncio.sleep(0.02)


async def test_an_informer_and_a_leader_live_through_a_restart_of_the_server(
    control_plane: ControlPlane, client: KubeClient, metrics: ChassisMetrics, namespace: str
):
    async def write(name: str, value: str) -> None:
        body = {"metadata": {"name": name, "labels": {"test": "yes"}}, "data": {"k": value}}
        await client.create(CONFIG_MAPS, body, namespace=namespace, into=ConfigMap)

    async def change(name: str, value: str) -> None:
        await client.patch(CONFIG_MAPS, name, {"data": {"k": value}}, namespace=namespace, into=ConfigMap)

    for number in range(7):
        await write(f"c{number}", "1")
    book = Book()
    informer = Informer(
        client,
        CONFIG_MAPS,
        into=ConfigMap,
        project=lambda found: (found.metadata.name, found.data["k"]),
        handler=book,
        metrics=metrics,
        clock=SystemClock(),
        namespace=namespace,
        label_selector="test=yes",
        page_limit=3,
    )
    settings = LeaderSettings(namespace=namespace, name="lease", lease_seconds=4, renew_seconds=3, retry_seconds=0.3)
    elector = LeaderElector(client, settings, identity="me", metrics=metrics, clock=SystemClock())
    async with running(informer.run), running(elector.run):
        await informer.synced.wait()
        expected = {f"c{number}": "1" for number in range(7)}
        assert book.held == expected
        await change("c1", "2")
        await client.delete(CONFIG_MAPS, "c2", namespace=namespace)
        await write("c9", "1")
        expected = {name: value for name, value in expected.items() if name != "c2"} | {"c1": "2", "c9": "1"}
        await book.until(expected)
        await control_plane.kill("kube-apiserver")
        await control_plane.restart("kube-apiserver")
        await change("c3", "3")
        await client.delete(CONFIG_MAPS, "c4", namespace=namespace)
        del expected["c4"]
        await book.until(expected | {"c3": "3"})
        await informer.resync()
        assert book.held == expected | {"c3": "3"}
        await until(lambda: elector.is_leader)
        lease = await client.get(LEASES, "lease", namespace=namespace, into=Anything)
        assert lease.spec["holderIdentity"] == "me"
    lease = await client.get(LEASES, "lease", namespace=namespace, into=Anything)
    assert lease.spec.get("holderIdentity", "") == ""


async def test_events_are_taken_and_merged(client: KubeClient, metrics: ChassisMetrics, namespace: str):
    recorder = EventRecorder(client, component="hami-test", instance="host", metrics=metrics, clock=SystemClock())
    about = ObjectReference(kind="Pod", name="a", namespace=namespace, uid="u")
    async with running(recorder.run):
        for _ in range(3):
            recorder.emit(about, reason="Tested", message="m" * 5000)
        recorder.emit(ObjectReference(kind="Node", name="no-such-node"), reason="Tested", message="node")
        await until(lambda: metrics.kube_events.labels("written")._value.get() == 2)
    listed = await client.list_all(
        EVENTS, into=Anything, namespace=namespace, field_selector="involvedObject.name=a,reason=Tested"
    )
    assert [(event.reason, event.count, event.involved_object["uid"]) for event in listed.items] == [("Tested", 3, "u")]
    assert metrics.kube_events.labels("failed")._value.get() == 0
