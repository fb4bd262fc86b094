"""The limits page as a file: made whole, changed in place, seen whole by whoever reads meanwhile."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hami_model import limits_page
from hami_model.limits_page import CardLimits, Control, LimitsPage, MalformedLimitsPage, Policy, layout
from hami_node_agent.adapters import limits_file
from hami_node_agent.adapters.limits_file import LimitsFile, OtherContainerError
from hypothesis import given
from hypothesis import strategies as st

MIB = 2**20


def page(memory_mib: int = 100, **changes: object) -> LimitsPage:
    values: dict[str, object] = {
        "region_file": "/usr/local/vgpu/a.cache",
        "cards": tuple(
            CardLimits(uuid=f"GPU-{number}", memory_limit_bytes=memory_mib * MIB, cores_percent=30)
            for number in range(2)
        ),
    }
    return LimitsPage(**{**values, **changes})  # type: ignore[arg-type]


def create(path: Path, wanted: LimitsPage) -> None:
    LimitsFile.create(path, wanted).close()


def change(path: Path, wanted: LimitsPage) -> bool:
    with LimitsFile(path) as file:
        return file.change(wanted)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pod_main" / layout.DIRECTORY / layout.FILE


def test_a_page_is_readable_by_all_and_writable_by_its_owner(path: Path) -> None:
    before = os.umask(0o077)
    try:
        create(path, page())
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    assert path.stat().st_size == layout.PAGE_BYTES
    assert [found.name for found in path.parent.iterdir()] == [layout.FILE]
    assert limits_file.read(path) == limits_file.ReadLimits(page(), settled=True)


def test_a_change_is_made_in_place(path: Path) -> None:
    create(path, page())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        wanted = page(300, policy=Policy.FORCE, priority=-1, control=Control.DISABLED, writer_generation=2**64 - 1)
        assert change(path, wanted)
        assert limits_page.decode(bytes(mapped)) == wanted
        assert limits_page.sequence_of(bytes(mapped)) == 2
        assert not change(path, wanted)
        assert limits_page.sequence_of(bytes(mapped)) == 2
        create(path, page(5))
        assert limits_page.decode(bytes(mapped)) == wanted


@pytest.mark.parametrize(
    "other",
    [
        page(region_file="/usr/local/vgpu/b.cache"),
        page(cards=()),
        page(cards=(CardLimits(uuid="GPU-1"), CardLimits(uuid="GPU-0"))),
    ],
)
def test_a_page_never_becomes_another_containers(path: Path, other: LimitsPage) -> None:
    create(path, page())
    before = path.read_bytes()
    with pytest.raises(OtherContainerError):
        change(path, other)
    assert path.read_bytes() == before


def test_what_is_no_page_is_left_alone(path: Path) -> None:
    path.parent.mkdir(parents=True)
    for content in (b"", b"x" * 100, b"x" * layout.PAGE_BYTES, limits_page.encode(page()) + b"\0"):
        path.write_bytes(content)
        with pytest.raises(MalformedLimitsPage):
            change(path, page())
        with pytest.raises(MalformedLimitsPage):
            limits_file.read(path)
        assert path.read_bytes() == content
    with pytest.raises(MalformedLimitsPage):
        create(path, page(region_file="relative"))
    assert path.read_bytes() == content


def test_who_can_read_cannot_hold_the_writer_up(path: Path) -> None:
    with LimitsFile.create(path, page()) as file, path.open("rb") as readable:
        fcntl.flock(readable, fcntl.LOCK_EX)
        with pytest.raises(OSError):  # noqa: PT011  # busy, or there are no leases here
            fcntl.fcntl(readable, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        assert file.change(page(300))
        assert change(path, page(200))


def test_a_lease_taken_while_no_writer_was_there_is_lost(path: Path) -> None:
    create(path, page())
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        with path.open("rb") as readable:
            try:
                fcntl.fcntl(readable, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            except OSError as error:
                pytest.skip(f"files have no leases here: {error}")
            with pytest.raises(BlockingIOError):
                LimitsFile(path)
            fcntl.fcntl(readable, fcntl.F_SETLEASE, fcntl.F_UNLCK)  # the kernel does it after 45 s
        assert change(path, page(200))
    finally:
        signal.signal(signal.SIGIO, before)


def test_threads_change_one_after_the_other(path: Path) -> None:
    with LimitsFile.create(path, page()) as file, ThreadPoolExecutor(8) as pool:
        wanted = [page(1 + number % 7, writer_generation=number) for number in range(400)]
        assert all(pool.map(file.change, wanted))
        found = limits_file.read(path)
        assert found.settled
        assert found.page in wanted
        assert limits_page.sequence_of(path.read_bytes()) == 800


@pytest.mark.parametrize("sequence", [1, 7, 2**64 - 1])
def test_a_change_cut_short_is_read_and_then_made_whole(path: Path, sequence: int) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(limits_page.encode(page(7), sequence))
    assert limits_file.read(path) == limits_file.ReadLimits(page(7), settled=False)
    assert change(path, page(7))
    assert limits_file.read(path) == limits_file.ReadLimits(page(7), settled=True)
    assert limits_page.sequence_of(path.read_bytes()) == (sequence + 1) % 2**64


# ---- a writer that is killed, readers that run meanwhile ---------------------------------------------------------

WRITER = """
import sys
from pathlib import Path
from hami_model.limits_page import CardLimits, LimitsPage
from hami_node_agent.adapters.limits_file import LimitsFile
file, number = LimitsFile(Path(sys.argv[1])), 0
while True:
    number += 1
    cards = tuple(CardLimits(uuid=f"GPU-{i}", memory_limit_bytes=number, context_bytes=number) for i in range(16))
    file.change(LimitsPage(region_file="/r", cards=cards, writer_generation=number))
    if number == 100:
        print("writing", flush=True)
"""


def start_writer(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)


def numbers_in(found: LimitsPage) -> set[int]:
    """One number, unless values of two changes are mixed."""
    return {found.writer_generation} | {
        number for card in found.cards for number in (card.memory_limit_bytes, card.context_bytes)
    }


def test_readers_never_see_half_a_change_and_a_killed_writer_holds_nobody_up(path: Path) -> None:
    create(path, LimitsPage(region_file="/r", cards=tuple(CardLimits(uuid=f"GPU-{i}") for i in range(16))))
    last = 0
    for _ in range(4):
        with start_writer(path) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "writing\n"
            settled = 0
            while settled < 50:
                seen = limits_file.read(path)
                if seen.settled:
                    settled += 1
                    assert len(numbers_in(seen.page)) == 1
            writer.kill()
        after = limits_file.read(path)
        assert len(numbers_in(after.page)) <= (1 if after.settled else 2)
        last = max(numbers_in(after.page))
    assert last > 100
    final = LimitsPage(region_file="/r", cards=tuple(CardLimits(uuid=f"GPU-{i}") for i in range(16)))
    assert change(path, final)
    assert limits_file.read(path) == limits_file.ReadLimits(final, settled=True)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**64 - 1),
            st.integers(1, 100),
            st.integers(0, 2**64 - 1),
            st.booleans(),
            st.sampled_from(Policy),
            st.sampled_from(Control),
            st.integers(-(2**31), 2**31 - 1),
        ),
        max_size=8,
    )
)
def test_after_any_changes_the_page_is_as_if_made_anew(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, int, bool, Policy, Control, int]]
) -> None:
    path = tmp_path_factory.mktemp("limits") / layout.FILE
    create(path, page())
    wanted, changes = page(), 0
    for memory, cores, context, withheld, policy, control, priority in steps:
        card = CardLimits(
            uuid="GPU-1",
            memory_limit_bytes=memory,
            cores_percent=cores,
            context_bytes=context,
            withheld=withheld,
        )
        before, wanted = (
            wanted,
            page(cards=(page().cards[0], card), policy=policy, control=control, priority=priority),
        )
        assert change(path, wanted) == (before != wanted)
        changes += before != wanted
    assert path.read_bytes() == limits_page.encode(wanted, sequence=2 * changes)
