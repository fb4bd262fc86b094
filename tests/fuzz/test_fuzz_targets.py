"""Every seed passes its target, findings of the past among them, and a fault in a decoder is noticed."""

from pathlib import Path

import pytest
import python_targets
from rust_targets import RUST_TARGETS

SEEDS = Path(__file__).parent / "seeds"
PYTHON_SEEDS = [file for name in python_targets.TARGETS for file in sorted((SEEDS / name).glob("*"))]


def test_every_target_has_seeds_and_every_seed_a_target() -> None:
    assert {folder.name for folder in SEEDS.iterdir()} == {*python_targets.TARGETS, *RUST_TARGETS}
    assert all(any(folder.iterdir()) for folder in SEEDS.iterdir())


@pytest.mark.parametrize("file", PYTHON_SEEDS, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_a_seed_passes(file: Path) -> None:
    python_targets.run(file.parent.name, file.read_bytes())


@pytest.mark.parametrize("name", sorted(python_targets.TARGETS))
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\0", id="zero"),
        pytest.param(b"\xff\xfe\xff", id="no text"),
        pytest.param(b"[" * 3000, id="deep lists"),
        pytest.param(b'{"a":' * 500, id="deep objects"),
        pytest.param(b"9" * 4000, id="long number"),
    ],
)
def test_odd_bytes_pass(name: str, data: bytes) -> None:
    python_targets.run(name, data)


def test_an_error_that_is_not_the_decoders_own_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(data: bytes) -> None:
        if data:
            raise IndexError("out of range")

    monkeypatch.setitem(python_targets.TARGETS, "faulty", python_targets.Target(faulty, (ValueError,), 10))
    python_targets.run("faulty", b"")
    with pytest.raises(IndexError):
        python_targets.run("faulty", b"x")
