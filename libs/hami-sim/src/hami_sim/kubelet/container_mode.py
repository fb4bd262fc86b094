"""Which of the two container modes a machine allows, found out by starting one container."""

import os
import tempfile
from pathlib import Path
from typing import Literal

from hami_sim.kubelet.launch import Launch
from hami_sim.kubelet.processes import ContainerProcesses
from hami_sim.kubelet.settings import ContainerMode
from hami_sim.kubelet.shim_server import ShimServer


class ModeUnavailableError(Exception):
    """The mode that the settings ask for does not work on this machine."""


async def choose_mode(wanted: Literal["namespace", "prefix", "auto"], root: Path, shims: ShimServer) -> ContainerMode:
    """Raises ModeUnavailableError."""
    if wanted == "prefix":
        return "prefix"
    fault = await namespace_fault(root, shims)
    if fault is None:
        return "namespace"
    if wanted == "namespace":
        raise ModeUnavailableError(
            f"containers cannot have mount namespaces here ({fault}): "
            "run as root with CAP_SYS_ADMIN, or set mode=prefix"
        )
    return "prefix"


async def namespace_fault(root: Path, shims: ShimServer) -> str | None:
    """None where a container can have a mount namespace and a root of its own; else why not."""
    os.makedirs(root, exist_ok=True)  # noqa: PTH103 (a local call, too short to leave the loop for)
    with tempfile.TemporaryDirectory(dir=root, prefix="probe-") as folder:
        processes = ContainerProcesses(Path(folder), shims)
        process = await processes.start("probe", "probe", 0, Launch(["/bin/true"], {}, "/", []), own_root=True)
        return (await process.ended()).fault
