"""Building into the cache with a real Go: complete or not at all, and one build at a time."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hami_sim.binaries import BinariesUnavailableError
from hami_sim.binaries.build import build
from hami_sim.binaries.cache import Recipe

# Each test compiles Go's own packages anew.
pytestmark = pytest.mark.timeout(1800)

# The builtin println needs no package, so that an empty build cache is filled within seconds.
PROGRAM = 'package main\n\nfunc main() { println("built") }\n'


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Recipe:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "source"
    source.mkdir()
    (source / "go.mod").write_text("module example.com/program\n\ngo 1.26.0\n\nrequire example.com/pinned v1.2.3\n")
    (source / "main.go").write_text(PROGRAM)
    return Recipe("program", source, "example.com/pinned", ("one", "other"))


def unfinished(recipe: Recipe) -> list[str]:
    return [path.name for path in recipe.folder().parent.iterdir() if path != recipe.folder()]


def test_two_that_want_it_at_once_get_one_build(recipe: Recipe) -> None:
    lines: list[str] = []
    with ThreadPoolExecutor(2) as executor:
        folders = set(executor.map(lambda _n: build(recipe, lines.append), range(2)))
    assert folders == {recipe.folder()}
    assert [line.rpartition(", ")[2] for line in lines if line.startswith("building")].count("done") == 1
    assert "another process is building; waiting for it" in lines
    for name in recipe.program_names:
        printed = subprocess.run([recipe.folder() / name], capture_output=True, text=True, check=True)
        assert printed.stderr == "built\n"
    assert unfinished(recipe) == []


def test_a_failed_build_leaves_no_folder_and_tells_gos_words(recipe: Recipe) -> None:
    (recipe.source / "main.go").write_text("package main\n\nfunc main() { undefinedName() }\n")
    with pytest.raises(BinariesUnavailableError, match="undefined: undefinedName"):
        build(recipe, lambda _line: None)
    assert not recipe.folder().exists()

    (recipe.source / "main.go").write_text(PROGRAM)
    assert build(recipe, lambda _line: None).is_dir()
    assert unfinished(recipe) == []


def test_a_broken_module_file_is_reported(recipe: Recipe) -> None:
    (recipe.source / "main.go").write_text('package main\n\nimport _ "example.com/absent"\n\nfunc main() {}\n')
    with pytest.raises(BinariesUnavailableError, match=r"go list of program failed:[\s\S]*missing go.sum entry"):
        build(recipe, lambda _line: None)
