"""Command lines of the control plane's programs."""

from __future__ import annotations

from pathlib import Path

from hami_sim.controlplane.layout import CertificateFiles, StateLayout
from hami_sim.controlplane.settings import ControlPlaneSettings, Ports

SERVICE_ACCOUNT_ISSUER = "https://kubernetes.default.svc"
SERVICE_NETWORK = "10.96.0.0/16"
KUBERNETES_SERVICE_IP = "10.96.0.1"


def etcd_arguments(program: Path, layout: StateLayout, ports: Ports) -> list[str]:
    """etcd with one member; clients need a certificate of etcd's own authority."""
    client = f"https://127.0.0.1:{ports.etcd_client}"
    peer = f"https://127.0.0.1:{ports.etcd_peer}"
    server = layout.certificate("etcd-server")
    ca = layout.etcd_ca.certificate
    return [
        str(program),
        "--name=local",
        f"--data-dir={layout.etcd_data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=local={peer}",
        f"--cert-file={server.certificate}",
        f"--key-file={server.key}",
        "--client-cert-auth",
        f"--trusted-ca-file={ca}",
        f"--peer-cert-file={server.certificate}",
        f"--peer-key-file={server.key}",
        "--peer-client-cert-auth",
        f"--peer-trusted-ca-file={ca}",
        # Survives a killed process, not a power cut: right for a local cluster, and much faster on a slow disk.
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def apiserver_arguments(program: Path, layout: StateLayout, ports: Ports, settings: ControlPlaneSettings) -> list[str]:
    """kube-apiserver with Node and RBAC authorization."""
    etcd_client = layout.certificate("apiserver-etcd-client")
    kubelet_client = layout.certificate("apiserver-kubelet-client")
    arguments = [
        str(program),
        f"--etcd-servers=https://127.0.0.1:{ports.etcd_client}",
        f"--etcd-cafile={layout.etcd_ca.certificate}",
        f"--etcd-certfile={etcd_client.certificate}",
        f"--etcd-keyfile={etcd_client.key}",
        *_serving(layout.certificate("apiserver"), ports.apiserver),
        "--advertise-address=127.0.0.1",
        # An Endpoints object may not hold a loopback address.
        "--endpoint-reconciler-type=none",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        f"--client-ca-file={layout.cluster_ca.certificate}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--service-account-issuer={SERVICE_ACCOUNT_ISSUER}",
        f"--service-account-key-file={layout.service_account_public_key}",
        f"--service-account-signing-key-file={layout.service_account_key}",
        f"--kubelet-certificate-authority={layout.cluster_ca.certificate}",
        f"--kubelet-client-certificate={kubelet_client.certificate}",
        f"--kubelet-client-key={kubelet_client.key}",
        "--kubelet-preferred-address-types=InternalIP,Hostname",
        "--allow-privileged=true",
        "--profiling=false",
    ]
    if not settings.controllers:
        # Nobody would lift the taint that this plugin puts on new nodes.
        arguments.append("--disable-admission-plugins=TaintNodesByCondition")
    return [*arguments, *settings.extra_apiserver_arguments]


def controller_manager_arguments(
    program: Path, layout: StateLayout, ports: Ports, settings: ControlPlaneSettings
) -> list[str]:
    """kube-controller-manager; each controller uses a service account of its own."""
    return [
        str(program),
        *_serving(layout.certificate("kube-controller-manager"), ports.controller_manager),
        *_kubeconfigs(layout.component_kubeconfig("kube-controller-manager")),
        f"--kubeconfig={layout.component_kubeconfig('kube-controller-manager')}",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={layout.service_account_key}",
        f"--root-ca-file={layout.cluster_ca.certificate}",
        f"--cluster-signing-cert-file={layout.cluster_ca.certificate}",
        f"--cluster-signing-key-file={layout.cluster_ca.key}",
        "--profiling=false",
        *settings.extra_controller_manager_arguments,
    ]


def scheduler_arguments(program: Path, layout: StateLayout, ports: Ports) -> list[str]:
    """kube-scheduler; the rest is in its configuration file."""
    return [
        str(program),
        *_serving(layout.certificate("kube-scheduler"), ports.scheduler),
        *_kubeconfigs(layout.component_kubeconfig("kube-scheduler")),
        f"--config={layout.scheduler_config}",
    ]


def _serving(certificate: CertificateFiles, port: int) -> list[str]:
    return [
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={certificate.certificate}",
        f"--tls-private-key-file={certificate.key}",
    ]


def _kubeconfigs(kubeconfig: Path) -> list[str]:
    return [f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}"]
