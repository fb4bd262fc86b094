"""What was built of the C part, and where the repository keeps objects and examples."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hami_sim.binaries.cache import REPOSITORY
from hami_sim.cluster.errors import ClusterError

BUILD = REPOSITORY / "libvgpu" / "build"
KUBERNETES_OBJECTS = REPOSITORY / "k8s" / "base"
EXAMPLES = REPOSITORY / "k8s" / "examples"


class Artefacts(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of what nodes and containers are given."""

    library: Path
    """libvgpu.so."""
    driver_libraries: Path
    """Folder of the simulated driver's libcuda.so.1 and libnvidia-ml.so.1."""
    programs: Path
    """Folder of the workloads and tools."""


def artefacts_in(build: Path = BUILD) -> Artefacts:
    """Where they are once they are built."""
    return Artefacts(library=build / "lib" / "libvgpu.so", driver_libraries=build / "sim", programs=build / "bin")


def find_artefacts(build: Path = BUILD) -> Artefacts:
    """Raises ClusterError when something is not built."""
    found = artefacts_in(build)
    needed = (
        found.library,
        found.driver_libraries / "libcuda.so.1",
        found.driver_libraries / "libnvidia-ml.so.1",
        found.programs / "vgpu-workload",
        found.programs / "sim-driver",
    )
    missing = [str(path) for path in needed if not path.exists()]
    if missing:
        raise ClusterError(f"not built: {', '.join(missing)}. `make libvgpu` builds them")
    return found
