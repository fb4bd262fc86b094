"""Where the API server is and who we are: in-cluster files, or a kubeconfig.

The plain ways (token, token file, client certificate) are read here. kubernetes-asyncio is loaded only for a
kubeconfig with an exec plugin or an auth provider: its import alone takes 70 MiB and seconds, which every process of
every node would pay.
"""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
import yaml

from hami_chassis.clock import Clock
from hami_chassis.errors import Permanent

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_LIFE_SECONDS = 60.0  # kubelet renews a token long before it ends; a minute is what client-go waits, too


class CredentialsUnusable(Permanent):
    """No way to the API server could be made of what is there."""


class Authorization(Protocol):
    """Answers the value of the Authorization header, or nothing."""

    async def header(self) -> str | None: ...


class StaticAuthorization:
    """Always the same header, or none (client certificates)."""

    def __init__(self, value: str | None = None) -> None:
        self._value = value

    async def header(self) -> str | None:
        return self._value


class TokenFile:
    """A bearer token in a file that is renewed from outside."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._token = ""
        self._read_at = float("-inf")

    async def header(self) -> str | None:
        """Raises CredentialsUnusable when the file cannot be read and no token is known."""
        if self._clock.monotonic() - self._read_at >= _TOKEN_LIFE_SECONDS:
            self._refresh()
        return f"Bearer {self._token}"

    def _refresh(self) -> None:
        try:
            self._token = self._path.read_text().strip() or self._token
        except OSError as error:
            if not self._token:
                raise CredentialsUnusable(f"token file {self._path}: {error.strerror}") from error
        if not self._token:
            raise CredentialsUnusable(f"token file {self._path} is empty")
        self._read_at = self._clock.monotonic()


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A reachable API server."""

    url: str
    authorization: Authorization
    tls: ssl.SSLContext | None = None
    server_hostname: str | None = None
    proxy: str | None = None


async def find_endpoint(
    *, kubeconfig: str, context: str, clock: Clock, environment: Mapping[str, str] = os.environ
) -> Endpoint:
    """The named kubeconfig, else the one of $KUBECONFIG, else the cluster this pod runs in.

    A kubeconfig that starts with `http://` or `https://` is taken as the plain address of a server.
    Raises CredentialsUnusable with what is missing.
    """
    if kubeconfig.startswith(("http://", "https://")):
        return Endpoint(url=kubeconfig.rstrip("/"), authorization=StaticAuthorization())
    path = kubeconfig or environment.get("KUBECONFIG", "")
    if path:
        return await _from_kubeconfig(Path(path), context, clock)
    if environment.get("KUBERNETES_SERVICE_HOST"):
        return _in_cluster(environment, clock)
    raise CredentialsUnusable("no API server is known: set kube.kubeconfig or KUBECONFIG, or run inside a cluster")


def _in_cluster(environment: Mapping[str, str], clock: Clock) -> Endpoint:
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment.get("KUBERNETES_SERVICE_PORT", "443")
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return Endpoint(
        url=f"https://{authority}",
        authorization=TokenFile(_SERVICE_ACCOUNT / "token", clock),
        tls=_client_tls(ca_file=str(_SERVICE_ACCOUNT / "ca.crt")),
    )


class _Kubeconfig:
    """One context of a kubeconfig file."""

    def __init__(self, path: Path, context: str) -> None:
        self.path = path
        try:
            document = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise CredentialsUnusable(f"kubeconfig {path}: {error.strerror}") from error
        except yaml.YAMLError as error:
            raise CredentialsUnusable(f"kubeconfig {path} is not YAML: {' '.join(str(error).split())}") from error
        if not isinstance(document, dict):
            raise CredentialsUnusable(f"kubeconfig {path} is not a mapping")
        name = context or document.get("current-context") or ""
        chosen = self._entry(document, "contexts", "context", name)
        self.cluster = self._entry(document, "clusters", "cluster", str(chosen.get("cluster", "")))
        user = str(chosen.get("user", ""))
        self.user = self._entry(document, "users", "user", user) if user else {}

    def _entry(self, document: dict[str, Any], plural: str, singular: str, name: str) -> dict[str, Any]:
        for entry in document.get(plural) or []:
            if isinstance(entry, dict) and entry.get("name") == name:
                return entry.get(singular) or {}
        raise CredentialsUnusable(f"kubeconfig {self.path}: {plural} has no entry named {name!r}")

    def data(self, group: dict[str, Any], key: str) -> bytes | None:
        """The content of `key-data` (base64) or of the file named by `key`."""
        inline = group.get(f"{key}-data")
        if inline:
            return base64.b64decode(str(inline))
        name = group.get(key)
        if not name:
            return None
        try:
            return (self.path.parent / str(name)).read_bytes()
        except OSError as error:
            raise CredentialsUnusable(f"kubeconfig {self.path}: {key} {name}: {error.strerror}") from error


async def _from_kubeconfig(path: Path, context: str, clock: Clock) -> Endpoint:
    config = await asyncio.to_thread(_Kubeconfig, path, context)
    cluster, user = config.cluster, config.user
    url = str(cluster.get("server", "")).rstrip("/")
    if not url:
        raise CredentialsUnusable(f"kubeconfig {path}: the cluster has no server")
    authorization: Authorization
    if "exec" in user or "auth-provider" in user:
        from hami_chassis.kube.plugin_credentials import PluginAuthorization  # noqa: PLC0415  # heavy import

        authorization = await PluginAuthorization.load(path, context, clock)
    elif user.get("token"):
        authorization = StaticAuthorization(f"Bearer {user['token']}")
    elif user.get("tokenFile"):
        authorization = TokenFile(path.parent / str(user["tokenFile"]), clock)
    elif user.get("username"):
        pair = f"{user['username']}:{user.get('password', '')}".encode()
        authorization = StaticAuthorization("Basic " + base64.b64encode(pair).decode())
    else:
        authorization = StaticAuthorization()
    tls = None
    if url.startswith("https://"):
        tls = _client_tls(
            ca=config.data(cluster, "certificate-authority"),
            certificate=config.data(user, "client-certificate"),
            key=config.data(user, "client-key"),
            verify=not cluster.get("insecure-skip-tls-verify", False),
        )
    return Endpoint(
        url=url,
        authorization=authorization,
        tls=tls,
        server_hostname=cluster.get("tls-server-name"),
        proxy=cluster.get("proxy-url"),
    )


def _client_tls(
    *,
    ca_file: str | None = None,
    ca: bytes | None = None,
    certificate: bytes | None = None,
    key: bytes | None = None,
    verify: bool = True,
) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file, cadata=ca.decode() if ca else None)
        if certificate is not None and key is not None:
            _load_pair(context, certificate, key)
    except (OSError, ssl.SSLError, UnicodeDecodeError) as error:
        raise CredentialsUnusable(f"certificates for the API server cannot be used: {error}") from error
    # Cluster authorities of older installers lack extensions that strict checking wants.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """The ssl module reads certificates from files only."""
    with tempfile.TemporaryDirectory() as folder:
        certificate_file, key_file = Path(folder, "tls.crt"), Path(folder, "tls.key")
        for file, content in ((certificate_file, certificate), (key_file, key)):
            file.touch(mode=0o600)
            file.write_bytes(content)
        context.load_cert_chain(certificate_file, key_file)
