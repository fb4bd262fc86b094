"""A container's limits page as a file: made whole by rename before the container starts, then changed in place.

Processes of the container have the file mapped, so what they should see must be written into it: a file that is put
in its place reaches only those that start later. One process writes; readers wait for nobody, and nobody waits for
them: the container can open the page for reading, so a lock on it could be taken there and never be given back, and a
lease as well, unless the page is open for writing already. Hence a page stays open as long as its container lives.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

import msgspec
from hami_model import limits_page
from hami_model.limits_page import LimitsPage, MalformedLimitsPage, layout

from hami_node_agent.adapters.host_files import replace_file

_READABLE_FOLDER: Final = 0o755
_SEQUENCE: Final = layout.PAGE.field("sequence").offset
_NATIVE: Final[dict[str, Literal["I", "i", "Q"]]] = {"u32": "I", "i32": "i", "u64": "Q"}
_COPY_TRIES: Final = 100
_COPY_PAUSE_SECONDS: Final = 0.0001


class OtherContainerError(ValueError):
    """A page cannot become another container's in place: cards and region file stay as they were made."""


class ReadLimits(msgspec.Struct, frozen=True):
    """A page as it was read."""

    page: LimitsPage
    settled: bool
    """False: a change was under way all the time, because its writer died in it. Each value is whole all the same."""


class LimitsFile:
    """The page of one container, open for changes."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, MalformedLimitsPage.

        BlockingIOError: the container had a lease on the page, which it loses now; it can be opened in a while.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if status.st_size != layout.PAGE_BYTES:
                raise MalformedLimitsPage(f"it has {status.st_size} bytes, not {layout.PAGE_BYTES}")
            self._memory = mmap.mmap(descriptor, layout.PAGE_BYTES)
        finally:
            os.close(descriptor)
        self._path = path
        self._identity = status.st_dev, status.st_ino
        self._one_at_a_time = threading.Lock()

    @classmethod
    def create(cls, path: Path, page: LimitsPage, *, synced: bool = True) -> LimitsFile:
        """Puts a new container's page in its place; `synced`: it outlives the machine's end. Raises OSError,
        MalformedLimitsPage."""
        content = limits_page.encode(page)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(_READABLE_FOLDER)
        replace_file(path, content, synced=synced)
        return cls(path)

    def change(self, wanted: LimitsPage) -> bool:
        """Makes the page say what is wanted, for all who have it mapped; False when it did already.

        A change that a writer which died left half made is made whole. Raises MalformedLimitsPage (also of what is
        there, which stays as it is), OtherContainerError.
        """
        with self._one_at_a_time:
            present = bytes(self._memory)
            sequence = limits_page.sequence_of(present)
            if limits_page.encode(wanted, sequence) == present and sequence % 2 == 0:
                return False
            if not limits_page.same_container(limits_page.decode(present), wanted):
                raise OtherContainerError(f"{self._path}: another region file or other cards need a page of their own")
            _store_words(self._memory, sequence | 1, wanted)
            return True

    def is_in_place(self) -> bool:
        """Whether its path still leads to it: who was started with it keeps it all the same."""
        try:
            status = self._path.lstat()
        except FileNotFoundError:
            return False
        return (status.st_dev, status.st_ino) == self._identity

    def close(self) -> None:
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(path: Path) -> ReadLimits:
    """The page as processes in the container see it. Raises OSError, MalformedLimitsPage."""
    with path.open("rb") as file:
        for _ in range(_COPY_TRIES):
            before = os.pread(file.fileno(), layout.PAGE_BYTES + 1, 0)
            after = os.pread(file.fileno(), layout.PAGE_BYTES + 1, 0)
            if before == after and limits_page.sequence_of(_whole(before)) % 2 == 0:
                return ReadLimits(limits_page.decode(before), settled=True)
            time.sleep(_COPY_PAUSE_SECONDS)
    return ReadLimits(limits_page.decode(_whole(after)), settled=False)


def _whole(data: bytes) -> bytes:
    if len(data) != layout.PAGE_BYTES:
        raise MalformedLimitsPage(f"it has {len(data)} bytes or more, not {layout.PAGE_BYTES}")
    return data


def _store_words(memory: mmap.mmap, odd: int, page: LimitsPage) -> None:
    _store(memory, _SEQUENCE, "Q", odd)
    _in_order()
    for word in limits_page.live_words(page):
        _store(memory, word.offset, _NATIVE[word.kind], word.value)
    _in_order()
    _store(memory, _SEQUENCE, "Q", (odd + 1) % 2**64)


def _store(memory: mmap.mmap, offset: int, kind: Literal["I", "i", "Q"], value: int) -> None:
    """One store of the processor: a view of native type copies the value by its size, which `struct` with a byte
    order does not promise."""
    with memoryview(memory) as view, view.cast(kind) as words:
        words[offset // words.itemsize] = value


_barrier: Final = threading.Lock()


def _in_order() -> None:
    """What was stored before is seen before what is stored after, also where the processor reorders stores: a store
    may sink into a locked section but not past the release of one and the acquisition of the next."""
    for _ in range(2):
        with _barrier:
            pass
