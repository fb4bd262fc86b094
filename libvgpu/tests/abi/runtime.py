"""Lets NVIDIA's own CUDA runtime start over the simulated driver, under vgpu-sniff: the tables know all it asks for.

The runtime comes in wheels from PyPI (`nvidia-cuda-runtime`). Where it is not installed the test is skipped by name:
status 77. It gets no further than its start: it needs the driver's undocumented tables, which that one lacks.
"""

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

SKIPPED = 77
PLACES = {12: "nvidia/cuda_runtime/lib/libcudart.so.12", 13: "nvidia/cu13/lib/libcudart.so.13"}
PROGRAM = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).cudaGetDeviceCount(ctypes.byref(ctypes.c_int()))"
NODE = {
    "cuda_version": "13.5",
    "cards": [{"uuid": "GPU-11111111-2222-3333-4444-000000000000", "name": "Simulated A100", "memory_mib": 40960}],
}
# Asked for by 13.x and declared in no header.
UNDOCUMENTED = {"cuSubgridCreate", "cuSubgridWorkerGridCreate", "cuSubgridWorksetCreate"}
# What every version of the runtime reaches, and must not reach past libvgpu.
HELD = {
    "cuMemAlloc_v2",
    "cuMemAllocAsync_ptsz",
    "cuLaunchKernel",
    "cuLaunchKernel_ptsz",
    "cuGetProcAddress_v2",
}


def find_runtime(roots: list[Path], major: int) -> Path | None:
    for root in roots:
        for pattern in (PLACES[major], "lib/python3*/site-packages/" + PLACES[major]):
            for found in root.glob(pattern):
                return found
    return None


def sniff(build: Path, runtime: Path) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "node.json").write_text(json.dumps(NODE))
        environment = {k: v for k, v in os.environ.items() if k not in {"LD_PRELOAD", "LD_AUDIT"}}
        environment |= {"LD_LIBRARY_PATH": str(build / "sim"), "HAMI_SIM_DRIVER": str(folder / "node.json")}
        command = [str(build / "bin/vgpu-sniff"), "--json", "--output", str(folder / "report"), "--"]
        subprocess.run([*command, sys.executable, "-c", PROGRAM, str(runtime)], env=environment, check=True)
        reached: list[dict[str, Any]] = json.loads((folder / "report").read_text())["reached"]
        return reached


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("major", type=int, choices=sorted(PLACES))
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--look-in", type=Path, action="append", default=[])
    options = parser.parse_args()
    roots = [*options.look_in, Path(sysconfig.get_path("purelib")), Path(__file__).resolve().parents[3] / ".venv"]
    runtime = find_runtime(roots, options.major)
    if runtime is None:
        print(f"SKIPPED: no CUDA runtime {options.major} in {', '.join(map(str, roots))}")
        return SKIPPED
    asked = [row for row in sniff(options.build, runtime) if row["how"] != "linked"]
    problems = [f"not known: {row}" for row in asked if row["libvgpu"] == "unknown"]
    lacking = {row["symbol"] for row in asked if row["libvgpu"] == "not found"} - UNDOCUMENTED - {""}
    problems += [f"not found: {name}" for name in sorted(lacking)]
    held = {row["symbol"] for row in asked if row["libvgpu"] == "holds"}
    problems += [f"not held: {name}" for name in sorted(HELD - held)]
    if len(asked) < 300:
        problems.append(f"only {len(asked)} questions were seen")
    print(f"{len(asked)} questions of {runtime.name}, {len(held)} functions held")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
