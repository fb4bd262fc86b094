"""A machine, or a process, without room to open a file: what cannot be read is neither absent nor idle nor unused."""

from __future__ import annotations

import errno
import gc
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hami_model import limits_page
from hami_model.limits_page import CardLimits, LimitsPage
from hami_monitor.adapters.limits_pages import LimitsPages
from hami_monitor.adapters.proc import ProcProcesses
from hami_monitor.adapters.region_files import RegionFiles
from hami_monitor.core.container_folder import FolderOwner
from hami_monitor.folder_removal import FolderRemoval
from monitor_builders import CARD_A, region_bytes
from test_monitor_feeding_back import Node as FeedbackNode
from test_monitor_folder_removal import Node as FolderNode
from test_monitor_watching import Watched

OWNER = FolderOwner(pod_uid="u", container="main")
NO_ROOM = OSError(errno.EMFILE, "Too many open files")


@contextmanager
def at_most_more_files(more: int) -> Iterator[None]:
    gc.collect()  # what earlier tests left would make room when it goes
    lowest = os.dup(0)
    os.close(lowest)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def container(root: Path) -> None:
    (root / "containers" / "u_main").mkdir(parents=True)
    (root / "containers" / "u_main" / "a.cache").write_bytes(region_bytes())
    (root / "limits" / "u_main").mkdir(parents=True)
    page = LimitsPage(region_file="/usr/local/vgpu/a.cache", cards=(CardLimits(uuid=CARD_A),))
    (root / "limits" / "u_main" / "page").write_bytes(limits_page.encode(page))


@pytest.mark.parametrize(
    ("files_needed", "read"),
    [
        pytest.param(4, lambda root: RegionFiles(root / "containers").scan(), id="scan"),
        pytest.param(4, lambda root: RegionFiles(root / "containers").words([OWNER]), id="words"),
        pytest.param(4, lambda root: RegionFiles(root / "containers").slots([OWNER]), id="slots"),
        pytest.param(2, lambda root: LimitsPages(root / "limits").pages([OWNER]), id="pages"),
        pytest.param(1, lambda _: ProcProcesses().trace([os.getpid()], ()), id="processes"),
    ],
)
def test_what_cannot_be_opened_is_not_taken_for_absent(
    tmp_path: Path, files_needed: int, read: Callable[[Path], object]
) -> None:
    container(tmp_path)
    for more in range(files_needed):
        with at_most_more_files(more), pytest.raises(OSError, match="Too many open files"):
            read(tmp_path)
    assert read(tmp_path)


async def test_who_waits_goes_on_waiting_and_the_loop_goes_on(tmp_path: Path) -> None:
    node = FeedbackNode(tmp_path)
    node.add("urgent", 0)
    node.add("other", 1)
    await node.loop.look()
    node.launch("urgent")

    with at_most_more_files(0):
        await node.loop.look()
        node.loop.release()

    assert node.words("other") == (-1, 1)
    await node.loop.look()
    assert node.words("other") == (-1, 1)
    assert {verdict.owner.pod_uid for verdict in node.loop.last.verdicts if verdict.is_blocked} == {"uid-other"}


async def test_a_folder_stays_while_nobody_can_tell_whether_somebody_works_in_it(tmp_path: Path) -> None:
    node = FolderNode(tmp_path)
    folder = node.add("gone")

    class Unknown:
        def using(self, _owners: object) -> set[FolderOwner]:
            raise NO_ROOM

    blind = FolderRemoval(
        keep_seconds=300,
        folders=node.store,
        users=Unknown(),
        pods=node,
        pods_known=node.known,
        pod_list=node,
        clock=node.clock,
    )
    await blind.look()
    with at_most_more_files(0):
        await node.removal.look()
    assert folder.exists()

    await node.removal.look()
    assert not folder.exists()


async def test_there_is_no_sample_of_what_was_not_read_and_the_next_one_comes() -> None:
    watched = Watched()
    watched.pods_known.set()
    async with watched.running():
        before = await watched.sampled()
        told = len(watched.sink.sent)
        watched.regions.trouble = NO_ROOM
        watched.clock.advance(5)
        await watched.clock.wait_for_sleepers(2)
        assert watched.sampler.last is before
        assert len(watched.sink.sent) == told
        watched.regions.trouble = None
        assert (await watched.next_period()).slices[0].memory_used_bytes == 7
