"""The page as Python writes it and as libvgpu reads it: the same rules, never torn, and it is what holds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hami_model import limits_page
from hami_model.limits_page import CardLimits, Control, LimitsPage, MalformedLimitsPage, Policy, layout
from hami_node_agent.adapters.limits_file import LimitsFile

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "libvgpu/build"
SOURCES = ROOT / "libvgpu/src"
CARDS = ("GPU-11111111-2222-3333-4444-000000000000", "GPU-11111111-2222-3333-4444-000000000001")
MIB = 1 << 20

JUDGE = r"""
/* `judge`: pages on stdin, a line for each on stdout. `judge FILE`: copies the page while it is changed. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include "core/limits_page.h"

static int watch(const char *path) {
    struct vg_limits_page copy;
    const struct vg_limits_page *page = mmap(NULL, sizeof copy, PROT_READ, MAP_SHARED, open(path, O_RDONLY), 0);
    unsigned long settled = 0, different = 0;
    uint64_t last = 0;
    puts("watching");
    fflush(stdout);
    while (different < 200) {
        if (!vgi_limits_page_copy(page, &copy))
            continue;
        uint64_t number = copy.writer_generation;
        if (vgi_limits_page_fault(&copy) != NULL || number < last)
            return 1;
        for (int i = 0; i < VG_LIMITS_MAX_CARDS; i++)
            if (copy.cards[i].memory_limit_bytes != number || copy.cards[i].context_bytes != number)
                return 2;
        settled++;
        different += number != last;
        last = number;
    }
    printf("%lu\n", settled);
    return 0;
}

int main(int argc, char **argv) {
    struct vg_limits_page page;
    if (argc > 1)
        return watch(argv[1]);
    while (fread(&page, sizeof page, 1, stdin) == 1) {
        const char *fault = vgi_limits_page_fault(&page);
        puts(fault == NULL ? "sound" : fault);
    }
    return 0;
}
"""


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    assert compiler is not None, "a C compiler named cc is needed, as for the library itself"
    folder = tmp_path_factory.mktemp("judge")
    (folder / "judge.c").write_text(JUDGE)
    includes = [f"-I{SOURCES}", f"-I{ROOT / 'libvgpu/include'}", f"-I{ROOT / 'libs/hami-model/schemas'}"]
    subprocess.run(
        [
            compiler,
            "-O2",
            "-D_GNU_SOURCE",
            *includes,
            folder / "judge.c",
            SOURCES / "core/limits_page.c",
            "-o",
            folder / "judge",
        ],
        check=True,
    )
    return folder / "judge"


def corrupted(random: Random) -> Iterator[bytes]:
    """Sound pages and pages with a few bytes changed, mostly where something is."""
    words = [field.offset for field in layout.PAGE.fields]
    words += [
        layout.PAGE.field("cards").offset + 128 * card + f.offset for card in range(3) for f in layout.CARD.fields
    ]
    for _ in range(4000):
        cards = tuple(
            CardLimits(
                uuid=f"GPU-{random.randrange(40):x}-{number}",
                memory_limit_bytes=random.randrange(2**64),
                cores_percent=random.randrange(1, 101),
                withheld=random.random() < 0.2,
            )
            for number in range(random.randrange(17))
        )
        page = LimitsPage(
            region_file="/" + "r" * random.randrange(500),
            cards=cards,
            policy=random.choice(list(Policy)),
            control=random.choice(list(Control)),
            priority=random.randrange(-5, 5),
        )
        data = bytearray(limits_page.encode(page, random.randrange(2**64)))
        for _ in range(random.choice((0, 1, 1, 1, 3))):
            near = random.choice(words) + random.randrange(8)
            offset = random.choice((near, random.randrange(layout.PAGE_BYTES)))
            data[min(offset, layout.PAGE_BYTES - 1)] = random.choice((0, 1, 2, 0x7F, 0xFF, random.randrange(256)))
        yield bytes(data)


def is_sound(data: bytes) -> bool:
    try:
        limits_page.decode(data)
    except MalformedLimitsPage:
        return False
    return True


def test_both_sides_find_the_same_pages_sound(judge: Path) -> None:
    pages = list(corrupted(Random(20261130)))  # noqa: S311
    told = subprocess.run([judge], input=b"".join(pages), capture_output=True, check=True).stdout.decode().splitlines()
    here = [is_sound(page) for page in pages]
    assert [fault == "sound" for fault in told] == here
    assert 0.1 < sum(here) / len(here) < 0.9
    assert len(set(told)) > 8  # different rules were broken


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
"""


def test_the_library_never_copies_half_a_change(judge: Path, tmp_path: Path) -> None:
    path = tmp_path / layout.FILE
    cards = tuple(CardLimits(uuid=f"GPU-{number}") for number in range(16))
    LimitsFile.create(path, LimitsPage(region_file="/r", cards=cards)).close()
    with subprocess.Popen([judge, path], stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline() == "watching\n"
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)])
        try:
            settled = watching.stdout.read()
        finally:
            writer.kill()
            writer.wait()
    assert (watching.returncode, int(settled) >= 200) == (0, True)


class Container:
    """A folder with the library and the page beside it, and processes that have it preloaded."""

    def __init__(self, root: Path) -> None:
        self.page_file = root / "vgpu" / layout.DIRECTORY / layout.FILE
        self.library = root / "vgpu/libvgpu.so"
        self.region_file = str(root / "slice.cache")
        self.library.parent.mkdir()
        shutil.copy(BUILD / "lib/libvgpu.so", self.library)
        (root / "driver.json").write_text(
            json.dumps({"cards": [{"uuid": card, "name": "A100", "memory_mib": 40960} for card in CARDS]})
        )
        self.environment = {
            "PATH": os.environ["PATH"],
            "HAMI_SIM_DRIVER": str(root / "driver.json"),
            "LD_LIBRARY_PATH": str(BUILD / "sim"),
            "LD_PRELOAD": str(self.library),
        }

    def page(self, memory_mib: int, **changes: object) -> LimitsPage:
        card = CardLimits(uuid=CARDS[0], memory_limit_bytes=memory_mib * MIB)
        return LimitsPage(**{"region_file": self.region_file, "cards": (card,), **changes})  # type: ignore[arg-type]

    def granted_mib(self, **environment: str) -> int:
        ended = subprocess.run(
            [BUILD / "bin/vgpu-workload", "over-alloc", "--step-mib", "10"],
            env={**self.environment, **environment},
            check=True,
            capture_output=True,
            text=True,
        )
        return int(json.loads(ended.stdout.splitlines()[-1])["granted_mib"])


def test_what_the_writer_writes_is_what_holds(tmp_path: Path) -> None:
    container = Container(tmp_path)
    with LimitsFile.create(container.page_file, container.page(100)) as file:
        assert container.granted_mib() == 100
        assert container.granted_mib(CUDA_DEVICE_MEMORY_LIMIT="9000m", CUDA_DISABLE_CONTROL="true") == 100
        assert file.change(container.page(300))
        assert container.granted_mib() == 300
        assert file.change(container.page(300, control=Control.DISABLED))
        assert container.granted_mib() == 40960


def test_a_change_reaches_a_process_that_runs(tmp_path: Path) -> None:
    container = Container(tmp_path)
    with (
        LimitsFile.create(container.page_file, container.page(200)) as file,
        subprocess.Popen(
            [BUILD / "bin/vgpu-workload", "over-alloc", "--step-mib", "10", "--hold-until-signal"],
            env=container.environment,
            stdout=subprocess.PIPE,
            text=True,
        ) as holder,
    ):
        try:
            assert holder.stdout is not None
            assert json.loads(holder.stdout.readline())["granted_mib"] == 200
            assert container.granted_mib() == 0
            file.change(container.page(250))
            assert container.granted_mib() == 50
            file.change(container.page(20))
            assert container.granted_mib() == 0
        finally:
            holder.terminate()
