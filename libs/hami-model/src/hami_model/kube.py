"""Kubernetes objects reduced to the fields we read, decoded straight from JSON; other fields are skipped.

Collections may be `null` on the wire (Go writes nil slices and maps so): the properties give empty ones.
"""

from __future__ import annotations

from typing import Any

import msgspec


class _Object(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    pass


class OwnerReference(_Object, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Metadata(_Object, frozen=True):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None


class EnvVar(_Object, frozen=True):
    name: str = ""
    value: str | None = None
    value_from: dict[str, Any] | None = None


class Resources(_Object, frozen=True):
    """Quantities by resource name, as written (the API server turns numbers into text)."""

    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None

    def quantity(self, name: str) -> str | None:
        """The quantity of a resource: the limit, else the request, else None."""
        for table in (self.limits, self.requests):
            if table is not None and name in table:
                return str(table[name])
        return None

    def limit(self, name: str) -> str | None:
        return str(self.limits[name]) if self.limits is not None and name in self.limits else None


class SecurityContext(_Object, frozen=True):
    """Of a container, or of a pod, which is what its containers go by that say nothing themselves."""

    privileged: bool | None = None
    run_as_user: int | None = None
    run_as_group: int | None = None


class Container(_Object, frozen=True):
    name: str = ""
    resources: Resources | None = None
    restart_policy: str | None = None
    env: list[EnvVar] | None = None
    security_context: SecurityContext | None = None

    def quantity(self, resource: str) -> str | None:
        return self.resources.quantity(resource) if self.resources is not None else None

    @property
    def is_sidecar(self) -> bool:
        """Meaningful for init containers only: one that keeps running beside the app containers."""
        return self.restart_policy == "Always"


class SchedulingGroup(_Object, frozen=True):
    pod_group_name: str | None = None


class PodSpec(_Object, frozen=True):
    node_name: str = ""
    scheduler_name: str = ""
    runtime_class_name: str | None = None
    security_context: SecurityContext | None = None
    priority: int | None = None
    termination_grace_period_seconds: int | None = None
    init_containers: list[Container] | None = None
    containers: list[Container] | None = None
    scheduling_group: SchedulingGroup | None = None


class PodCondition(_Object, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class TerminatedState(_Object, frozen=True):
    exit_code: int = 0


class ContainerState(_Object, frozen=True):
    terminated: TerminatedState | None = None
    running: dict[str, Any] | None = None
    waiting: dict[str, Any] | None = None


class ContainerStatus(_Object, frozen=True):
    name: str = ""
    state: ContainerState | None = None
    restart_count: int = 0
    container_id: str = msgspec.field(default="", name="containerID")
    """`<runtime>://<id>`; empty until the runtime has made it."""


class PodStatus(_Object, frozen=True):
    phase: str = ""
    reason: str = ""
    conditions: list[PodCondition] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    container_statuses: list[ContainerStatus] | None = None


class Pod(_Object, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def annotations(self) -> dict[str, str]:
        return self.metadata.annotations or {}

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels or {}

    @property
    def init_containers(self) -> list[Container]:
        return self.spec.init_containers or []

    @property
    def app_containers(self) -> list[Container]:
        return self.spec.containers or []

    @property
    def all_containers(self) -> list[Container]:
        """Init containers first, then app containers: the order of slots in every device annotation."""
        return [*self.init_containers, *self.app_containers]

    @property
    def is_finished(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def is_terminating(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def assigned_node(self) -> str:
        """The node of the binding; for a pod that another scheduler only annotated, see `keys.ASSIGNED_NODE`."""
        return self.spec.node_name

    @property
    def one_shot_init_done(self) -> bool:
        """True when every one-shot init container has ended with success (sidecars are not waited for)."""
        one_shot = [c.name for c in self.init_containers if not c.is_sidecar]
        statuses = {s.name: s for s in self.status.init_container_statuses or []}
        for name in one_shot:
            status = statuses.get(name)
            if status is None or status.state is None or status.state.terminated is None:
                return False
            if status.state.terminated.exit_code != 0:
                return False
        return bool(one_shot)

    def condition(self, kind: str) -> PodCondition | None:
        return next((c for c in self.status.conditions or [] if c.type == kind), None)


class NodeCondition(_Object, frozen=True):
    type: str = ""
    status: str = ""
    last_transition_time: str | None = None


class NodeInfo(_Object, frozen=True):
    container_runtime_version: str = ""
    kubelet_version: str = ""


class NodeStatus(_Object, frozen=True):
    allocatable: dict[str, str | int | float] | None = None
    capacity: dict[str, str | int | float] | None = None
    conditions: list[NodeCondition] | None = None
    node_info: NodeInfo | None = None


class NodeSpec(_Object, frozen=True):
    unschedulable: bool = False


class Node(_Object, frozen=True):
    metadata: Metadata = Metadata()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def annotations(self) -> dict[str, str]:
        return self.metadata.annotations or {}

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels or {}

    @property
    def is_ready(self) -> bool:
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions or [])

    def allocatable(self, resource: str) -> str | None:
        table = self.status.allocatable
        return str(table[resource]) if table is not None and resource in table else None


class QuotaSpec(_Object, frozen=True):
    hard: dict[str, str | int | float] | None = None


class ResourceQuota(_Object, frozen=True):
    metadata: Metadata = Metadata()
    spec: QuotaSpec = QuotaSpec()

    @property
    def hard(self) -> dict[str, str]:
        return {name: str(value) for name, value in (self.spec.hard or {}).items()}
