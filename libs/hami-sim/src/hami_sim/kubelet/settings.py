"""Settings of the kubelet stand-in."""

from typing import Literal

import msgspec

ContainerMode = Literal["namespace", "prefix"]
"""How a container's file system is made: a mount namespace of its own, or host paths written into its process."""


class DriverSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the simulated runtime hands to a container that may see cards."""

    library_dir: str
    """Folder of libcuda.so.1 and libnvidia-ml.so.1; goes in front of LD_LIBRARY_PATH."""

    environment: dict[str, str] = {}
    """Variables the driver needs, such as the path of its description. Set in every container that sees a card."""

    visible_variable: str = "HAMI_SIM_VISIBLE_DEVICES"
    """Variable that carries the visible cards to the driver: UUIDs or indexes, comma separated, or `all`."""

    shared_paths: tuple[str, ...] = ()
    """Host files and folders that processes of all containers share with the driver, bound at the same path."""


class KubeletSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One simulated node."""

    node_name: str
    root_dir: str
    """Takes the place of /var/lib/kubelet. Keep it short: a unix socket's path has at most 107 bytes."""

    mode: Literal["namespace", "prefix", "auto"] = "auto"
    """`auto` takes `namespace` where the machine allows it, and the choice is announced."""

    driver: DriverSettings | None = None
    """None: a machine without cards; NVIDIA_VISIBLE_DEVICES then means nothing."""

    programs_dirs: tuple[str, ...] = ()
    """Stand for the image: folders in front of every container's PATH."""

    cdi_dirs: tuple[str, ...] = ("/etc/cdi", "/var/run/cdi")
    """CDI specification folders; the later one wins."""

    node_address: str = "127.0.0.1"
    """Address of the node in its status; the API server dials it for logs."""

    capacity: dict[str, str] = msgspec.field(
        default_factory=lambda: {"cpu": "32", "memory": "256Gi", "pods": "110", "ephemeral-storage": "500Gi"}
    )
    """Resources of the node other than those of device plugins."""

    labels: dict[str, str] = {}
    """Set on the Node in addition to the kubernetes.io ones."""

    runtime_version: str = "containerd://2.4.2"
    """What the node says its runtime is; programs decide by it whether CDI is honoured."""

    kubelet_version: str = "v1.37.2"

    nvidia_runtime: bool = True
    """The runtime turns NVIDIA_VISIBLE_DEVICES into visible cards, as NVIDIA's runtime handler does. CDI device nodes
    make cards visible in any case."""

    time_scale: float = 1.0
    """Factor on kubelet's own delays: crash-loop back-off (10 s to 300 s), retry of a failed start (10 s)."""

    admits_started_pods_anew: bool = False
    """After its restart, as a real kubelet does: a pod of which a container with devices does not run just then is
    refused for good unless the plugin has registered again. False: a pod of which any container was started goes on."""

    lease_duration_seconds: int = 40
    lease_renew_seconds: float = 10.0

    status_resync_seconds: float = 300.0
    """How often the node's status is written without a change."""

    reconcile_seconds: float = 5.0
    """A pod's Ready condition that differs from ours this long after we wrote it is written again."""

    graceful_floor_seconds: float = 2.0
    """Grace for a pod that was deleted without any."""


class LogServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where container logs are served for the API server; the port is the system's choice."""

    address: str = "127.0.0.1"
    """The nodes' addresses must lead here."""

    certificate: str = ""
    """PEM file of a certificate that the API server accepts from kubelets. Empty: plain HTTP, `kubectl logs` fails."""

    key: str = ""
    """PEM file."""
