"""How NATS is reached, and how much may wait for it."""

from __future__ import annotations

import ssl

import msgspec

from hami_chassis.errors import Permanent
from hami_chassis.settings import Secret


class BusSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How NATS is reached, and how much may wait for it."""

    servers: tuple[str, ...] = ("nats://127.0.0.1:4222",)
    """Addresses; `tls://` asks for TLS. Empty: no bus, and everything published is counted as dropped."""
    user: str = ""
    """NATS user; its permissions bound what this process may publish."""
    password: Secret = ""
    """Password of the user."""
    token: Secret = ""
    """Token, where the server wants one instead of a user."""
    tls_ca_file: str = ""
    """PEM file with the authorities of the server; empty takes those of the system."""
    tls_cert_file: str = ""
    """PEM file with the certificate by which this process shows itself."""
    tls_key_file: str = ""
    """PEM file with its key."""
    reconnect_seconds: float = 0.5
    """Pause between tries to connect."""
    outbox_max_messages: int = 50_000
    """How many events wait in memory while NATS is away; then the oldest are dropped."""
    outbox_max_bytes: int = 64 * 1024 * 1024
    """How many bytes of payload wait in memory while NATS is away."""
    batch_messages: int = 500
    """How many publications share one wait for acknowledgements."""
    ack_timeout_seconds: float = 5.0
    """How long an acknowledgement is waited for before the event is published again."""
    flush_seconds: float = 3.0
    """How long a stopping process still tries to publish what waits."""


class BusTlsUnusable(Permanent):
    """The certificate files for NATS cannot be used."""


def tls_context(settings: BusSettings) -> ssl.SSLContext | None:
    """The TLS context, where TLS is asked for. Raises BusTlsUnusable."""
    wanted = settings.tls_ca_file or settings.tls_cert_file
    if not wanted and not any(server.startswith("tls://") for server in settings.servers):
        return None
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca_file or None)
        if settings.tls_cert_file:
            context.load_cert_chain(settings.tls_cert_file, settings.tls_key_file)
    except (OSError, ssl.SSLError) as error:
        raise BusTlsUnusable(f"certificates for NATS cannot be used: {error}") from error
    return context
