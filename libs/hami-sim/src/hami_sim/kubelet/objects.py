"""Kubernetes objects as far as a kubelet reads them.

Unknown fields are ignored. Parts that the stand-in does not act on, but must notice, are kept as `Raw` and only asked
whether they are there.
"""

from typing import Any

import msgspec


class ObjectMeta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None


class ObjectFieldSelector(msgspec.Struct, rename="camel"):
    field_path: str


class KeySelector(msgspec.Struct, rename="camel"):
    """Of a ConfigMap or a Secret."""

    key: str
    name: str = ""
    optional: bool = False


class EnvVarSource(msgspec.Struct, rename="camel"):
    field_ref: ObjectFieldSelector | None = None
    config_map_key_ref: KeySelector | None = None
    secret_key_ref: KeySelector | None = None
    resource_field_ref: dict[str, Any] | None = None
    file_key_ref: dict[str, Any] | None = None


class EnvVar(msgspec.Struct, rename="camel"):
    name: str
    value: str = ""
    value_from: EnvVarSource | None = None


class SourceRef(msgspec.Struct, rename="camel"):
    name: str = ""
    optional: bool = False


class EnvFromSource(msgspec.Struct, rename="camel"):
    prefix: str = ""
    config_map_ref: SourceRef | None = None
    secret_ref: SourceRef | None = None


class VolumeMount(msgspec.Struct, rename="camel"):
    name: str
    mount_path: str
    sub_path: str = ""
    sub_path_expr: str = ""
    read_only: bool = False


class ResourceRequirements(msgspec.Struct, rename="camel"):
    limits: dict[str, str | int] = {}
    requests: dict[str, str | int] = {}


class Container(msgspec.Struct, rename="camel"):
    name: str
    image: str = ""
    command: list[str] = []
    args: list[str] = []
    working_dir: str = ""
    env: list[EnvVar] = []
    env_from: list[EnvFromSource] = []
    resources: ResourceRequirements = msgspec.field(default_factory=ResourceRequirements)
    volume_mounts: list[VolumeMount] = []
    restart_policy: str | None = None
    liveness_probe: dict[str, Any] | None = None
    readiness_probe: dict[str, Any] | None = None
    startup_probe: dict[str, Any] | None = None
    lifecycle: dict[str, Any] | None = None

    @property
    def is_sidecar(self) -> bool:
        """Meaningful for init containers only: the API server allows the field nowhere else with this value."""
        return self.restart_policy == "Always"


class KeyToPath(msgspec.Struct, rename="camel"):
    key: str
    path: str


class HostPathVolume(msgspec.Struct, rename="camel"):
    path: str
    type: str = ""


class ConfigMapVolume(msgspec.Struct, rename="camel"):
    name: str = ""
    items: list[KeyToPath] = []
    optional: bool = False


class SecretVolume(msgspec.Struct, rename="camel"):
    secret_name: str = ""
    items: list[KeyToPath] = []
    optional: bool = False


class Volume(msgspec.Struct, rename="camel"):
    name: str
    empty_dir: dict[str, Any] | None = None
    host_path: HostPathVolume | None = None
    config_map: ConfigMapVolume | None = None
    secret: SecretVolume | None = None
    projected: dict[str, Any] | None = None


class PodSpec(msgspec.Struct, rename="camel"):
    containers: list[Container] = []
    init_containers: list[Container] = []
    node_name: str = ""
    restart_policy: str = "Always"
    termination_grace_period_seconds: int = 30
    active_deadline_seconds: int | None = None
    service_account_name: str = ""
    runtime_class_name: str | None = None
    volumes: list[Volume] = []


class PodStatus(msgspec.Struct, rename="camel"):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    start_time: str | None = None
    conditions: list[dict[str, Any]] = []


class Pod(msgspec.Struct, rename="camel"):
    metadata: ObjectMeta
    spec: PodSpec
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def key(self) -> str:
        """For messages and logs."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def is_terminal(self) -> bool:
        """The phase says that nothing of it runs any more."""
        return self.status.phase in ("Succeeded", "Failed")

    def in_start_order(self) -> list[Container]:
        """Init containers first, each list in spec order."""
        return [*self.spec.init_containers, *self.spec.containers]


class ConfigMap(msgspec.Struct, rename="camel"):
    metadata: ObjectMeta
    data: dict[str, str] = {}
    binary_data: dict[str, str] = {}


class Secret(msgspec.Struct, rename="camel"):
    metadata: ObjectMeta
    data: dict[str, str] = {}
    """Values in base64."""


_POD = msgspec.json.Decoder(Pod)


def decode_pod(raw: bytes) -> Pod:
    """Raises msgspec.DecodeError (ValidationError is one) for what is no pod."""
    return _POD.decode(raw)
