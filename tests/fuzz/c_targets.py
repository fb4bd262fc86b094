"""The targets in C: libvgpu's and the simulated driver's readers, built with them (libvgpu/tests/fuzz)."""

from __future__ import annotations

from pathlib import Path

C_TARGETS = {
    "libvgpu-environment": 512,
    "libvgpu-limits-page": 4096,
    "libvgpu-region": 480,
    "libvgpu-description": 2048,
}
"""Name to the most bytes of an input."""

PROGRAMS = Path(__file__).resolve().parents[2] / "libvgpu/build/fuzz"


def program(name: str) -> Path:
    """The program of a target. It takes libFuzzer's options."""
    return PROGRAMS / name.replace("libvgpu-", "fuzz-", 1)


def are_built() -> bool:
    """False where the compiler has no sanitizers or no coverage callbacks."""
    return all(program(name).exists() for name in C_TARGETS)
