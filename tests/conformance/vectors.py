"""Finding and reading vector files: `<group>.jsonl`, plain or xz, in any folder.

Shared-region files, `<id>.cache.xz` each with its `<id>.json`, make up the group `regions` of their folder.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

Row = dict[str, Any]

HIDDEN_FIELDS = ("expect", "tags", "suspect_reason", "intended", "written")
"""What the answering process must not see."""


REGION = ".cache.xz"
"""Ending of a packed shared-region file."""


class Group(NamedTuple):
    """One file of vectors, or a folder of region files. `path` is relative to its root, without the file's endings."""

    path: Path
    file: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def label(self) -> str:
        return self.path.as_posix()


def groups(root: Path) -> list[Group]:
    """All files of vectors under a folder, in the order of their paths."""
    found = [
        Group(path=file.relative_to(root).parent / file.name.split(".jsonl")[0], file=file)
        for file in sorted(root.rglob("*.jsonl*"))
        if file.name.endswith((".jsonl", ".jsonl.xz"))
    ]
    described = [file for file in region_files(root) if file.with_name(file.name.replace(REGION, ".json")).exists()]
    folders = sorted({file.parent for file in described})
    regions = [Group(path=folder.relative_to(root) / "regions", file=folder) for folder in folders]
    return [*(group for group in found if _is_vectors(group)), *regions]


def region_files(root: Path) -> list[Path]:
    """All packed region files under a folder."""
    return sorted(root.rglob(f"*{REGION}"))


def _is_vectors(group: Group) -> bool:
    """Recordings of calls have the same file name endings, but their rows carry no id."""
    return "id" in next(iter(rows(group.file)), {})


def rows(file: Path) -> Iterator[Row]:
    if file.is_dir():
        for described in sorted(file.glob("*.json")):
            yield json.loads(described.read_bytes())
        return
    content = lzma.decompress(file.read_bytes()) if file.name.endswith(".xz") else file.read_bytes()
    for line in content.split(b"\n"):
        if line.strip():
            yield json.loads(line)


def write_rows(file: Path, content: Iterable[Row]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8") as lines:
        for row in content:
            lines.write(json.dumps(row, sort_keys=True, ensure_ascii=False) + "\n")


def without_answers(row: Row) -> Row:
    return {key: value for key, value in row.items() if key not in HIDDEN_FIELDS}
