"""The image that ours are built from: the official one, or where no image can be pulled one made of Debian packages.

The made one is imported from `<cache>/compose/base-<digest>.tar`, so that it is made once on a machine.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from engine import Progress, UnavailableError, install
from hami_sim.binaries.cache import cache_root

OFFICIAL = "python:3.11-slim-bookworm"
VARIABLE = "HAMI_BASE_IMAGE"
RELEASE = "bookworm"
PACKAGES = ("ca-certificates", "python3", "python3-venv")
LOOK_SECONDS = 15
LEFT_OUT = ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/doc/*")
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
# Programs that bring authorities of their own; the machine's may have one more, where the network re-signs TLS.
CA_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "CARGO_HTTP_CAINFO")


def base_image(progress: Progress) -> str:
    """Name of an image that can be built from here. Raises UnavailableError."""
    named = os.environ.get(VARIABLE)
    if named:
        return named
    if _present(OFFICIAL) or _pulled(OFFICIAL):
        return OFFICIAL
    image = f"hami/base:{_digest()}"
    if not _present(image):
        progress(f"{OFFICIAL} cannot be pulled; making a base image of Debian packages")
        _import(_tar(progress), image)
    return image


def _present(image: str) -> bool:
    return subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=False).returncode == 0


def _pulled(image: str) -> bool:
    """Looks first, since a pull may wait long for a registry that cannot be reached."""
    try:
        looked = subprocess.run(
            ["docker", "manifest", "inspect", image], capture_output=True, check=False, timeout=LOOK_SECONDS
        )
    except subprocess.TimeoutExpired:
        return False
    if looked.returncode != 0:
        return False
    return subprocess.run(["docker", "pull", "--quiet", image], capture_output=True, check=False).returncode == 0


def _digest() -> str:
    made_of = "\0".join((RELEASE, *PACKAGES, *LEFT_OUT, *CA_VARIABLES)).encode() + CA_BUNDLE.read_bytes()
    return hashlib.sha256(made_of).hexdigest()[:12]


def _tar(progress: Progress) -> Path:
    """A root file system; about a minute of work."""
    tar = cache_root() / "compose" / f"base-{_digest()}.tar"
    if tar.exists():
        return tar
    install("mmdebstrap", progress)
    tar.parent.mkdir(parents=True, exist_ok=True)
    unfinished = tar.with_suffix(".unfinished.tar")
    done = subprocess.run(
        [
            "mmdebstrap",
            "--quiet",
            "--variant=minbase",
            f"--include={','.join(PACKAGES)}",
            *(f"--dpkgopt=path-exclude={path}" for path in LEFT_OUT),
            f"--customize-hook=upload {CA_BUNDLE} {CA_BUNDLE}",
            RELEASE,
            str(unfinished),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise UnavailableError(f"mmdebstrap failed: {' '.join(done.stderr.split()[-60:])}")
    unfinished.rename(tar)
    return tar


def _import(tar: Path, image: str) -> None:
    changes = [f"--change=ENV {name}={CA_BUNDLE}" for name in CA_VARIABLES]
    done = subprocess.run(
        ["docker", "import", *changes, '--change=CMD ["/bin/sh"]', str(tar), image],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise UnavailableError(f"docker import failed: {done.stderr.strip()}")
