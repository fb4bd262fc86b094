"""Our cache of built programs, outside the tree: `$XDG_CACHE_HOME/hami` or `~/.cache/hami`.

    kubernetes/v1.37.2-1a2b3c4d5e6f/    kube-apiserver, ..., kubectl: links to one program
    etcd/v3.6.16-0f1e2d3c4b5a/          etcd
    containerd/v2.4.2-5a4b3c2d1e0f/     containerd, its shim, ctr
    go-build/                           Go's build cache while a build is unfinished
    build.lock                          held by the process that builds

The folder's name holds the version and a digest of what it was built from, so that a change is built anew. A folder
appears in one step, complete.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[5]
DIGEST_LENGTH = 12
SOURCE_PATTERNS = ("*.go", "go.mod", "go.sum")


class Recipe(NamedTuple):
    """What is built from a pinned module, and the names that its programs are called by."""

    name: str
    source: Path
    module: str
    program_names: tuple[str, ...]
    packages: tuple[str, ...] = (".",)
    """One package: one program for all names. Several: each is a program, named as the last part of its path."""
    tags: tuple[str, ...] = ()
    version_variables: tuple[tuple[str, str], ...] = ()
    """Variables of the program that tell its version, and their values with {major}, {minor} and {patch}."""

    def version(self) -> str:
        """The pinned version of the module, such as `v1.37.2`."""
        pinned = re.search(rf"^\s*(?:require )?{re.escape(self.module)} (v\S+)", self._go_mod(), re.MULTILINE)
        if pinned is None:
            raise LookupError(f"{self.source / 'go.mod'} does not require {self.module}")
        return pinned[1]

    def folder(self) -> Path:
        """Where the cache keeps what this recipe builds."""
        digest = hashlib.sha256()
        files = (path for pattern in SOURCE_PATTERNS for path in self.source.glob(pattern))
        for path in sorted(files):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        return cache_root() / self.name / f"{self.version()}-{digest.hexdigest()[:DIGEST_LENGTH]}"

    def _go_mod(self) -> str:
        return (self.source / "go.mod").read_text()


KUBERNETES = Recipe(
    "kubernetes",
    REPOSITORY / "tools" / "kubernetes",
    "k8s.io/kubernetes",
    ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet"),
    # Without a version of its own kube-apiserver refuses to run with its feature gates of this version.
    version_variables=(
        ("k8s.io/component-base/version.gitVersion", "v{major}.{minor}.{patch}"),
        ("k8s.io/component-base/version.gitMajor", "{major}"),
        ("k8s.io/component-base/version.gitMinor", "{minor}"),
    ),
)
ETCD = Recipe("etcd", REPOSITORY / "tools" / "kubernetes" / "etcd", "go.etcd.io/etcd/server/v3", ("etcd",))

CONTAINERD = Recipe(
    "containerd",
    REPOSITORY / "tools" / "containerd",
    "github.com/containerd/containerd/v2",
    ("containerd", "containerd-shim-runc-v2", "ctr"),
    packages=tuple(
        f"github.com/containerd/containerd/v2/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")
    ),
    tags=("no_btrfs", "no_zfs", "no_devmapper"),
    version_variables=(("github.com/containerd/containerd/v2/version.Version", "v{major}.{minor}.{patch}"),),
)


def cache_root() -> Path:
    """Our folder in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hami"
