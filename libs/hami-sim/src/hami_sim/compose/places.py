"""Where compose.yaml mounts its volumes, and the names by which its containers find each other."""

from __future__ import annotations

from pathlib import Path

from hami_sim.controlplane.layout import CertificateFiles

CLUSTER = Path("/cluster")
"""State directory of the control plane: authorities, certificates, kubeconfigs. Seen by it and by nodes."""
SCHEDULER = Path("/scheduler")
"""What the schedulers, and the forwarder to them, may see."""
WEBHOOK = Path("/webhook")
"""What the webhook may see."""
NODES_ROOT = Path("/n")
"""The node's own folder. Short, as unix sockets lie in it."""
PROGRAMS = Path("/opt/hami/libvgpu")
OBJECTS = Path("/opt/hami/k8s/base")

NAMESPACE = "hami-system"
APISERVER_URL = "https://kube-apiserver:6443"
EXTENDER_URL = "https://forwarder:9398"
WEBHOOK_URL = "https://webhook:9443/webhook"
NATS_URL = "nats://nats:4222"
SERVER_NAMES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
EXTENDER_NAME = "hami-scheduler"
"""In the extender's certificate; whichever replica answers, and through whatever forwards to it."""


def serving_files(volume: Path) -> CertificateFiles:
    """Certificate that a service serves with, in its own volume."""
    return CertificateFiles(volume / "serving.crt", volume / "serving.key")


def client_ca(volume: Path) -> Path:
    """Authority of the clients that a service answers."""
    return volume / "client-ca.crt"


def kubeconfig(volume: Path) -> Path:
    """Kubeconfig of a service's account, in its own volume."""
    return volume / "kubeconfig"
