"""What a hand-over reads and writes on the host: each at one go, as changing to a thread costs more than the work."""

from __future__ import annotations

from hami_node_agent.adapters.host_files import CdiFolder, CheckpointFile, in_thread
from hami_node_agent.adapters.host_folder import HostFolder
from hami_node_agent.core.cdi_spec import OwnSpec
from hami_node_agent.core.grant import ContainerFiles
from hami_node_agent.ports import HostView


class HandoverFolders:
    """Raises HostFilesError (Transient)."""

    def __init__(self, files: HostFolder, cdi: CdiFolder, own: CheckpointFile) -> None:
        self._files = files
        self._cdi = cdi
        self._own = own

    async def look(self, *, with_specs: bool) -> HostView:
        return await in_thread(lambda: self._look(with_specs))

    def _look(self, with_specs: bool) -> HostView:  # of `look`
        specs = self._cdi.nvidia_specs() if with_specs else []
        return HostView(state=self._files.state(), nvidia_specs=tuple(specs), is_book_missing=self._own.is_missing())

    async def put(self, files: ContainerFiles | None, specification: OwnSpec | None) -> None:
        if files is not None or specification is not None:
            await in_thread(lambda: self._put(files, specification))

    def _put(self, files: ContainerFiles | None, specification: OwnSpec | None) -> None:
        """The specification last: it leads the runtime to the others."""
        if files is not None:
            self._files.prepare_container(files)
        if specification is not None:
            self._cdi.write(specification)

    async def refresh_page(self, files: ContainerFiles) -> None:
        await in_thread(lambda: self._files.refresh_page(files))
