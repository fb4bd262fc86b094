"""Container images made on the spot, as archives that `ctr images import` reads: no registry is asked."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

BUSYBOX = Path("/bin/busybox")
COMMANDS = ("sh", "cat", "env", "sleep", "true", "false", "ls", "echo", "kill", "ps", "grep", "touch", "test", "id")
"""Names by which busybox is called in the image."""

SHOWN = Path(__file__).with_name("shown.sh")
"""Does what NVIDIA's runtime would do with its variable, where there is no such runtime."""

Tree = Mapping[str, Path | str]
"""By path in the image: a file of this machine, or the target of a link."""


def pause_image(name: str, source: Path, folder: Path) -> Path:
    """The image of a pod's sandbox: one static program."""
    program = folder / "pause"
    subprocess.run(["cc", "-static", "-Os", "-Wall", "-Wextra", "-Werror", "-o", program, source], check=True)
    return archive(name, {"pause": program}, ("/pause",), folder / "pause.tar")


def workload_image(name: str, programs: Sequence[Path], libraries: Sequence[Path], folder: Path) -> Path:
    """busybox and our programs, with this machine's libc for them and for what is mounted into containers."""
    tree: dict[str, Path | str] = {"bin/busybox": BUSYBOX}
    tree |= {f"bin/{command}": "busybox" for command in COMMANDS}
    for program in (*programs, SHOWN):
        tree[f"bin/{program.name}"] = program
    for file in [*programs, *libraries]:
        for needed in needed_libraries(file):
            tree[str(needed).removeprefix("/")] = needed
    for folder_name in ("tmp", "etc"):
        tree[f"{folder_name}/.keep"] = Path("/dev/null")
    return archive(name, tree, ("/bin/sh",), folder / "workload.tar")


def needed_libraries(file: Path) -> list[Path]:
    """The loader and the libraries of this machine that a file needs; those of the driver are not among them."""
    said = subprocess.run(["ldd", file], capture_output=True, text=True, check=True).stdout
    found = [Path(path) for path in re.findall(r"(/\S+) \(0x", said)]
    return [path for path in found if not path.name.startswith(("libcuda.", "libnvidia-"))]


def library_folder(program: Path) -> Path:
    """Where the loader looks for libc, and so for what lies beside it."""
    return next(path.parent for path in needed_libraries(program) if path.name == "libc.so.6")


def archive(name: str, tree: Tree, entrypoint: tuple[str, ...], file: Path) -> Path:
    """One layer, in the form of `docker save`."""
    layer = _layer(tree)
    configuration = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": list(entrypoint), "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
    ).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(file, "w") as outer:
        for member, content in (("config.json", configuration), ("layer.tar", layer), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(member)
            entry.size = len(content)
            outer.addfile(entry, io.BytesIO(content))
    return file


def _layer(tree: Tree) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as layer:
        for path, content in tree.items():
            entry = tarfile.TarInfo(path)
            if isinstance(content, str):
                entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, content, 0o777
                layer.addfile(entry)
                continue
            data = content.read_bytes()
            entry.size, entry.mode = len(data), 0o755
            layer.addfile(entry, io.BytesIO(data))
    return written.getvalue()
