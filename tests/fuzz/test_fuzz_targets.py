"""Every seed passes its target, findings of the past among them, and a fault in a decoder is noticed."""

import subprocess
from pathlib import Path

import pytest
import python_targets
from c_targets import C_TARGETS, are_built, program
from rust_targets import RUST_TARGETS

SEEDS = Path(__file__).parent / "seeds"
PYTHON_SEEDS = [file for name in python_targets.TARGETS for file in sorted((SEEDS / name).glob("*"))]


def test_every_target_has_seeds_and_every_seed_a_target() -> None:
    assert {folder.name for folder in SEEDS.iterdir()} == {*python_targets.TARGETS, *RUST_TARGETS, *C_TARGETS}
    assert all(any(folder.iterdir()) for folder in SEEDS.iterdir())


@pytest.mark.parametrize("file", PYTHON_SEEDS, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_a_seed_passes(file: Path) -> None:
    python_targets.run(file.parent.name, file.read_bytes())


@pytest.mark.skipif(not are_built(), reason="the targets in C are not built: make libvgpu")
@pytest.mark.parametrize("name", sorted(C_TARGETS))
def test_the_seeds_of_a_target_in_c_pass(name: str, tmp_path: Path) -> None:
    command = [program(name), f"-artifact_prefix={tmp_path}/", *sorted((SEEDS / name).glob("*"))]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.skipif(not are_built(), reason="the targets in C are not built: make libvgpu")
def test_what_a_target_in_c_learns_is_kept_beside_the_seeds(tmp_path: Path) -> None:
    """A folder alone is the seeds, which nothing is written to."""
    corpus, seeds = tmp_path / "corpus", tmp_path / "seeds"
    corpus.mkdir()
    seeds.mkdir()
    (seeds / "one").write_bytes(b"CUDA_DEVICE_SM_LIMIT=5")
    command = [program("libvgpu-environment"), "-runs=300"]
    subprocess.run([*command, seeds], check=True, capture_output=True)
    subprocess.run([*command, corpus, seeds], check=True, capture_output=True)
    assert [file.name for file in seeds.iterdir()] == ["one"]
    assert any(corpus.iterdir())


@pytest.mark.skipif(not are_built(), reason="the targets in C are not built: make libvgpu")
def test_a_seeded_fault_in_c_is_found_and_its_input_kept(tmp_path: Path) -> None:
    command = [program("libvgpu-seeded-fault"), "-runs=2000000", f"-artifact_prefix={tmp_path}/"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert "heap-buffer-overflow" in ended.stderr
    assert (tmp_path / "crash").read_bytes().startswith(b"GPU-\xfe")


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
