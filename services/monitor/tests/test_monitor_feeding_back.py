"""The loop over real region files: what is written where, and what a container can do about it."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hami_model import limits_page
from hami_model.limits_page import CardLimits, LimitsPage
from hami_monitor.adapters.limits_pages import LimitsPages
from hami_monitor.adapters.region_files import RegionFiles
from hami_monitor.adapters.region_writing import RegionWriting
from hami_monitor.core.container_folder import FolderOwner, RegionPlace
from hami_monitor.core.pods import MonitoredPod
from hami_monitor.core.region_layouts import V0, V1, Layout
from hami_monitor.core.region_words import RegionMovedError, RegionWords, WordChange
from hami_monitor.feeding_back import FeedbackLoop
from hami_monitor.metrics import MonitorMetrics
from hami_sim.manual_clock import ManualClock
from monitor_builders import CARD_A, CARD_B, pod, region_bytes
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

CHANGE = (WordChange(offset=V1.recent_kernel, value=-1),)


class Node:
    """Folders of containers, and the loop over them."""

    def __init__(self, root: Path) -> None:
        self.containers = root / "containers"
        self.limits = root / "limits"
        self.containers.mkdir()
        self.pods: list[MonitoredPod] = []
        self.known = asyncio.Event()
        self.registry = CollectorRegistry()
        self.clock = ManualClock()
        self.loop = FeedbackLoop(
            period_seconds=5.0,
            hold_ticks=0,
            regions=RegionFiles(self.containers),
            sink=RegionWriting(self.containers),
            pages=LimitsPages(self.limits),
            pods=self,
            pods_known=self.known,
            metrics=MonitorMetrics(self.registry),
            clock=self.clock,
        )

    def values(self) -> Iterable[MonitoredPod]:
        return list(self.pods)

    def file(self, name: str) -> Path:
        return self.containers / f"uid-{name}_main" / "a.cache"

    def add(
        self,
        name: str,
        priority: int,
        *,
        card: str = CARD_A,
        names: Iterable[str] = (CARD_A,),
        layout: Layout = V1,
        is_known: bool = True,
    ) -> None:
        self.file(name).parent.mkdir()
        data = bytearray(region_bytes(layout=layout, cards=tuple(names)))
        struct.pack_into("<i", data, layout.priority, priority)
        self.file(name).write_bytes(data)
        if is_known:
            self.pods.append(pod(name, f"{card},NVIDIA,3000,30:;"))

    def page(self, name: str, priority: int) -> None:
        folder = self.limits / f"uid-{name}_main"
        folder.mkdir(parents=True)
        page = LimitsPage(region_file="/usr/local/vgpu/a.cache", cards=(CardLimits(uuid=CARD_A),), priority=priority)
        (folder / "page").write_bytes(limits_page.encode(page))

    def words(self, name: str) -> tuple[int, int]:
        """Recent kernel and switch, as in the file."""
        owner = FolderOwner(pod_uid=f"uid-{name}", container="main")
        (found,) = RegionFiles(self.containers).words([owner]).values()
        return found.recent_kernel, found.utilisation_switch

    def launch(self, name: str, layout: Layout = V1) -> None:
        if self.words(name)[0] >= 0:
            with self.file(name).open("r+b") as file:
                os.pwrite(file.fileno(), struct.pack("<i", 2), layout.recent_kernel)

    def counted(self, metric: str, **labels: str) -> float:
        return self.registry.get_sample_value(metric, labels) or 0


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  # a thread makes it so
        await asyncio.sleep(0.01)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_one_waits_and_goes_on(node: Node) -> None:
    """Of a region of the oldest layout and one of the newest."""
    node.add("urgent", 0, layout=V0)
    node.add("other", 1)
    with capture_logs() as logs:
        await node.loop.look()
        assert (node.words("urgent"), node.words("other")) == ((1, 0), (-1, 1))
        node.launch("urgent", V0)
        node.launch("other")
        await node.loop.look()
        assert (node.words("urgent"), node.words("other")) == ((1, 0), (-1, 1))
        await node.loop.look()
        assert (node.words("urgent"), node.words("other")) == ((0, 0), (0, 0))
    told = [entry for entry in logs if entry["event"] in ("blocked", "unblocked")]
    assert [(entry["event"], entry["pod"], entry.get("by")) for entry in told] == [
        ("blocked", "team/other", "team/urgent"),
        ("unblocked", "team/other", None),
    ]


async def test_a_card_that_it_does_not_hold_gives_a_container_no_say(node: Node) -> None:
    node.add("greedy", 0, card=CARD_B, names=(CARD_A, CARD_B))
    node.add("other", 1)
    await node.loop.look()
    assert node.words("other")[0] == 1


async def test_the_pages_priority_counts_and_not_what_the_region_says(node: Node) -> None:
    node.add("pushing", -5)
    node.page("pushing", 3)
    node.add("other", 1)
    node.page("other", 1)
    await node.loop.look()
    assert (node.words("pushing")[0], node.words("other")[0]) == (-1, 1)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\0" * 4096])
async def test_a_page_that_cannot_be_read_is_told_once_and_the_region_counts(node: Node, content: bytes) -> None:
    node.add("a", 0)
    node.add("b", 1)
    node.page("b", -1)
    (node.limits / "uid-b_main" / "page").write_bytes(content)
    with capture_logs() as logs:
        await node.loop.look()
        node.launch("a")
        await node.loop.look()
    assert node.words("b")[0] == -1
    assert [entry["event"] for entry in logs].count("limits-page-unreadable") == 1


async def test_a_pod_that_calls_itself_by_a_path_reaches_no_other_folder(node: Node, tmp_path: Path) -> None:
    """Whoever makes a pod may say whose mirror it is."""
    elsewhere = tmp_path / "elsewhere_main"
    elsewhere.mkdir()
    (elsewhere / "a.cache").write_bytes(region_bytes())
    key = {"kubernetes.io/config.mirror": "../elsewhere"}
    node.pods.append(pod("liar", f"{CARD_A},NVIDIA,3000,30:;", annotations=key))
    node.add("urgent", 0)
    await node.loop.look()
    assert (elsewhere / "a.cache").read_bytes() == region_bytes()


async def test_regions_of_no_pod_and_of_containers_that_ended_are_left_alone(node: Node) -> None:
    node.add("stranger", 0, is_known=False)
    node.add("ended", 0)
    node.pods[-1] = pod("ended", f"{CARD_A},NVIDIA,3000,30:;", phase="Succeeded")
    node.add("other", 1)
    await node.loop.look()
    assert (node.words("stranger"), node.words("ended")) == ((2, 1), (2, 1))
    assert node.words("other")[0] == 1


@pytest.mark.case("MON-15")
async def test_nothing_is_written_before_the_pods_are_known(node: Node) -> None:
    node.add("urgent", 0)
    node.add("other", 1)
    running = asyncio.create_task(node.loop.run())
    await asyncio.sleep(0)
    node.clock.advance(60)
    await asyncio.sleep(0)
    assert (node.words("urgent"), node.words("other")) == ((2, 1), (2, 1))
    node.known.set()
    await until(lambda: bool(node.loop.last.verdicts))
    assert node.words("other")[0] == -1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert node.words("other") == (0, 1)


async def test_who_looks_no_more_lets_go(node: Node) -> None:
    node.add("urgent", 0)
    node.add("other", 1)
    await node.loop.look()
    node.loop.release()
    assert (node.words("urgent"), node.words("other")) == ((1, 1), (0, 1))


# ---- files that are swapped between reading and writing -------------------------------------------------------------


def place_of(node: Node, name: str) -> tuple[RegionPlace, RegionWords]:
    owner = FolderOwner(pod_uid=f"uid-{name}", container="main")
    ((place, words),) = RegionFiles(node.containers).words([owner]).items()
    return place, words


def by_a_link(file: Path, victim: Path) -> None:
    file.unlink()
    file.symlink_to(victim)


def by_a_second_name(file: Path, victim: Path) -> None:
    file.unlink()
    file.hardlink_to(victim)


def by_another_name_of_itself(file: Path, victim: Path) -> None:
    victim.unlink()
    victim.hardlink_to(file)


def by_a_pipe(file: Path, _victim: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def by_a_folder(file: Path, _victim: Path) -> None:
    file.unlink()
    file.mkdir()


def by_nothing(file: Path, _victim: Path) -> None:
    file.unlink()


def by_a_copy(file: Path, _victim: Path) -> None:
    data = file.read_bytes()
    file.rename(file.with_name("old"))
    file.write_bytes(data)


def by_a_shorter_one(file: Path, _victim: Path) -> None:
    os.truncate(file, 4096)


def by_another_layout(file: Path, _victim: Path) -> None:
    os.truncate(file, 0)
    with file.open("r+b") as opened:  # the same inode
        opened.write(region_bytes(layout=V0))


@pytest.mark.parametrize(
    "swap",
    [
        by_a_link, by_a_second_name, by_another_name_of_itself, by_a_pipe, by_a_folder, by_nothing, by_a_copy,
        by_a_shorter_one, by_another_layout,
    ],
)  # fmt: skip
def test_what_was_swapped_is_not_written(node: Node, tmp_path: Path, swap: object) -> None:
    node.add("a", 1)
    victim = tmp_path / "victim"
    victim.write_bytes(region_bytes())
    place, words = place_of(node, "a")
    swap(node.file("a"), victim)  # type: ignore[operator]
    before = victim.read_bytes()
    with pytest.raises((RegionMovedError, OSError)):
        RegionWriting(node.containers).write(place, words.layout, CHANGE)
    assert victim.read_bytes() == before


async def test_a_swap_costs_the_swapper_only(node: Node, tmp_path: Path) -> None:
    node.add("urgent", 0)
    node.add("swapper", 1)
    node.add("other", 1)
    (tmp_path / "secret").write_bytes(region_bytes())
    reading = RegionFiles(node.containers)

    class Swapped:
        def words(self, owners: Iterable[FolderOwner]) -> dict[RegionPlace, RegionWords]:
            found = reading.words(owners)
            by_a_link(node.file("swapper"), tmp_path / "secret")
            return found

    node.loop._regions = Swapped()
    with capture_logs() as logs:
        await node.loop.look()
    assert (tmp_path / "secret").read_bytes() == region_bytes()
    assert node.words("other")[0] == -1
    assert node.counted("hami_monitor_region_write_failures_total", why="replaced") == 1
    assert [entry["event"] for entry in logs].count("region-not-written") == 1


def test_a_word_that_has_changed_meanwhile_is_left(node: Node) -> None:
    node.add("a", 1)
    place, words = place_of(node, "a")
    change = WordChange(offset=V1.recent_kernel, value=0, expected=1)
    assert RegionWriting(node.containers).write(place, words.layout, (change,)) == 0
    assert node.words("a") == (2, 1)


def test_four_bytes_are_written_and_nothing_else(node: Node) -> None:
    node.add("a", 1)
    before = node.file("a").read_bytes()
    place, words = place_of(node, "a")
    assert RegionWriting(node.containers).write(place, words.layout, CHANGE) == 1
    after = node.file("a").read_bytes()
    differing = [offset for offset, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    assert differing == [*range(V1.recent_kernel, V1.recent_kernel + 4)]
