"""Which file of a container's folder the monitor takes as its region."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hami_monitor.adapters.region_files import RegionFiles
from region_store import lay_out


def answer(row: dict[str, Any]) -> dict[str, Any]:
    with TemporaryDirectory() as root:
        lay_out(Path(root) / "uid_name", row["files"], row["vectors_root"])
        (found,) = RegionFiles(Path(root)).scan()
    if found.problem:
        return {"error": found.problem}
    if found.region is None:
        return {"ignored": True}
    regions = {file["name"]: file.get("region") for file in row["files"]}
    return {"loaded_region": regions[found.file], "parser": found.region.parser}
