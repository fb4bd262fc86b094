"""Answers vectors through the code of the services: `answer.py QUESTIONS ANSWERS`.

Sees no expected values. A group whose code is not there yet gets no file.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from decisions import deferral
from vectors import Group, Row, groups, rows, write_rows

FILTER_GROUPS = (
    "single", "multigpu", "exhaust", "health", "exclusive", "select", "numa", "policy", "topology", "weights",
    "multictr", "init", "quota", "mig", "hetero", "badnode", "badpod", "lifecycle", "nogpu", "register", "sequence",
    "devconfig", "simulation", "ties", "hygon", "ascend", "mixed",
)  # fmt: skip
ANSWERERS: dict[str, str] = {
    **dict.fromkeys(FILTER_GROUPS, "answer_filter"),
    "wire": "answer_wire",
    "webhook": "answer_webhook",
    "regions": "answer_region",
    "dirs": "answer_region_folder",
    "gc": "answer_folder_removal",
    "node-feedback": "answer_feedback",
    "node-metrics": "answer_metrics",
    "node-allocate": "answer_node_allocate",
    "node-register": "answer_node_register",
}
"""Group name to the module whose `answer(row)` gives `got`."""


def answer_group(group: Group, answer: Callable[[Row], object], questions: Path, target: Path) -> None:
    """Answers find files that a row names below its `vectors_root`."""
    write_rows(
        target,
        (
            {"id": row["id"], "got": _guarded(answer, {**row, "vectors_root": str(questions)})}
            for row in rows(group.file)
            if deferral(row) is None
        ),
    )


def _guarded(answer: Callable[[Row], object], row: Row) -> object:
    try:
        return answer(row)
    except Exception as error:  # noqa: BLE001  # the crash is the answer: it fails this vector, not the run
        return {"crash": f"{type(error).__name__}: {error}"}


def main(questions: Path, answers: Path) -> None:
    for group in groups(questions):
        module = ANSWERERS.get(group.name)
        if module is None:
            continue
        try:
            answer = importlib.import_module(module).answer
        except ImportError as error:
            print(f"conformance: {group.label}: no code to answer with: {error}", file=sys.stderr)
            continue
        answer_group(group, answer, questions, answers / f"{group.label}.jsonl")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
