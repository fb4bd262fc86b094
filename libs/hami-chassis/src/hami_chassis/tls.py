"""A TLS server context that follows its files: a renewed certificate is served without a restart."""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path

import msgspec

from hami_chassis.clock import Clock
from hami_chassis.errors import Permanent
from hami_chassis.log import get_logger

log = get_logger("tls")


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files of a TLS server."""

    cert_file: str = ""
    """PEM file with the certificate chain. Empty: no TLS."""
    key_file: str = ""
    """PEM file with the private key."""
    client_ca_file: str = ""
    """PEM file; when set, only clients with a certificate of one of these authorities are served."""
    reload_seconds: float = 10.0
    """How often the files are looked at. Mounted secrets change by a renamed link, which no watch sees reliably."""

    @property
    def enabled(self) -> bool:
        return bool(self.cert_file)


class CertificateUnusable(Permanent):
    """The files do not make a certificate that can be served."""


class ReloadingTls:
    """Holds the context for the server and renews what is in it.

    A new certificate and additional client authorities take effect for new connections. An authority that was
    removed from the file stays trusted until the process restarts (OpenSSL cannot forget one); that is logged.
    """

    def __init__(self, settings: TlsSettings, *, clock: Clock) -> None:
        """Raises CertificateUnusable when the files cannot be used now."""
        self._settings = settings
        self._clock = clock
        self._loaded = self._fingerprint()
        self.context = _server_context(settings)

    async def run(self) -> None:
        """Root task: looks at the files for ever."""
        while True:
            await self._clock.sleep(self._settings.reload_seconds)
            self.reload_if_changed()

    def reload_if_changed(self) -> bool:
        """True when something new was loaded. Files that do not fit together keep the old ones in use."""
        try:
            found = self._fingerprint()
            if found == self._loaded:
                return False
            _server_context(self._settings)  # proves the files before the context in use is touched
        except CertificateUnusable as error:
            log.warning("certificate-not-reloaded", error=str(error))
            return False
        self.context.load_cert_chain(self._settings.cert_file, self._settings.key_file)
        if self._settings.client_ca_file:
            if found[2] != self._loaded[2]:
                log.info("client-authorities-added", note="removed ones stay trusted until a restart")
            self.context.load_verify_locations(self._settings.client_ca_file)
        self._loaded = found
        log.info("certificate-reloaded", cert_file=self._settings.cert_file)
        return True

    def _fingerprint(self) -> tuple[bytes, bytes, bytes]:
        names = (self._settings.cert_file, self._settings.key_file, self._settings.client_ca_file)
        try:
            first, second, third = (hashlib.sha256(Path(name).read_bytes()).digest() if name else b"" for name in names)
        except OSError as error:
            raise CertificateUnusable(f"cannot read {error.filename}: {error.strerror}") from error
        return first, second, third


def _server_context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.cert_file, settings.key_file)
        if settings.client_ca_file:
            context.load_verify_locations(settings.client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise CertificateUnusable(
            f"certificate {settings.cert_file} with key {settings.key_file} cannot be served: {error}; "
            "write both files of the same pair"
        ) from error
    return context
