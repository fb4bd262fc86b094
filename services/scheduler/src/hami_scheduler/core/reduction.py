"""Which objects are held, and which of their fields: a cluster has tens of thousands of pods."""

from __future__ import annotations

from typing import Final

from hami_model import keys, kube
from hami_model.device_config import DeviceConfig

_ALWAYS_KEPT: Final = frozenset(
    {
        keys.ASSIGNED_NODE,
        keys.ASSIGNED_TIME,
        keys.ALLOCATION_ID,
        keys.BIND_TIME,
        keys.BIND_PHASE,
        keys.NODE_POLICY,
        keys.CARD_POLICY,
        keys.SCORING_WEIGHTS,
        keys.NODE_LOCK,
        keys.CARD_CORDON,
    }
)


class Reduction:
    """Reduces objects to what the scheduler reads."""

    def __init__(self, config: DeviceConfig) -> None:
        self._managed = config.managed_resources
        self._allocated_keys = frozenset(settings.vendor.allocated_key for settings in config.vendors)
        self._kept = _ALWAYS_KEPT | {
            key
            for settings in config.vendors
            for key in (*settings.vendor.pod_keys, *settings.vendor.node_keys, *settings.vendor.wish_keys)
        }

    def pod(self, pod: kube.Pod) -> kube.Pod | None:
        """None for a pod that neither asks for cards nor carries an allocation, and for one that has ended."""
        if pod.is_finished or not (self._asks(pod) or self._is_annotated(pod)):
            return None
        metadata = pod.metadata
        return kube.Pod(
            metadata=kube.Metadata(
                name=metadata.name,
                namespace=metadata.namespace,
                uid=metadata.uid,
                resource_version=metadata.resource_version,
                creation_timestamp=metadata.creation_timestamp,
                deletion_timestamp=metadata.deletion_timestamp,
                labels=_one(metadata.labels, keys.ASSIGNED_NODE),
                annotations=self._annotations(metadata.annotations),
            ),
            spec=kube.PodSpec(
                node_name=pod.spec.node_name,
                priority=pod.spec.priority,
                init_containers=[self._container(c) for c in pod.init_containers] or None,
                containers=[self._container(c) for c in pod.app_containers],
            ),
            status=kube.PodStatus(
                phase=pod.status.phase,
                conditions=[c for c in pod.status.conditions or [] if c.type == "PodScheduled"] or None,
                init_container_statuses=pod.status.init_container_statuses,
            ),
        )

    def node(self, node: kube.Node) -> kube.Node:
        """Labels stay whole: they are selected by."""
        metadata = node.metadata
        return kube.Node(
            metadata=kube.Metadata(
                name=metadata.name,
                uid=metadata.uid,
                resource_version=metadata.resource_version,
                labels=metadata.labels,
                annotations=self._annotations(metadata.annotations),
            ),
            status=kube.NodeStatus(
                allocatable={k: v for k, v in (node.status.allocatable or {}).items() if k in self._managed},
                conditions=[c for c in node.status.conditions or [] if c.type == "Ready"],
            ),
        )

    def quota(self, quota: kube.ResourceQuota) -> kube.ResourceQuota:
        """Quotas are few and small."""
        return quota

    def _asks(self, pod: kube.Pod) -> bool:
        return any(
            name in self._managed
            for container in (*pod.init_containers, *pod.app_containers)
            if container.resources is not None
            for table in (container.resources.limits, container.resources.requests)
            for name in table or ()
        )

    def _is_annotated(self, pod: kube.Pod) -> bool:
        annotations = pod.metadata.annotations
        return annotations is not None and (
            keys.ASSIGNED_NODE in annotations or not self._allocated_keys.isdisjoint(annotations)
        )

    def _annotations(self, annotations: dict[str, str] | None) -> dict[str, str] | None:
        if annotations is None:
            return None
        return {key: value for key, value in annotations.items() if key in self._kept} or None

    def _container(self, container: kube.Container) -> kube.Container:
        resources = container.resources
        if resources is not None:
            resources = kube.Resources(limits=self._table(resources.limits), requests=self._table(resources.requests))
        return kube.Container(name=container.name, restart_policy=container.restart_policy, resources=resources)

    def _table(self, table: dict[str, str | int | float] | None) -> dict[str, str | int | float] | None:
        return {name: value for name, value in (table or {}).items() if name in self._managed} or None


def _one(table: dict[str, str] | None, key: str) -> dict[str, str] | None:
    return {key: table[key]} if table is not None and key in table else None
