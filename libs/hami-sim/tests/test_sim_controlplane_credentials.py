"""Certificates of a local cluster: who they name, what they are good for, what survives a restart."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hami_sim.controlplane.credentials import Credentials
from hami_sim.controlplane.layout import CertificateFiles, StateLayout
from hami_sim.controlplane.rest import tls_context

URL = "https://127.0.0.1:3"


@pytest.fixture
def layout(tmp_path: Path) -> StateLayout:
    layout = StateLayout(tmp_path / "state")
    layout.create_directories()
    return layout


def read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def names(certificate: x509.Certificate) -> tuple[list[str | bytes], list[str | bytes]]:
    subject = certificate.subject
    return (
        [entry.value for entry in subject.get_attributes_for_oid(NameOID.COMMON_NAME)],
        [entry.value for entry in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)],
    )


def test_standard_identities(layout: StateLayout) -> None:
    Credentials(layout, URL).write_all()
    assert names(read(layout.certificate("admin").certificate)) == (["hami-sim-admin"], ["system:masters"])
    for name in ("kube-scheduler", "kube-controller-manager"):
        assert names(read(layout.certificate(f"{name}-client").certificate)) == ([f"system:{name}"], [])
        user = msgspec.json.decode(layout.component_kubeconfig(name).read_bytes())["users"][0]["name"]
        assert user == f"system:{name}"


def test_a_client_certificate_serves_nobody_and_the_store_trusts_none_of_the_cluster(layout: StateLayout) -> None:
    Credentials(layout, URL).write_all()
    admin = read(layout.certificate("admin").certificate)
    usage = admin.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert read(layout.cluster_ca.certificate).public_key() != read(layout.etcd_ca.certificate).public_key()
    assert admin.issuer == read(layout.cluster_ca.certificate).subject
    assert (
        read(layout.certificate("apiserver-etcd-client").certificate).issuer == read(layout.etcd_ca.certificate).subject
    )


def test_keys_are_readable_by_their_owner_alone(layout: StateLayout) -> None:
    Credentials(layout, URL).write_all()
    keys = [*layout.pki.iterdir(), layout.kubeconfig]
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}


def test_the_authority_and_the_token_key_survive_a_second_start(layout: StateLayout) -> None:
    Credentials(layout, URL).write_all()
    kept = (layout.cluster_ca.certificate, layout.etcd_ca.certificate, layout.service_account_key)
    before = [path.read_bytes() for path in kept]
    Credentials(layout, URL).write_all()
    assert [path.read_bytes() for path in kept] == before


def test_a_user_of_a_colon_name_does_not_overwrite_the_control_plane(layout: StateLayout) -> None:
    credentials = Credentials(layout, URL)
    credentials.write_all()
    before = {path: path.read_bytes() for path in layout.pki.iterdir()}
    kubeconfig = layout.root / "user.kubeconfig"
    credentials.write_user_kubeconfig(kubeconfig, "admin", ("system:nodes",), "default")
    assert {path: path.read_bytes() for path in before} == before
    assert names(read(layout.pki / "issued-admin.crt")) == (["admin"], ["system:nodes"])


def test_client_and_server_shake_hands(layout: StateLayout) -> None:
    credentials = Credentials(layout, URL)
    credentials.write_all()
    server_files = credentials.issue_serving("hook", ("localhost", "127.0.0.1"))
    assert handshake(layout, server_files, credentials.admin, "127.0.0.1") == "hami-sim-admin"


def handshake(layout: StateLayout, server: CertificateFiles, client: CertificateFiles, name: str) -> str:
    """Common name of the client as the server sees it after a real TLS handshake."""
    server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(layout.cluster_ca.certificate))
    server_tls.verify_mode = ssl.CERT_REQUIRED
    server_tls.load_cert_chain(server.certificate, server.key)
    one, other = socket.socketpair()
    seen: list[str] = []

    def serve() -> None:
        with server_tls.wrap_socket(one, server_side=True) as wrapped:
            peer = wrapped.getpeercert() or {}
            subject = dict(entry[0] for entry in peer["subject"])
            seen.append(subject["commonName"])
            wrapped.sendall(b"x")

    thread = threading.Thread(target=serve)
    thread.start()
    with tls_context(layout.cluster_ca, client).wrap_socket(other, server_hostname=name) as wrapped:
        assert wrapped.recv(1) == b"x"
    thread.join()
    return seen[0]
