"""Files of the host: CDI specifications and our own checkpoint.

Every file appears as a whole: it is written beside its place and renamed. Blocking calls run in threads.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import yaml
from hami_chassis.clock import Clock
from hami_chassis.errors import Permanent, Transient
from hami_chassis.log import get_logger
from hami_chassis.no_room import says_nothing_of_the_file

from hami_node_agent.adapters.safe_folders import make_readable
from hami_node_agent.core import cdi_spec
from hami_node_agent.core.cdi_spec import ForeignSpec, OwnSpec
from hami_node_agent.core.handed_out import HandedOut, MalformedCheckpointError, NewerCheckpointError, decode, encode

log = get_logger("host-files")

T = TypeVar("T")

_READABLE: Final = 0o644
_PRIVATE: Final = 0o600
_OTHER_ENDS_SECONDS: Final = 30.0
_LOCK_LOOK_SECONDS: Final = 0.5
_SPEC_LIMIT_BYTES: Final = 8 * 1024 * 1024
_ENDINGS: Final = (".json", ".yaml", ".yml")


class HostFilesError(Transient):
    """A file of the host cannot be written or read now."""


async def in_thread(work: Callable[[], T]) -> T:
    """Blocking work. Raises HostFilesError for OSError."""
    try:
        return await asyncio.to_thread(work)
    except OSError as error:
        raise HostFilesError(f"{error.filename or 'file'}: {error.strerror or error}") from error


def entries(folder: Path) -> list[Path]:
    """None of a folder that is not there. Raises OSError."""
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def _has(path: Path, content: bytes) -> bool:
    """Raises OSError."""
    try:
        return path.read_bytes() == content
    except (FileNotFoundError, NotADirectoryError):
        return False


def replace_file(path: Path, content: bytes, mode: int = _READABLE, *, synced: bool = True) -> None:
    """The file has the old content or the new one, never a part; `synced`: also after a crash. Raises OSError, which
    names the file."""
    aside = path.with_name(_aside(path.name))
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            if synced:
                os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        error.filename = error.filename or str(path)  # a full disk does not say whose file has no room
        raise


def _aside(name: str) -> str:
    """Of the file that a replacement is written into."""
    return f".{name}.new"


def remove_unfinished(folder: Path, is_ours: Callable[[str], bool]) -> None:
    """Replacements that an agent was killed in; `is_ours` by the name of what they were to replace. Raises OSError."""
    for path in folder.iterdir():
        name = path.name.removeprefix(".").removesuffix(".new")
        if path.name == _aside(name) and is_ours(name):
            path.unlink(missing_ok=True)


class CdiFolder:
    """The folder that the runtime reads, and those in which NVIDIA's specifications may lie."""

    def __init__(self, folder: Path, nvidia_folders: Sequence[Path]) -> None:
        self._folder = folder
        self._nvidia_folders = tuple(nvidia_folders)
        self._decoded: dict[Path, tuple[tuple[int, int, int], ForeignSpec | None]] = {}
        self._told: set[str] = set()
        """Problems that were logged."""

    def prepare(self) -> None:
        """Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(self._folder, lambda name: cdi_spec.owner_of_file(name) is not None)

    def write(self, specification: OwnSpec) -> None:
        """Puts it in place as a whole; one that says the same stays, as putting files in place is dear.

        Raises OSError, HostFilesError.
        """
        pod_uid, name = specification.pod_uid, specification.name
        file = cdi_spec.file_name(pod_uid, name)
        if file is None:
            raise HostFilesError(f"{pod_uid!r} and {name!r} are no UID and device name that could name a file")
        path = self._folder / file
        if not _has(path, specification.content):
            self._make_folder()
            # Looked at before every start, so it need not outlive the machine.
            replace_file(path, specification.content, synced=False)

    def _make_folder(self) -> None:
        """Raises HostFilesError."""
        try:
            if make_readable(self._folder):
                log.warning("folder-put-back", path=str(self._folder))
        except OSError as error:
            raise HostFilesError(
                f"{self._folder} can be no folder of CDI specifications: {error.strerror}; make it, or remove what "
                "lies in its place"
            ) from error

    async def remove_pod(self, pod_uid: str) -> None:
        await in_thread(lambda: self._remove_pod(pod_uid))

    def _remove_pod(self, pod_uid: str) -> None:
        for path in self._own_files():
            if cdi_spec.owner_of_file(path.name) == pod_uid:
                path.unlink(missing_ok=True)

    async def owners(self) -> frozenset[str]:
        found = await in_thread(lambda: [cdi_spec.owner_of_file(path.name) for path in self._own_files()])
        return frozenset(uid for uid in found if uid is not None)

    def _own_files(self) -> list[Path]:
        return [path for path in entries(self._folder) if cdi_spec.owner_of_file(path.name)]

    def nvidia_specs(self) -> list[ForeignSpec]:
        """Raises OSError."""
        found: list[ForeignSpec] = []
        for rank, folder in enumerate(self._nvidia_folders):
            if not folder.is_dir():
                continue
            for path in sorted(folder.iterdir()):
                if path.suffix in _ENDINGS and cdi_spec.owner_of_file(path.name) is None:
                    spec = self._spec(path, rank)
                    if spec is not None and cdi_spec.is_nvidia(spec):
                        found.append(spec)
        for problem in cdi_spec.conflicts(found):
            self._say(problem, "cdi-device-conflict")
        return found

    def _say(self, problem: str, event: str) -> None:
        if problem not in self._told:
            self._told.add(problem)
            log.warning(event, problem=problem)

    def _spec(self, path: Path, rank: int) -> ForeignSpec | None:
        try:
            stat = path.stat()
            version = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            known = self._decoded.get(path)
            if known is not None and known[0] == version:
                return known[1]
            if stat.st_size > _SPEC_LIMIT_BYTES:
                log.warning("cdi-spec-too-large", path=str(path), bytes=stat.st_size)
                return None
            raw = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:  # such as a folder of that name: no other specification must suffer from it
            if says_nothing_of_the_file(error):  # without NVIDIA's the container would be shown its cards otherwise
                raise
            self._say(f"{path}: {error.strerror}", "cdi-spec-unreadable")
            return None
        spec: ForeignSpec | None = None
        try:
            document = msgspec.json.decode(raw) if path.suffix == ".json" else yaml.safe_load(raw)
            spec = cdi_spec.foreign_spec(document, file=str(path), rank=rank)
        except (msgspec.DecodeError, yaml.YAMLError, ValueError, RecursionError) as error:
            # ValueError: no UTF-8, or a time or number that there is not.
            log.warning("cdi-spec-unreadable", path=str(path), reason=str(error))
        for problem in spec.problems if spec is not None and cdi_spec.is_nvidia(spec) else ():
            log.warning("cdi-spec-problem", path=str(path), problem=problem)
        self._decoded[path] = (version, spec)
        return spec


class _Held:
    """A lock file: who has it locked works with its folder. One that was removed is made and locked anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def is_ours(self) -> bool:
        """Now, if nobody else has it. Raises OSError."""
        if not self._is_in_place():
            self.close()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _is_in_place(self) -> bool:
        if self._descriptor < 0:
            return False
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except FileNotFoundError:
            return False

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class CheckpointFile:
    """Our own checkpoint."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._one_at_a_time = asyncio.Lock()
        self._held: _Held | None = None

    async def hold(self, stack: AsyncExitStack, clock: Clock) -> None:
        """No other node-agent works with this checkpoint until the stack is closed, or the process ends.

        Two would each write their own book over the other's. One that is ending is waited for. Raises OSError, and
        Permanent where it does not end.
        """
        held = _Held(self._path.with_name("lock"))
        stack.callback(held.close)
        give_up_at = clock.monotonic() + _OTHER_ENDS_SECONDS
        while not held.is_ours():
            if clock.monotonic() > give_up_at:
                raise Permanent(f"{self._path.parent}: another node-agent works with this folder; end it first")
            log.info("waiting-for-the-other-node-agent-s-end", path=str(self._path.parent))
            await clock.sleep(_LOCK_LOOK_SECONDS)
        self._held = held

    def load(self) -> HandedOut:
        """What was handed out before. An unreadable file is kept aside, and said so.

        Raises OSError, and Permanent for a file of a later agent: without it, running pods would lose what they have.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return HandedOut()
        try:
            return decode(raw)
        except MalformedCheckpointError as error:
            aside = self._path.with_name(f"{self._path.name}.unreadable")
            self._path.replace(aside)
            log.warning("own-checkpoint-unreadable", path=str(aside), reason=str(error))
            return HandedOut()
        except NewerCheckpointError as error:
            raise Permanent(
                f"{self._path}: {error}. Run the later node-agent again; or drain the node of pods with cards and then "
                "remove the file"
            ) from error

    def is_missing(self) -> bool:
        """Somebody removed it, or nothing was ever written."""
        return not self._path.exists()

    async def write(self, book: HandedOut) -> None:
        """Also where somebody removed the folder. Raises HostFilesError."""
        async with self._one_at_a_time:
            content = encode(book)
            await in_thread(lambda: self._write(content))

    def _write(self, content: bytes) -> None:
        try:
            is_new = make_readable(self._path.parent)
        except OSError as error:
            raise HostFilesError(
                f"{self._path.parent} can be no folder of ours: {error.strerror}; remove what lies in its place, or "
                "set files.state_dir"
            ) from error
        if is_new and self._held is not None:
            log.warning("folder-put-back", path=str(self._path.parent))
        if self._held is not None and not self._held.is_ours():
            raise HostFilesError(f"{self._path.parent}: another node-agent works with this folder; end one of them")
        replace_file(self._path, content)
