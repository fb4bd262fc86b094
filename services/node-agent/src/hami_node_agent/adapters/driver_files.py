"""Finds the driver's files under its root, and keeps CDI specifications of whole cards written from them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from hami_chassis.clock import Clock
from hami_chassis.log import get_logger
from hami_chassis.retry import DEFAULT_BACKOFF, Retries

from hami_node_agent.adapters.host_files import replace_file
from hami_node_agent.adapters.nvml_library import LIBRARY_FOLDERS
from hami_node_agent.adapters.safe_folders import make_readable
from hami_node_agent.core import driver_spec
from hami_node_agent.core.device_lists import DeviceRules, VisibleDevice
from hami_node_agent.core.driver_spec import DriverFiles, DriverFilesMissingError, HostRoots
from hami_node_agent.core.inventory import Inventory, visible_cards
from hami_node_agent.core.machine_devices import MachineDevices

log = get_logger("driver-files")

_LOOK_SECONDS: Final = 10.0
"""How long specifications that somebody removed may stay away, and those of another driver may stay."""
_PROGRAMS: Final = (
    "nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server",
)  # fmt: skip
_PROGRAM_FOLDERS: Final = ("usr/bin", "usr/sbin", "usr/local/bin", "bin", "sbin")
_SOCKETS: Final = ("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket", "tmp/nvidia-mps")
_FIRMWARE: Final = "lib/firmware/nvidia/{version}"


class Folders(Protocol):
    """Names below a root. Paths have no slash at their beginning."""

    def names(self, folder: str) -> Sequence[str]:
        """What lies in a folder; nothing where there is none."""
        ...

    def exists(self, path: str) -> bool: ...


class FoldersBelow:
    """Those of a root of this container."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def names(self, folder: str) -> Sequence[str]:
        try:
            return sorted(entry.name for entry in (self._root / folder).iterdir())
        except OSError:
            return ()

    def exists(self, path: str) -> bool:
        return (self._root / path).exists()


def find_driver_files(below: Folders, root: str) -> DriverFiles:
    """`root` is for the message only. Raises DriverFilesMissingError."""
    for folder in LIBRARY_FOLDERS:
        names = below.names(folder)
        version = driver_spec.driver_version(names)
        if version is not None:
            return _files(below, folder, names, version)
    raise DriverFilesMissingError(
        f"devices.list_strategies has a cdi strategy, but there is no libcuda.so.<version> below {root}; set "
        "nvml.driver_root to where the host's driver is mounted (HAMi's DRIVER_ROOT_CTR_PATH)"
    )


def _files(below: Folders, folder: str, names: Sequence[str], version: str) -> DriverFiles:
    ending = f".so.{version}"
    inner = [f"vdpau/{name}" for name in below.names(f"{folder}/vdpau")]
    firmware = _FIRMWARE.format(version=version)
    return DriverFiles(
        version=version,
        libraries=tuple(f"/{folder}/{name}" for name in (*names, *inner) if name.endswith(ending)),
        programs=tuple(_programs(below)),
        sockets=tuple(f"/{path}" for path in _SOCKETS if below.exists(path)),
        firmware=tuple(f"/{firmware}/{name}" for name in below.names(firmware)),
    )


def _programs(below: Folders) -> Iterator[str]:
    for program in _PROGRAMS:
        path = next((f"{folder}/{program}" for folder in _PROGRAM_FOLDERS if below.exists(f"{folder}/{program}")), "")
        if path:
            yield f"/{path}"


class CardSpecs:
    """Writes the specifications that stand for whole cards, whenever what they say changes. Root task `run`."""

    def __init__(
        self,
        folder: Path,
        rules: DeviceRules,
        machine: MachineDevices,
        find: Callable[[], DriverFiles],
        *,
        roots: HostRoots,
        more: Callable[[], Mapping[str, VisibleDevice]] = dict,
    ) -> None:
        """`find` is asked again and again, as the driver may be replaced; `more`: devices beside the inventory's, by
        UUID. Raises DriverFilesMissingError.
        """
        self._folder = folder
        self._rules = rules
        self._machine = machine
        self._find = find
        self._files = find()
        self._roots = roots
        self._more = more
        self._wanted: tuple[VisibleDevice, ...] = ()
        self._written: tuple[VisibleDevice, ...] = ()
        self._paths: list[Path] = []
        self._changed = asyncio.Event()

    def changed(self, inventory: Inventory, _changes: object) -> None:
        """Writes what the inventory's cards need. What cannot be written now, `run` writes later."""
        cards = visible_cards(inventory, [card.id for card in inventory.cards])
        self._wanted = (*cards, *self._more().values())
        if not self._write_wanted():
            self._changed.set()

    async def run(self, clock: Clock) -> None:
        """Tries again what could not be written, as on a full disk: until then containers cannot start."""
        retries = Retries(DEFAULT_BACKOFF)
        while True:
            await self._changed_or_due(clock)
            self._changed.clear()
            retries.succeeded()
            await self._look_at_driver()
            if any(not path.exists() for path in self._paths):
                log.warning("cdi-spec-was-removed", folder=str(self._folder))
                self._written = ()
                self._write_wanted()
            while self._written != self._wanted:
                await clock.sleep(retries.delay_after())
                self._write_wanted()

    async def _look_at_driver(self) -> None:
        """Another version has files of other names. One that has none just now is being replaced."""
        try:
            found = await asyncio.to_thread(self._find)
        except DriverFilesMissingError:
            return
        if found != self._files:
            log.info("driver-files-changed", version=found.version, before=self._files.version)
            self._files = found
            self._written = ()
            self._write_wanted()

    async def _changed_or_due(self, clock: Clock) -> None:
        if self._changed.is_set():
            return
        waiting = {asyncio.ensure_future(self._changed.wait()), asyncio.ensure_future(clock.sleep(_LOOK_SECONDS))}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    def _write_wanted(self) -> bool:
        try:
            self.write(self._wanted)
        except OSError as error:
            log.warning("cdi-spec-not-written", folder=str(self._folder), reason=str(error))
            return False
        return True

    def write(self, devices: Sequence[VisibleDevice]) -> None:
        """Raises OSError, InvalidSpecificationError."""
        if self._written == tuple(devices):
            return
        found = driver_spec.specifications(devices, self._rules, self._machine, self._files, self._roots)
        self._paths = [self._folder / driver_spec.file_name(device_class) for device_class in found]
        make_readable(self._folder)
        for device_class, content in found.items():
            path = self._folder / driver_spec.file_name(device_class)
            if _content(path) != content:
                replace_file(path, content)
                log.info("cdi-spec-written", path=str(path), devices=[device.uuid for device in devices])
        self._written = tuple(devices)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
