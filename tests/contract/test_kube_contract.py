"""What we expect of an API server: the same suite against the fake and against a real kube-apiserver.

It runs through the chassis' client, so it is the contract of that, too.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec
import pytest
from hami_chassis.clock import SystemClock
from hami_chassis.kube import (
    AlreadyExists,
    Conflict,
    Gone,
    Invalid,
    KubeClient,
    KubeSettings,
    NotFound,
    ObjectMeta,
    Resource,
)
from hami_chassis.kube.resources import EVENTS, LEASES, NODES, PODS, RESOURCE_QUOTAS
from hami_chassis.metrics import ChassisMetrics
from hami_sim.controlplane import ControlPlane
from hami_sim.fake_kube import FakeKube
from prometheus_client import CollectorRegistry


class PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""


class PodStatus(msgspec.Struct, frozen=True, rename="camel"):
    phase: str = ""
    reason: str = ""


class Pod(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Anything(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}
    count: int = 0


class Target(NamedTuple):
    client: KubeClient
    namespace: str
    forget_history: Callable[[], Awaitable[None]]

    async def create_pod(self, name: str, **metadata: Any) -> Pod:
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": ({"name": name} if name else {}) | metadata,
            # No scheduler touches it behind the test's back.
            "spec": {"schedulerName": "nobody", "containers": [{"name": "c", "image": "none"}]},
        }
        return await self.client.create(PODS, pod, namespace=self.namespace, into=Pod)

    async def get_pod(self, name: str) -> Pod:
        return await self.client.get(PODS, name, namespace=self.namespace, into=Pod)

    async def create_node(self) -> str:
        name = f"node-{uuid.uuid4().hex[:8]}"
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        await self.client.create(NODES, node, into=Anything)
        return name


async def connect(kubeconfig: str) -> KubeClient:
    metrics = ChassisMetrics(CollectorRegistry())
    return await KubeClient.connect(KubeSettings(kubeconfig=kubeconfig), metrics=metrics, clock=SystemClock())


class KubeContract:
    """Every test gets `target`: a client and a namespace of its own."""

    async def test_a_created_object_has_an_identity_and_can_be_read(self, target: Target):
        created = await target.create_pod("a", annotations={"k": "v"})
        assert created.metadata.uid
        assert created.metadata.resource_version.isdigit()
        assert created.metadata.creation_timestamp
        assert (created.metadata.name, created.metadata.namespace) == ("a", target.namespace)
        assert created.status.phase == "Pending"
        assert await target.get_pod("a") == created

    async def test_an_object_that_is_not_there_is_not_found(self, target: Target):
        with pytest.raises(NotFound):
            await target.get_pod("missing")
        with pytest.raises(NotFound):
            await target.client.delete(PODS, "missing", namespace=target.namespace)
        with pytest.raises(NotFound):
            await target.client.patch_annotations(PODS, "missing", {"a": "b"}, namespace=target.namespace)
        resource = Resource("apis/example.invalid/v1", "things")
        with pytest.raises(NotFound):
            await target.client.get(resource, "x", namespace=target.namespace, into=Anything)

    async def test_a_name_is_taken_once(self, target: Target):
        await target.create_pod("a")
        with pytest.raises(AlreadyExists):
            await target.create_pod("a")

    async def test_a_name_can_be_generated(self, target: Target):
        first = await target.create_pod("", generateName="web-")
        second = await target.create_pod("", generateName="web-")
        assert first.metadata.name != second.metadata.name
        assert first.metadata.name.startswith("web-")

    async def test_an_object_without_name_is_refused(self, target: Target):
        with pytest.raises(Invalid):
            await target.create_pod("")

    async def test_a_merge_patch_sets_and_removes(self, target: Target):
        await target.create_pod("a", annotations={"kept": "1", "gone": "2"})
        got = await target.client.patch_annotations(PODS, "a", {"gone": None, "new": "3"}, namespace=target.namespace)
        assert got.metadata.annotations == {"kept": "1", "new": "3"}
        assert (await target.get_pod("a")).metadata.annotations == {"kept": "1", "new": "3"}

    async def test_a_patch_that_changes_nothing_makes_no_version(self, target: Target):
        before = await target.create_pod("a", annotations={"k": "v"})
        got = await target.client.patch_annotations(PODS, "a", {"k": "v"}, namespace=target.namespace)
        assert got.metadata.resource_version == before.metadata.resource_version

    @pytest.mark.parametrize("precondition", ["resource_version", "uid"])
    async def test_a_patch_of_another_version_or_object_conflicts(self, target: Target, precondition: str):
        created = await target.create_pod("a")
        held = getattr(created.metadata, precondition)
        changed = await target.client.patch_annotations(
            PODS, "a", {"k": "1"}, namespace=target.namespace, **{precondition: held}
        )
        wrong = created.metadata.resource_version if precondition == "resource_version" else str(uuid.uuid4())
        with pytest.raises(Conflict):
            await target.client.patch_annotations(
                PODS, "a", {"k": "2"}, namespace=target.namespace, **{precondition: wrong}
            )
        assert (await target.get_pod("a")).metadata == changed.metadata

    async def test_status_and_the_rest_are_written_apart(self, target: Target):
        await target.create_pod("a")
        patched = await target.client.patch(
            PODS,
            "a",
            {"metadata": {"annotations": {"k": "v"}}, "status": {"reason": "ignored"}},
            namespace=target.namespace,
            into=Pod,
        )
        assert (patched.metadata.annotations, patched.status.reason) == ({"k": "v"}, "")
        patched = await target.client.patch_status(PODS, "a", {"reason": "Said"}, namespace=target.namespace, into=Pod)
        assert (patched.metadata.annotations, patched.status.reason) == ({"k": "v"}, "Said")

    async def test_binding_sets_node_annotations_and_labels_in_one_version(self, target: Target):
        node = await target.create_node()
        pod = await target.create_pod("a", annotations={"kept": "1"})
        async with aclosing(self.watch(target, pod.metadata.resource_version)) as events:
            await target.client.bind(
                namespace=target.namespace,
                name="a",
                uid=pod.metadata.uid,
                node=node,
                annotations={"hami.io/test": "x"},
                labels={"hami.io/label": "y"},
            )
            kind, seen = await anext(events)
        assert kind == "MODIFIED"
        assert seen.spec.node_name == node
        assert seen.metadata.annotations == {"kept": "1", "hami.io/test": "x"}
        assert seen.metadata.labels == {"hami.io/label": "y"}

    async def test_binding_another_pod_of_that_name_changes_nothing(self, target: Target):
        node = await target.create_node()
        pod = await target.create_pod("a")
        with pytest.raises(Conflict):
            await target.client.bind(
                namespace=target.namespace, name="a", uid=str(uuid.uuid4()), node=node, annotations={"k": "v"}
            )
        assert await target.get_pod("a") == pod

    async def test_a_bound_pod_cannot_be_bound_again(self, target: Target):
        node = await target.create_node()
        pod = await target.create_pod("a")
        await target.client.bind(namespace=target.namespace, name="a", uid=pod.metadata.uid, node=node)
        with pytest.raises(Conflict):
            await target.client.bind(
                namespace=target.namespace, name="a", uid=pod.metadata.uid, node=node, annotations={"k": "v"}
            )
        assert (await target.get_pod("a")).metadata.annotations == {}

    async def test_a_pod_that_is_gone_cannot_be_bound(self, target: Target):
        node = await target.create_node()
        with pytest.raises(NotFound):
            await target.client.bind(namespace=target.namespace, name="gone", uid=str(uuid.uuid4()), node=node)

    async def test_an_unbound_pod_is_deleted_at_once_and_only_under_its_uid(self, target: Target):
        pod = await target.create_pod("a")
        with pytest.raises(Conflict):
            await target.client.delete(PODS, "a", namespace=target.namespace, uid=str(uuid.uuid4()))
        await target.client.delete(PODS, "a", namespace=target.namespace, uid=pod.metadata.uid)
        with pytest.raises(NotFound):
            await target.get_pod("a")

    async def test_a_bound_pod_is_marked_first_and_removed_without_grace(self, target: Target):
        node = await target.create_node()
        pod = await target.create_pod("a")
        await target.client.bind(namespace=target.namespace, name="a", uid=pod.metadata.uid, node=node)
        await target.client.delete(PODS, "a", namespace=target.namespace)
        assert (await target.get_pod("a")).metadata.deletion_timestamp
        await target.client.delete(PODS, "a", namespace=target.namespace, grace_seconds=0)
        with pytest.raises(NotFound):
            await target.get_pod("a")

    async def test_a_paged_list_is_one_consistent_state(self, target: Target):
        for number in range(7):
            await target.create_pod(f"p{number}")
        page = await target.client.list_page(PODS, into=Pod, namespace=target.namespace, limit=3)
        names, versions = [pod.metadata.name for pod in page.items], {page.resource_version}
        await target.create_pod("p9")
        await target.client.delete(PODS, "p6", namespace=target.namespace)
        while page.next_page:
            page = await target.client.list_page(
                PODS, into=Pod, namespace=target.namespace, limit=3, page=page.next_page
            )
            names += [pod.metadata.name for pod in page.items]
            versions.add(page.resource_version)
        assert names == [f"p{number}" for number in range(7)]
        assert len(versions) == 1

    async def test_a_page_token_that_is_none_is_refused(self, target: Target):
        with pytest.raises(Invalid):
            await target.client.list_page(PODS, into=Pod, namespace=target.namespace, limit=3, page="nonsense")

    @pytest.mark.parametrize(
        ("selector", "expected"),
        [
            pytest.param("app=web", ["a"], id="equal"),
            pytest.param("app!=web", ["b", "c"], id="not equal also where it is absent"),
            pytest.param("app in (web,db)", ["a", "b"], id="one of"),
            pytest.param("app notin (web)", ["b", "c"], id="none of"),
            pytest.param("app", ["a", "b"], id="present"),
            pytest.param("!app", ["c"], id="absent"),
            pytest.param("app=web,tier=1", ["a"], id="both"),
        ],
    )
    async def test_label_selectors(self, target: Target, selector: str, expected: list[str]):
        await target.create_pod("a", labels={"app": "web", "tier": "1"})
        await target.create_pod("b", labels={"app": "db"})
        await target.create_pod("c")
        got = await target.client.list_all(PODS, into=Pod, namespace=target.namespace, label_selector=selector)
        assert [pod.metadata.name for pod in got.items] == expected

    async def test_a_selector_that_cannot_be_read_is_refused(self, target: Target):
        with pytest.raises(Invalid):
            await target.client.list_all(PODS, into=Pod, namespace=target.namespace, label_selector="a b c")

    async def test_a_watch_tells_what_happened_since_a_version_in_order(self, target: Target):
        first = await target.create_pod("a")
        await target.client.patch_annotations(PODS, "a", {"k": "v"}, namespace=target.namespace)
        await target.create_pod("b")
        async with aclosing(self.watch(target, first.metadata.resource_version)) as events:
            await target.client.delete(PODS, "a", namespace=target.namespace)
            seen = [await anext(events) for _ in range(4)]
        assert [(kind, pod.metadata.name) for kind, pod in seen] == [
            ("MODIFIED", "a"),
            ("ADDED", "b"),
            ("MODIFIED", "a"),
            ("DELETED", "a"),
        ]
        assert seen[2][1].metadata.deletion_timestamp
        versions = [int(pod.metadata.resource_version) for _, pod in seen]
        assert versions == sorted(set(versions))
        assert versions[0] > int(first.metadata.resource_version)

    async def test_a_watch_of_one_node_sees_pods_come_and_go(self, target: Target):
        node = await target.create_node()
        pod = await target.create_pod("a")
        events = self.watch(target, pod.metadata.resource_version, field_selector=f"spec.nodeName={node}")
        async with aclosing(events):
            await target.client.bind(namespace=target.namespace, name="a", uid=pod.metadata.uid, node=node)
            kind, seen = await anext(events)
            assert (kind, seen.metadata.name) == ("ADDED", "a")
            await target.client.delete(PODS, "a", namespace=target.namespace, grace_seconds=0)
            while kind != "DELETED":
                kind, seen = await anext(events)
            assert seen.metadata.name == "a"

    async def test_a_watch_by_label_ends_for_an_object_that_loses_it(self, target: Target):
        pod = await target.create_pod("a", labels={"app": "web"})
        async with aclosing(self.watch(target, pod.metadata.resource_version, label_selector="app=web")) as events:
            await target.client.patch(
                PODS, "a", {"metadata": {"labels": {"app": "db"}}}, namespace=target.namespace, into=Pod
            )
            kind, seen = await anext(events)
        assert (kind, seen.metadata.name) == ("DELETED", "a")

    async def test_a_watch_ends_at_its_time_with_a_bookmark_before(self, target: Target):
        pod = await target.create_pod("a")
        seen: list[tuple[str, str]] = []
        while not seen:  # a server short of processor time may end the watch without one
            seen = [
                (event.type, msgspec.json.decode(event.raw, type=Anything).metadata.resource_version)
                async for event in target.client.watch(
                    PODS,
                    namespace=target.namespace,
                    resource_version=pod.metadata.resource_version,
                    timeout_seconds=4,
                )
            ]
        assert {kind for kind, _ in seen} == {"BOOKMARK"}
        assert int(seen[-1][1]) >= int(pod.metadata.resource_version)

    async def test_a_watch_from_a_forgotten_version_is_gone(self, target: Target):
        old = await target.create_pod("a")
        await target.create_pod("b")
        await target.forget_history()
        events = target.client.watch(
            PODS, namespace=target.namespace, resource_version=old.metadata.resource_version, timeout_seconds=20
        )
        with pytest.raises(Gone):
            _ = [event async for event in events]

    async def test_a_lease_is_replaced_only_in_its_version(self, target: Target):
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "l"},
            "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"},
        }
        created = await target.client.create(LEASES, lease, namespace=target.namespace, into=Anything)
        assert created.spec == lease["spec"]
        version = created.metadata.resource_version
        lease["spec"] = lease["spec"] | {"holderIdentity": "b"}
        with pytest.raises(Invalid):
            await target.client.replace(LEASES, "l", lease, namespace=target.namespace, into=Anything)
        lease["metadata"] = {"name": "l", "resourceVersion": version}
        replaced = await target.client.replace(LEASES, "l", lease, namespace=target.namespace, into=Anything)
        assert replaced.spec["holderIdentity"] == "b"
        with pytest.raises(Conflict):
            await target.client.replace(LEASES, "l", lease, namespace=target.namespace, into=Anything)

    async def test_an_event_counts_on(self, target: Target):
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "e.1", "namespace": target.namespace},
            "involvedObject": {"kind": "Pod", "name": "e", "namespace": target.namespace},
            "reason": "Tested",
            "message": "m" * 1023,
            "type": "Normal",
            "count": 1,
        }
        await target.client.create(EVENTS, event, namespace=target.namespace, into=Anything)
        patched = await target.client.patch(EVENTS, "e.1", {"count": 2}, namespace=target.namespace, into=Anything)
        assert patched.count == 2

    async def test_a_quota_keeps_its_hard_limits(self, target: Target):
        hard = {"limits.nvidia.com/gpumem": "1k"}  # "1000" comes back as this
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}}
        await target.client.create(RESOURCE_QUOTAS, quota, namespace=target.namespace, into=Anything)
        listed = await target.client.list_all(RESOURCE_QUOTAS, into=Anything, namespace=target.namespace)
        assert [item.spec["hard"] for item in listed.items] == [hard]

    async def test_node_annotations_and_status(self, target: Target):
        node = await target.create_node()
        await target.client.patch_annotations(NODES, node, {"hami.io/node-test": "x"})
        await target.client.patch_status(NODES, node, {"capacity": {"nvidia.com/gpu": "10"}}, into=Anything)
        got = await target.client.get(NODES, node, into=Anything)
        assert got.metadata.annotations["hami.io/node-test"] == "x"
        assert got.status["capacity"]["nvidia.com/gpu"] == "10"

    async def watch(self, target: Target, version: str, **selectors: str) -> AsyncIterator[tuple[str, Pod]]:
        events = target.client.watch(PODS, namespace=target.namespace, resource_version=version, **selectors)
        async with aclosing(events):
            async for event in events:
                if event.type != "BOOKMARK":
                    yield event.type, msgspec.json.decode(event.raw, type=Pod)


class TestFakeKube(KubeContract):
    @pytest.fixture
    async def target(self) -> AsyncIterator[Target]:
        fake = FakeKube()
        client = await connect(await fake.start())

        async def forget_history() -> None:
            fake.compact("pods")

        yield Target(client, "default", forget_history)
        await client.close()
        await fake.stop()


class TestRealKube(KubeContract):
    @pytest.fixture
    async def target(self, control_plane: ControlPlane, namespace: str) -> AsyncIterator[Target]:
        client = await connect(str(control_plane.kubeconfig))

        async def forget_history() -> None:
            await control_plane.restart("kube-apiserver")  # it comes back with an empty watch cache

        yield Target(client, namespace, forget_history)
        await client.close()
