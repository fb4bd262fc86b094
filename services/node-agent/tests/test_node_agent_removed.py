"""What somebody removes under a running agent is there again before the next container starts, or is named."""
# ruff: noqa: ASYNC240  # what is looked at is small and local

from __future__ import annotations

import os
import shutil
import stat
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from hami_chassis.errors import Transient
from hami_model.limits_page import CardLimits, LimitsPage, layout
from hami_node_agent.adapters import limits_file
from hami_node_agent.adapters.handover_files import HandoverFolders
from hami_node_agent.adapters.host_files import CdiFolder, CheckpointFile
from hami_node_agent.adapters.host_folder import HostFolder
from hami_node_agent.core.cdi_spec import OwnSpec
from hami_node_agent.core.grant import ContainerFiles, HostLayout
from hami_node_agent.core.handed_out import HandedOut, HandedPod
from hami_sim.manual_clock import ManualClock

BOOK = HandedOut({"u1": HandedPod(namespace="n", name="p", allocation_id="a")})
SPEC = OwnSpec(pod_uid="u1", name="a", content=b"{}")


class Host:
    """A node whose agent has put one container's files in place."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.layout = HostLayout(hook_path=str(root / "hook"), lock_dir=str(root / "lock"))
        self.source = root / "libvgpu.so"
        self.source.write_bytes(b"library")
        self.folder = HostFolder(self.layout, "")
        self.folder.install(str(self.source))
        self.library = Path(self.folder.state().library)
        self.cdi = root / "run" / "cdi"
        self.own = CheckpointFile(root / "state" / "handed-out.json")
        self.files = HandoverFolders(self.folder, CdiFolder(self.cdi, []), self.own)

    def container(self, library: str = "") -> ContainerFiles:
        card = CardLimits(uuid="GPU-1", memory_limit_bytes=1 << 20)
        page = LimitsPage(region_file="/usr/local/vgpu/r.cache", cards=(card,))
        return ContainerFiles(pod_uid="u1", container="main", page=page, library=library or str(self.library))

    async def start(self) -> None:
        await self.files.put(self.container(), SPEC)

    def page(self) -> Path:
        return Path(self.layout.limits_dir("u1", "main")) / layout.FILE


@pytest.fixture
async def host(tmp_path: Path) -> Host:
    found = Host(tmp_path)
    await found.start()
    return found


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("removed", "expected"),
    [
        pytest.param("hook/vgpu/containers", 0o700, id="regions"),
        pytest.param("hook/vgpu/limits", 0o700, id="limits pages"),
        pytest.param("run/cdi", 0o755, id="specifications"),
        pytest.param("run", 0o755, id="what they lie in"),
        pytest.param("lock", 0o777, id="lock folder"),
        pytest.param("hook/vgpu", 0o755, id="everything"),
    ],
)
async def test_a_removed_folder_is_made_again(host: Host, removed: str, expected: int) -> None:
    shutil.rmtree(host.root / removed)

    await host.start()

    assert mode(host.root / removed) == expected
    assert mode(Path(host.layout.containers)) == mode(Path(host.layout.limits)) == 0o700
    assert limits_file.read(host.page()).page == host.container().page
    assert Path(host.layout.container_dir("u1", "main")).is_dir()
    assert (host.library.read_bytes(), mode(host.library)) == (b"library", 0o755)
    assert Path(host.layout.preload_list).read_text() == f"{host.layout.library}\n"
    assert [path.read_bytes() for path in host.cdi.iterdir()] == [SPEC.content]


async def test_a_folder_that_others_were_let_into_is_closed_again(host: Host) -> None:
    Path(host.layout.limits).chmod(0o755)
    await host.start()
    assert mode(Path(host.layout.limits)) == 0o700


@pytest.mark.parametrize("place", ["hook/vgpu/containers", "hook/vgpu/limits", "run/cdi"])
async def test_where_no_folder_can_be_the_message_says_what_to_do(host: Host, place: str) -> None:
    shutil.rmtree(host.root / place)
    (host.root / place).write_text("in the way")

    with pytest.raises(Transient, match=rf"{place}.*remove what lies in its place"):
        await host.start()

    (host.root / place).unlink()
    await host.start()


async def test_who_runs_keeps_the_removed_page_and_who_starts_gets_another(host: Host) -> None:
    with host.page().open("rb") as mapped:
        shutil.rmtree(host.page().parent)
        await host.start()
        assert mapped.read() == host.page().read_bytes()
        assert host.page().stat().st_ino != os.fstat(mapped.fileno()).st_ino


async def test_nothing_is_left_over_where_there_is_no_folder(host: Host) -> None:
    shutil.rmtree(host.layout.folder)
    shutil.rmtree(host.cdi)

    assert await host.folder.owners() == await CdiFolder(host.cdi, []).owners() == frozenset()
    await host.folder.remove_pod("u1")
    await host.folder.remove_libraries(frozenset())


# ---- the library ---------------------------------------------------------------------------------------------------


async def test_a_library_that_cannot_be_put_back_is_never_handed_out(host: Host) -> None:
    earlier = host.layout.versioned_library("0123456789abcdef")
    with pytest.raises(Transient, match=rf"{earlier} is gone.*put it back.*delete the pod"):
        await host.files.put(host.container(earlier), None)

    host.library.unlink()
    host.source.write_bytes(b"another")
    assert host.folder.state().library == str(host.library)
    with pytest.raises(Transient, match=r"is gone.*another one by now: restart the node-agent"):
        await host.start()
    assert not host.library.exists()


async def test_a_container_without_the_library_does_not_wait_for_it(host: Host) -> None:
    host.library.unlink()
    host.source.unlink()
    await host.files.put(None, SPEC)


# ---- what was handed out -------------------------------------------------------------------------------------------


async def test_the_folder_of_the_checkpoint_is_made_again_and_held_again(host: Host) -> None:
    clock = ManualClock()
    async with AsyncExitStack() as stack, AsyncExitStack() as other:
        await host.own.hold(stack, clock)
        await host.own.write(BOOK)
        shutil.rmtree(host.root / "state")
        assert (await host.files.look(with_specs=False)).is_book_missing

        await host.own.write(BOOK)

        assert not (await host.files.look(with_specs=False)).is_book_missing
        assert CheckpointFile(host.root / "state" / "handed-out.json").load().uids() == {"u1"}
        shutil.rmtree(host.root / "state")
        await CheckpointFile(host.root / "state" / "handed-out.json").hold(other, clock)
        with pytest.raises(Transient, match="another node-agent works with this folder"):
            await host.own.write(BOOK)
