"""Real servers on loopback for the tests of the chassis."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hami_chassis.metrics import ChassisMetrics
from hami_sim.loopback_ports import choose_free_ports
from prometheus_client import CollectorRegistry


class Authority:
    """A certificate authority for tests."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._sign(self._name, self._key, authority=True)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str, folder: Path) -> tuple[Path, Path]:
        """Writes `<name>.crt` and `<name>.key`."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate_file, key_file = folder / f"{name}.crt", folder / f"{name}.key"
        certificate_file.write_bytes(self._sign(subject, key).public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return certificate_file, key_file

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, authority: bool = False
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )


class NatsServer:
    """A nats-server with JetStream that can be stopped, and started again with or without its data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._generation = 0
        (self.port,) = choose_free_ports(1)
        self.credentials: dict[str, str] = {}
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def start(self, *, keep_data: bool = True, options: tuple[str, ...] = ()) -> None:
        if not keep_data:
            self._generation += 1
        data = self._folder / f"data-{self._generation}"
        binary = Path(sys.executable).with_name("nats-server")
        self._process = await asyncio.create_subprocess_exec(
            str(binary), "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(data), *options,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                assert self._process.returncode is None, "nats-server ended while it was starting"
                await asyncio.sleep(0.01)
                continue
            writer.close()
            await writer.wait_closed()
            return

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        self._process = None


@pytest.fixture
async def nats_server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """Not started yet."""
    server = NatsServer(tmp_path)
    yield server
    await server.stop()


@pytest.fixture
def metrics() -> ChassisMetrics:
    return ChassisMetrics(CollectorRegistry())


@pytest.fixture
def new_authority() -> type[Authority]:
    return Authority
