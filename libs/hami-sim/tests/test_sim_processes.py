"""Programs that are started, found again, and ended, and no others."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest
from hami_sim.processes import (
    ProcessError,
    Program,
    ProgramEndedError,
    ProgramNotReadyError,
    ProgramNotStartedError,
    kill_program,
    load_program,
    start_program,
    stop_program,
    wait_until_ready,
)

HOLD = "import signal; signal.pause()"
IGNORE_TERM = (
    "import signal, pathlib, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "pathlib.Path(sys.argv[1]).touch(); signal.pause()"
)


def start(tmp_path: Path, code: str, *arguments: str) -> Program:
    return start_program(
        "probe",
        [sys.executable, "-c", code, *arguments],
        log_path=tmp_path / "probe.log",
        process_file=tmp_path / "probe.json",
    )


async def ready() -> str | None:
    return None


async def never_ready() -> str | None:
    return "the door is shut"


async def test_a_program_is_found_again_through_its_process_file_and_ended(tmp_path: Path) -> None:
    started = start(tmp_path, HOLD)
    found = load_program(tmp_path / "probe.json")
    assert found == started
    assert found.is_alive()
    assert os.getsid(found.pid) == found.pid
    assert await stop_program(found)
    assert not found.is_alive()
    assert not await stop_program(found)


async def test_a_program_that_ignores_the_request_is_killed(tmp_path: Path) -> None:
    program = start(tmp_path, IGNORE_TERM, str(tmp_path / "started"))

    async def started() -> str | None:
        return None if (tmp_path / "started").exists() else "not started"

    await wait_until_ready(program, started, timeout_seconds=60)
    assert await stop_program(program, grace_seconds=0.01)
    assert not program.is_alive()


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "another boot"}], ids=["other start", "other boot"])
async def test_a_stranger_with_the_same_pid_is_left_alone(tmp_path: Path, change: dict[str, object]) -> None:
    program = start(tmp_path, HOLD)
    stale = msgspec.structs.replace(program, **change)
    assert not stale.is_alive()
    assert not await stop_program(stale)
    await kill_program(stale)
    assert program.is_alive()
    await stop_program(program)


async def test_a_program_that_ends_early_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    program = start(tmp_path, "print('cannot bind'); raise SystemExit(3)")
    with pytest.raises(ProgramEndedError, match=r"(?s)probe ended.*cannot bind"):
        await wait_until_ready(program, never_ready, timeout_seconds=60)


async def test_a_program_that_never_gets_ready_is_reported_with_what_is_missing(tmp_path: Path) -> None:
    program = start(tmp_path, HOLD)
    with pytest.raises(ProgramNotReadyError, match="the door is shut"):
        await wait_until_ready(program, never_ready, timeout_seconds=0)
    await stop_program(program)


async def test_readiness_ends_the_wait(tmp_path: Path) -> None:
    program = start(tmp_path, HOLD)
    await wait_until_ready(program, ready, timeout_seconds=0)
    await kill_program(program)
    assert not program.is_alive()


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProgramNotStartedError, match="probe cannot be started: /nowhere/program"):
        start_program(
            "probe", ["/nowhere/program"], log_path=tmp_path / "probe.log", process_file=tmp_path / "probe.json"
        )
    assert load_program(tmp_path / "probe.json") is None


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"pid":1}', b"[1]"])
def test_a_damaged_process_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "probe.json"
    path.write_bytes(content)
    with pytest.raises(ProcessError, match=r"probe\.json is not a process file"):
        load_program(path)
