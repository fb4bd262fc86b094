"""The state directory of one control plane: every path in it, named once.

kubeconfig               of the administrator, for plain kubectl
cluster.json             ports, settings, paths of the programs
pki/                     certificates and keys
kubeconfigs/             one per program
config/                  kube-scheduler's configuration
etcd/                    data
logs/, run/              a log and a process file per program
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

PRIVATE_DIRECTORY_MODE = 0o700
PRIVATE_FILE_MODE = 0o600


class CertificateFiles(NamedTuple):
    """Paths of a PEM certificate and its PEM key."""

    certificate: Path
    key: Path


class StateLayout:
    """Paths below one state directory; nothing is created by asking for them."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.kubeconfig = self.root / "kubeconfig"
        self.record_file = self.root / "cluster.json"
        self.pki = self.root / "pki"
        self.cluster_ca = self.certificate("ca")
        self.etcd_ca = self.certificate("etcd-ca")
        self.service_account_key = self.pki / "service-account.key"
        self.service_account_public_key = self.pki / "service-account.pub"
        self.scheduler_config = self.root / "config" / "kube-scheduler.json"
        self.etcd_data = self.root / "etcd"
        self.run = self.root / "run"

    def certificate(self, name: str) -> CertificateFiles:
        """Where the certificate called `name` and its key lie."""
        return CertificateFiles(self.pki / f"{name}.crt", self.pki / f"{name}.key")

    def issued_certificate(self, name: str) -> CertificateFiles:
        """Where a certificate lies that was issued for `name`, a user or a server outside the control plane."""
        return self.certificate(issued_name(name))

    def component_kubeconfig(self, name: str) -> Path:
        """Kubeconfig of a program, such as `kube-scheduler`."""
        return self.root / "kubeconfigs" / f"{name}.kubeconfig"

    def log(self, name: str) -> Path:
        """Log file of a program."""
        return self.root / "logs" / f"{name}.log"

    def process_file(self, name: str) -> Path:
        """Process file of a program."""
        return self.run / f"{name}.json"

    def create_directories(self) -> None:
        """Makes the directories, closed to other users as they hold keys."""
        folders = (self.root, self.pki, self.root / "kubeconfigs", self.root / "config", self.root / "logs", self.run)
        for folder in (*folders, self.etcd_data):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(PRIVATE_DIRECTORY_MODE)


def issued_name(name: str) -> str:
    """A file name of its own for what is issued for `name`, apart from what the control plane itself uses."""
    return "issued-" + name.replace("/", "_").replace(":", "_")


def write_private(path: Path, content: bytes) -> None:
    """Replaces a file in one step, readable by its owner alone."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.touch(mode=PRIVATE_FILE_MODE)
    temporary.write_bytes(content)
    temporary.replace(path)
