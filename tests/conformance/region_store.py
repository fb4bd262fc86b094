"""The region files that vectors name, unpacked."""

from __future__ import annotations

import lzma
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from vectors import REGION

OWN = Path(__file__).parent.parent / "data/vectors"
"""Vectors may name regions that only the project's copy holds."""


@cache
def content(root: str, region_id: str) -> bytes:
    """Raises FileNotFoundError."""
    for folder in (Path(root), OWN):
        for file in folder.rglob(f"{region_id}{REGION}"):
            return lzma.decompress(file.read_bytes())
    raise FileNotFoundError(f"no region {region_id} in {root}")


def lay_out(folder: Path, files: Iterable[dict[str, Any]], root: str) -> None:
    """Makes the files of one container's folder: `name` with `region`, `size` or `dir`."""
    folder.mkdir(parents=True)
    for file in files:
        path = folder / file["name"]
        if file.get("dir"):
            path.mkdir()
        elif "region" in file:
            path.write_bytes(content(root, file["region"]))
        else:
            path.write_bytes(bytes(file["size"]))
