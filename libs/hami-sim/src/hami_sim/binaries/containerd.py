"""containerd for tests with a real kubelet: from our cache, else built from the module pinned in `tools/containerd`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hami_sim.binaries.build import Progress, build
from hami_sim.binaries.cache import CONTAINERD


class ContainerdBinaries(msgspec.Struct, frozen=True, kw_only=True):
    """The programs, in one folder that also names what containerd starts itself."""

    folder: Path

    @property
    def containerd(self) -> Path:
        return self.folder / "containerd"

    @property
    def ctr(self) -> Path:
        return self.folder / "ctr"


def obtain_containerd(progress: Progress) -> ContainerdBinaries:
    """Builds it where it is not in the cache: two minutes of a quiet core. Raises `BinariesUnavailableError`."""
    folder = CONTAINERD.folder()
    return ContainerdBinaries(folder=folder if folder.is_dir() else build(CONTAINERD, progress))
