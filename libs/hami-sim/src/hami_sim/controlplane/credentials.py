"""Every key, certificate and kubeconfig of a local cluster, and new ones on request."""

from __future__ import annotations

from pathlib import Path

from hami_sim.controlplane.arguments import KUBERNETES_SERVICE_IP
from hami_sim.controlplane.kubeconfig import BearerToken, ClientCertificate, kubeconfig_document
from hami_sim.controlplane.layout import CertificateFiles, StateLayout, issued_name, write_private
from hami_sim.controlplane.pki import CertificateAuthority, Identity, new_signing_key

ADMIN = Identity("hami-sim-admin", ("system:masters",))
KUBELET_CLIENT = Identity("kube-apiserver-kubelet-client")
COMPONENTS = {
    "kube-controller-manager": Identity("system:kube-controller-manager"),
    "kube-scheduler": Identity("system:kube-scheduler"),
}
LOOPBACK_NAMES = ("localhost", "127.0.0.1")
APISERVER_NAMES = (
    *LOOPBACK_NAMES,
    KUBERNETES_SERVICE_IP,
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


class Credentials:
    """The credentials in one state directory. The authorities and the signing key are kept from an earlier start.

    `server_names`: names beside loopback's by which the programs are reached, where they run on different hosts.
    """

    def __init__(self, layout: StateLayout, apiserver_url: str, *, server_names: tuple[str, ...] = ()) -> None:
        self._layout = layout
        self._apiserver_url = apiserver_url
        self._server_names = server_names
        self._cluster_ca = CertificateAuthority.load_or_create(layout.cluster_ca, "hami-sim")
        self._etcd_ca = CertificateAuthority.load_or_create(layout.etcd_ca, "hami-sim-etcd")

    @property
    def admin(self) -> CertificateFiles:
        """The administrator's client certificate."""
        return self._layout.certificate("admin")

    def write_all(self) -> None:
        """Writes what the programs and the administrator need, leaf certificates anew."""
        layout = self._layout
        if not layout.service_account_key.exists():
            private_pem, public_pem = new_signing_key()
            write_private(layout.service_account_public_key, public_pem)
            write_private(layout.service_account_key, private_pem)
        self._etcd_ca.issue_server(
            layout.certificate("etcd-server"), "etcd", (*LOOPBACK_NAMES, *self._server_names), also_client=True
        )
        self._etcd_ca.issue_client(layout.certificate("apiserver-etcd-client"), Identity("kube-apiserver"))
        self._cluster_ca.issue_server(
            layout.certificate("apiserver"), "kube-apiserver", (*APISERVER_NAMES, *self._server_names)
        )
        self._cluster_ca.issue_client(layout.certificate("apiserver-kubelet-client"), KUBELET_CLIENT)
        for name, identity in COMPONENTS.items():
            self._cluster_ca.issue_server(layout.certificate(name), name, (*LOOPBACK_NAMES, *self._server_names))
            self._write_kubeconfig(layout.component_kubeconfig(name), identity, f"{name}-client")
        self._write_kubeconfig(layout.kubeconfig, ADMIN, "admin")

    def write_user_kubeconfig(self, path: Path, user: str, groups: tuple[str, ...], namespace: str) -> None:
        """Writes a kubeconfig for a user of these groups, such as `system:node:a` of `system:nodes`."""
        self._write_kubeconfig(path, Identity(user, groups), issued_name(user), namespace)

    def write_token_kubeconfig(self, path: Path, user: str, token: str, namespace: str) -> None:
        """Writes a kubeconfig that logs in with a token."""
        document = kubeconfig_document(
            self._apiserver_url, self._cluster_ca.certificate_pem, user, BearerToken(token), namespace=namespace
        )
        write_private(path, document)

    def issue_serving(self, name: str, alternative_names: tuple[str, ...]) -> CertificateFiles:
        """A serving certificate of the cluster's authority, such as for a webhook or a kubelet."""
        return self._cluster_ca.issue_server(self._layout.issued_certificate(name), name, alternative_names)

    def issue_client(self, name: str, identity: Identity) -> CertificateFiles:
        """A client certificate of the cluster's authority."""
        return self._cluster_ca.issue_client(self._layout.issued_certificate(name), identity)

    def _write_kubeconfig(
        self, path: Path, identity: Identity, certificate_name: str, namespace: str = "default"
    ) -> None:
        files = self._cluster_ca.issue_client(self._layout.certificate(certificate_name), identity)
        document = kubeconfig_document(
            self._apiserver_url,
            self._cluster_ca.certificate_pem,
            identity.user,
            ClientCertificate(files.certificate.read_bytes(), files.key.read_bytes()),
            namespace=namespace,
        )
        write_private(path, document)
