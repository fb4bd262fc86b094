"""Certificates of a local cluster: two authorities (cluster, etcd), leaf certificates, the service account key.

etcd has an authority of its own: were it the cluster's, every client certificate of the cluster would open the store.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hami_sim.controlplane.layout import CertificateFiles, write_private

VALIDITY = datetime.timedelta(days=365)
# A certificate made a moment ago must be valid on a machine whose clock is a little behind.
CLOCK_SKEW = datetime.timedelta(minutes=5)


class Identity(NamedTuple):
    """Who a client certificate names: Kubernetes reads the common name as user, organizations as groups."""

    user: str
    groups: tuple[str, ...] = ()


class CertificateAuthority:
    """A certificate authority held in memory, its files at `files`."""

    def __init__(self, files: CertificateFiles, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.files = files
        self._certificate = certificate
        self._key = key

    @classmethod
    def load_or_create(cls, files: CertificateFiles, common_name: str) -> CertificateAuthority:
        """Reads the authority at these paths, or makes one there."""
        if files.certificate.exists() and files.key.exists():
            certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
            key = serialization.load_pem_private_key(files.key.read_bytes(), password=None)
            if not isinstance(key, ec.EllipticCurvePrivateKey):
                raise TypeError(f"{files.key} holds no elliptic curve key; remove {files.key.parent} and start again")
            return cls(files, certificate, key)
        key = _new_key()
        name = _name(common_name, ())
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
            decipher_only=False,
        )  # fmt: skip
        certificate = (
            _builder(name, name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        write_private(files.key, _key_pem(key))
        write_private(files.certificate, certificate.public_bytes(serialization.Encoding.PEM))
        return cls(files, certificate, key)

    @property
    def certificate_pem(self) -> bytes:
        """The authority's certificate."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue_client(self, files: CertificateFiles, identity: Identity) -> CertificateFiles:
        """Writes a client certificate of this identity."""
        return self._issue(files, _name(identity.user, identity.groups), (), (ExtendedKeyUsageOID.CLIENT_AUTH,))

    def issue_server(
        self, files: CertificateFiles, common_name: str, alternative_names: Sequence[str], *, also_client: bool = False
    ) -> CertificateFiles:
        """Writes a serving certificate for these DNS names and IP addresses."""
        usages = [ExtendedKeyUsageOID.SERVER_AUTH]
        if also_client:
            usages.append(ExtendedKeyUsageOID.CLIENT_AUTH)
        return self._issue(files, _name(common_name, ()), alternative_names, usages)

    def _issue(
        self,
        files: CertificateFiles,
        subject: x509.Name,
        alternative_names: Sequence[str],
        usages: Sequence[x509.ObjectIdentifier],
    ) -> CertificateFiles:
        key = _new_key()
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=False, crl_sign=False, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
            decipher_only=False,
        )  # fmt: skip
        builder = (
            _builder(subject, self._certificate.subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if alternative_names:
            names = [_general_name(name) for name in alternative_names]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        write_private(files.key, _key_pem(key))
        write_private(files.certificate, certificate.public_bytes(serialization.Encoding.PEM))
        return files


def new_signing_key() -> tuple[bytes, bytes]:
    """A new key that signs service account tokens: PEM of the private and of the public half."""
    key = _new_key()
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return _key_pem(key), public


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _name(common_name: str, organizations: Sequence[str]) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization) for organization in organizations]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + VALIDITY)
    )
