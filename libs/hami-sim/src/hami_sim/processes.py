"""Long-lived local programs: started in sessions of their own, found again through process files, ended in order.

A process file names the process by pid, start time and boot, so that whoever reads it later, perhaps another
program after this one ended, never signals a stranger that was given the same pid.

Errors, all `ProcessError`: `ProgramNotStartedError` (the file cannot be executed), `ProgramEndedError` (it ended
though it should run), `ProgramNotReadyError` (it runs but did not become ready in time). Messages carry the end of
its log.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec

LOG_TAIL_LINES = 15
LOG_TAIL_BYTES = 16_384
READY_POLL_SECONDS = 0.1
SIGNALS_RESET_IN_CHILD = (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STAT_STATE_FIELD = 0  # fields after the command's closing parenthesis: state, ppid, ...
STAT_START_TICKS_FIELD = 19


class ProcessError(Exception):
    """A local program did not do what it was started for."""


class ProgramNotStartedError(ProcessError):
    """The program's file cannot be executed."""


class ProgramEndedError(ProcessError):
    """The program ended though it should still run."""


class ProgramNotReadyError(ProcessError):
    """The program runs but did not become ready in time."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """One running or ended program, as its process file describes it."""

    name: str
    pid: int
    start_ticks: int  # since boot, field 22 of /proc/PID/stat
    boot_id: str
    argv: tuple[str, ...]
    log_path: str

    def is_alive(self) -> bool:
        """Whether this very process still runs; a zombie of ours is reaped and counts as ended."""
        if self.boot_id != _boot_id():
            return False
        stat = _read_stat(self.pid)
        if stat is None or stat[1] != self.start_ticks:
            return False
        if stat[0] == "Z":
            _reap(self.pid)
            return False
        return True

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """The last lines of the program's log, empty when there is none."""
        return log_tail(Path(self.log_path), lines)


def start_program(
    name: str,
    argv: Sequence[str | Path],
    *,
    log_path: Path,
    process_file: Path,
    environment: Mapping[str, str] | None = None,
) -> Program:
    """Starts a program in a session of its own, its output appended to `log_path`, and writes its process file.

    The program outlives its starter unless it is stopped. Raises `ProgramNotStartedError`.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    words = tuple(str(word) for word in argv)
    log_fd = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        # posix_spawn, not Popen: a Popen object complains when it is dropped while its process lives on.
        pid = os.posix_spawn(
            words[0],
            words,
            dict(os.environ if environment is None else environment),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log_fd, 1),
                (os.POSIX_SPAWN_DUP2, log_fd, 2),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=SIGNALS_RESET_IN_CHILD,
        )
    except OSError as error:
        raise ProgramNotStartedError(f"{name} cannot be started: {words[0]}: {error.strerror}") from error
    finally:
        os.close(log_fd)
    stat = _read_stat(pid)
    if stat is None:
        raise ProgramEndedError(f"{name} (pid {pid}) was reaped by someone else before it could be recorded")
    program = Program(name=name, pid=pid, start_ticks=stat[1], boot_id=_boot_id(), argv=words, log_path=str(log_path))
    _write_atomically(process_file, msgspec.json.format(msgspec.json.encode(program)))
    return program


def load_program(process_file: Path) -> Program | None:
    """The program that a process file names, None when there is no file.

    Raises `ProcessError` when the file is not one that `start_program` wrote.
    """
    try:
        raw = process_file.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(raw, type=Program)
    except msgspec.DecodeError as error:
        raise ProcessError(f"{process_file} is not a process file ({error}); remove it by hand") from error


def load_programs(folder: Path) -> list[Program]:
    """All programs that the process files (`*.json`) of a folder name, by name."""
    loaded = (load_program(path) for path in sorted(folder.glob("*.json")))
    return [program for program in loaded if program is not None]


async def stop_program(program: Program, *, grace_seconds: float = 10.0) -> bool:
    """Ends a program: SIGTERM, then after the grace SIGKILL for its whole session. False when it was already gone."""
    pidfd = _open_pidfd(program)
    if pidfd is None:
        return False
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        if not await _ended_within(pidfd, grace_seconds):
            os.killpg(program.pid, signal.SIGKILL)  # it leads its group, and it is alive, so the group is its own
            await _ended_within(pidfd, None)
    except ProcessLookupError:
        pass  # it ended by itself in between
    finally:
        os.close(pidfd)
    _reap(program.pid)
    return True


async def kill_program(program: Program) -> None:
    """Ends a program at once with SIGKILL, as a crash would, and waits until it is gone."""
    pidfd = _open_pidfd(program)
    if pidfd is None:
        return
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        await _ended_within(pidfd, None)
    except ProcessLookupError:
        pass  # it ended by itself in between
    finally:
        os.close(pidfd)
    _reap(program.pid)


async def wait_until_ready(
    program: Program, probe: Callable[[], Awaitable[str | None]], *, timeout_seconds: float
) -> None:
    """Waits until `probe` returns None; a string it returns says what is still missing.

    Raises `ProgramEndedError` as soon as the program is gone, `ProgramNotReadyError` after the time out.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        missing = await probe()
        if missing is None:
            return
        if not program.is_alive():
            raise ProgramEndedError(
                f"{program.name} ended while it was starting. The end of {program.log_path}:\n{program.log_tail()}"
            )
        if time.monotonic() > deadline:
            raise ProgramNotReadyError(
                f"{program.name} was not ready after {timeout_seconds:.0f} s ({missing}). "
                f"The end of {program.log_path}:\n{program.log_tail()}"
            )
        await asyncio.sleep(READY_POLL_SECONDS)


def log_tail(path: Path, lines: int = LOG_TAIL_LINES) -> str:
    """The last lines of a log file, empty when there is none."""
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - LOG_TAIL_BYTES))
            text = log.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


async def _ended_within(pidfd: int, timeout_seconds: float | None) -> bool:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await asyncio.wait_for(ended.wait(), timeout_seconds)
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(pidfd)
    return True


def _open_pidfd(program: Program) -> int | None:
    """A descriptor of exactly this process, None when it is gone: no later signal can reach another process."""
    try:
        pidfd = os.pidfd_open(program.pid)
    except ProcessLookupError:
        return None
    if program.is_alive():
        return pidfd
    os.close(pidfd)
    return None


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return  # not a child of this process: its own parent reaps it


def _read_stat(pid: int) -> tuple[str, int] | None:
    """State letter and start time in ticks since boot."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return fields[STAT_STATE_FIELD], int(fields[STAT_START_TICKS_FIELD])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _write_atomically(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)
