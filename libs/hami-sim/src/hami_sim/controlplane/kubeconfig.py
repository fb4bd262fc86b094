"""Kubeconfig documents. They are JSON, which every reader of YAML takes, with certificates inside."""

from __future__ import annotations

import base64
from typing import NamedTuple

import msgspec


class ClientCertificate(NamedTuple):
    """PEM certificate and key that a client shows."""

    certificate_pem: bytes
    key_pem: bytes


class BearerToken(NamedTuple):
    """A token that a client sends, such as one of a service account."""

    token: str


def kubeconfig_document(
    server_url: str,
    ca_certificate_pem: bytes,
    user: str,
    credential: ClientCertificate | BearerToken,
    *,
    namespace: str = "default",
    cluster: str = "hami-sim",
) -> bytes:
    """A kubeconfig with one cluster, one user and one context, as bytes to write."""
    match credential:
        case ClientCertificate(certificate_pem, key_pem):
            login = {
                "client-certificate-data": _base64(certificate_pem),
                "client-key-data": _base64(key_pem),
            }
        case BearerToken(token):
            login = {"token": token}
    context = f"{user}@{cluster}"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": cluster,
                "cluster": {
                    "server": server_url,
                    "certificate-authority-data": _base64(ca_certificate_pem),
                },
            }
        ],
        "users": [{"name": user, "user": login}],
        "contexts": [{"name": context, "context": {"cluster": cluster, "user": user, "namespace": namespace}}],
        "current-context": context,
    }
    return msgspec.json.format(msgspec.json.encode(document))


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
