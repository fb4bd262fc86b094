"""Files of the host."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from hami_chassis.log import get_logger

from hami_node_agent.adapters.host_files import CdiFolder, CheckpointFile
from hami_node_agent.adapters.host_folder import HostFolder
from hami_node_agent.core.grant import HostLayout
from hami_node_agent.core.handed_out import HandedOut
from hami_node_agent.parts.basis import Basis

log = get_logger("parts")


class Host(NamedTuple):
    """Files of the host."""

    layout: HostLayout
    folder: HostFolder
    cdi: CdiFolder
    own: CheckpointFile
    book: HandedOut


async def host_of(basis: Basis, stack: AsyncExitStack) -> Host:
    """Nothing is touched while another agent is at work with these files."""
    names = basis.settings.files
    own = CheckpointFile(Path(names.state_dir) / "handed-out.json")
    await own.hold(stack, basis.clock)
    layout = HostLayout(hook_path=names.hook_path, lock_dir=names.lock_dir.rstrip("/"))
    folder = HostFolder(layout, names.library_version)
    version = folder.install(names.library_file, needed=basis.enforcement.uses("preload"))
    log.info("library", version=version or "not versioned")
    cdi = CdiFolder(Path(names.cdi_dir), [Path(nvidia_dir) for nvidia_dir in names.nvidia_cdi_dirs])
    cdi.prepare()
    return Host(layout, folder, cdi, own, own.load())
